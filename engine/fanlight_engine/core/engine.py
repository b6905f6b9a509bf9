"""The core: add, encode, abort, step. A step reads schedule -> encode -> launch -> finish -> postprocess.

Where the device computes beside the host, the core runs ahead: it launches the next step, planned without the tokens
of the one that is being computed, before it waits for these. So one step is in flight between two calls of `step`.
Whatever depends on tokens makes it wait as it does on a CPU: schedule, launch, finish, one after the other. Answers are
the same.

Knows messages, sequences and the runner; knows nothing of asyncio, processes, text or gRPC. Not thread-safe: whoever
drives it calls everything from one thread.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from fanlight_engine.client import CoreFacts, CoreStatistics
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.admission import (
    refusal_for_its_id,
    refusal_for_the_crowd,
    refusal_of,
    refusal_of_encode,
    refusal_of_sequence,
    rejected,
)
from fanlight_engine.core.block_pool import BlockPool
from fanlight_engine.core.encode_queue import EncodeQueue
from fanlight_engine.core.encoder_budget import EncodeJob, EncoderBudget
from fanlight_engine.core.image_mask import ImageMask, MaskMismatchError
from fanlight_engine.core.messages import (
    EMBEDDINGS,
    AddRequest,
    Admitted,
    Completed,
    Encoded,
    EncodeRequest,
    FromCore,
    Generated,
    Prefilled,
    Progressed,
    Rejected,
)
from fanlight_engine.core.scheduler import Chunk, Plan, Scheduler
from fanlight_engine.core.sequence import Sequence
from fanlight_engine.core.spans import spans_of
from fanlight_engine.core.step_in_flight import Outcome, StepInFlight, Steps
from fanlight_engine.errors import Reason
from fanlight_engine.model.runner import Runner, SampledToken
from fanlight_engine.model.vision_cache import VisionCache
from fanlight_engine.request import FinishReason

_log = logging.getLogger(__name__)
_FAILED = "the engine failed while computing this request"


@dataclass(slots=True)
class _Done:
    """Work whose results were read and belong to somebody; only grows."""

    steps: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0


class Engine:
    """One model's core."""

    def __init__(
        self,
        config: EngineConfig,
        facts: CoreFacts,
        runner: Runner,
        pool: BlockPool,
        vision_cache: VisionCache,
        runs_ahead: bool = False,
    ) -> None:
        """`runs_ahead`: launch steps before the last one's tokens are read, wherever that can be."""
        self.facts = facts
        self.runs_ahead = runs_ahead
        self._config = config
        self._runner = runner
        self._pool = pool
        self._vision_cache = vision_cache
        self._encoder = EncoderBudget(vision_cache, facts.embedding_row_bytes, config.max_step_embedding_rows)
        self._scheduler = Scheduler(config, pool, self._encoder, facts.long_factor_border)
        self._steps = Steps(runner, self._scheduler)
        self._in_flight: StepInFlight | None = None
        self._encodes = EncodeQueue(self._encoder)
        self._sequences: dict[str, Sequence] = {}
        self._loras = {lora.name: lora for lora in facts.loras}
        self._done = _Done()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._scheduler.has_work or len(self._encodes) > 0

    def add(self, request: AddRequest) -> FromCore:
        """Queue a request: Admitted, or Rejected with the reason and nothing kept."""
        refusal = self._refusal_by_state(request, len(self._scheduler.waiting)) or refusal_of(request, self.facts)
        if refusal is not None:
            return refusal
        try:
            sequence = self._sequence_of(request)
            refusal = refusal_of_sequence(sequence, self.facts)
            if refusal is not None:
                return refusal
            self._runner.add(sequence)
        except MaskMismatchError as error:
            return rejected(request, Reason.IMAGE_COUNT_MISMATCH, "prompt", str(error))
        except ValueError as error:
            return rejected(request, Reason.INVALID_ARGUMENT, "prompt", str(error))
        except Exception:  # positions come from foreign model code; the request fails, the core goes on
            _log.exception("positions of a prompt failed")
            return rejected(request, Reason.ENGINE_FAILURE, "", _FAILED)
        ahead = len(self._scheduler.waiting)
        self._sequences[sequence.id] = sequence
        self._scheduler.add(sequence)
        return Admitted(sequence.id, self._scheduler.cached_tokens(sequence), ahead)

    def encode(self, request: EncodeRequest) -> FromCore | None:
        """Queue a medium to be encoded (None), unless its embeddings are known (Encoded) or it is refused."""
        refusal = self._refusal_by_state(request, len(self._encodes)) or refusal_of_encode(request, self.facts)
        if refusal is not None:
            return refusal
        if self._encoder.knows(request.media):
            return self._encoded(request, was_cached=True)
        self._encodes.add(request)
        return None

    def abort(self, request_id: str) -> None:
        """Free a request in whatever state it is; unknown ids are ignored."""
        self._encodes.abort(request_id)
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._free(sequence)

    def step(self) -> list[FromCore]:
        """Compute one step and say what came of it."""
        step, messages = self._in_flight, []
        if step is None:
            plan = self._scheduler.schedule(leave_encoder=self._encodes.was_passed_over)
            self._encodes.plan(plan.encode_jobs)
            messages = self._run_encode_jobs(plan)
            if not plan.chunks:
                return messages
            step = self._steps.launch(plan)
        self._in_flight = self._launch_ahead(step) if self.runs_ahead else None
        outcome = self._steps.finish(step, self._in_flight)
        if outcome.voids_the_step_behind:
            self._in_flight = None
        return messages + self._postprocess(outcome)

    def statistics(self) -> CoreStatistics:
        """Counters and gauges right now."""
        launched = self._runner.counters
        return CoreStatistics(
            steps=self._done.steps,
            computed_tokens=self._done.computed_tokens,
            generated_tokens=self._done.generated_tokens,
            decode_steps=launched.decode_steps,
            image_steps=launched.image_steps,
            images_encoded=launched.images_encoded,
            encoder_batches=launched.encoder_batches,
            encoder_cache_hits=self._encoder.cache_hits,
            running_requests=len(self._scheduler.running),
            waiting_requests=len(self._scheduler.waiting),
            free_pages=self._pool.available,
            total_pages=self._pool.usable_pages,
            waiting_encodes=len(self._encodes),
            pinned_embeddings=self._encoder.pins,
            vision_cache_bytes=self._vision_cache.used_bytes,
            prefix_cache_queries=self._scheduler.prefix_cache_queries,
            prefix_cached_tokens=self._scheduler.prefix_cached_tokens,
            preemptions=self._scheduler.preemptions,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError unless every page, pin and sequence is accounted for."""
        self._scheduler.check_integrity()
        self._encodes.check_integrity()
        queued = {sequence.id for sequence in (*self._scheduler.running, *self._scheduler.waiting)}
        if queued != self._sequences.keys():
            raise AssertionError(f"sequences known but not queued, or the reverse: {queued ^ self._sequences.keys()}")
        if not queued and self._in_flight is not None:
            raise AssertionError("a step is in flight with no request running")
        if not queued and self._pool.available != self._pool.usable_pages:
            raise AssertionError(f"{self._pool.usable_pages - self._pool.available} pages held with no request running")

    def _sequence_of(self, request: AddRequest) -> Sequence:
        """Raises MaskMismatchError."""
        mask = ImageMask(request.media, request.mask_runs, len(request.prompt_ids))
        spans = spans_of(self.facts.bidirectional, mask, len(request.prompt_ids))
        return Sequence(request, mask, spans, self._loras.get(request.lora))

    def _launch_ahead(self, step: StepInFlight) -> StepInFlight | None:
        """The step behind one that was launched, where nothing has to be known first."""
        if step.launched is None or len(self._encodes):
            return None
        plan = self._scheduler.plan_ahead()
        return None if plan is None else self._steps.launch(plan, after=step)

    def _refusal_by_state(self, request: AddRequest | EncodeRequest, waiting: int) -> Rejected | None:
        if request.request_id in self._sequences or request.request_id in self._encodes:
            return refusal_for_its_id(request)
        return refusal_for_the_crowd(request, waiting, self._config.max_waiting_requests)

    def _run_encode_jobs(self, plan: Plan) -> list[FromCore]:
        """Encode what the plan asks for; requests whose medium failed leave the plan and are rejected."""
        jobs = list(plan.encode_jobs.values())
        if not jobs and not self._encodes.planned:
            return []
        begun = time.monotonic()
        failures = self._runner.encode(jobs)
        self._record_encoding([job for job in jobs if job.medium.digest not in failures], time.monotonic() - begun)
        answers = self._answer_encodes(failures)
        victims = [one for one in self._scheduler.running if not one.pinned.isdisjoint(failures)]
        plan.chunks[:] = [chunk for chunk in plan.chunks if chunk.sequence not in victims]
        return answers + [
            self._fail(victim, failures[next(iter(victim.pinned & failures.keys()))]) for victim in victims
        ]

    def _answer_encodes(self, failures: dict[bytes, Exception]) -> list[FromCore]:
        """What this step's encode requests are told."""
        answers: list[FromCore] = []
        for one in self._encodes.planned:
            error = failures.get(one.request.media.digest)
            if error is None:
                answers.append(self._encoded(one.request, was_cached=not one.runs_tower))
            else:
                answers.append(_failed(one.request, error, "media"))
        self._encodes.finish()
        return answers

    def _encoded(self, request: EncodeRequest, was_cached: bool) -> Encoded:
        return Encoded(request.request_id, {EMBEDDINGS: self._runner.embedding(request.media.digest)}, was_cached)

    @staticmethod
    def _record_encoding(jobs: list[EncodeJob], seconds: float) -> None:
        encoded = [
            (job.sequence, job.number) for job in jobs if job.sequence is not None and not job.medium.is_embedded
        ]
        for sequence, number in encoded:
            sequence.encoded_here.add(number)
        for sequence in {id(sequence): sequence for sequence, _ in encoded}.values():
            sequence.clock.encode_seconds += seconds

    def _postprocess(self, outcome: Outcome) -> list[FromCore]:
        for chunk in outcome.computed:
            self._scheduler.computed(chunk)
        self._done.steps += 1
        self._done.computed_tokens += sum([chunk.length for chunk in outcome.computed])
        self._done.generated_tokens += len(outcome.sampled)
        messages: list[FromCore] = [self._fail(sequence, error) for sequence, error in outcome.failed]
        prefills = [chunk.sequence for chunk in outcome.computed if not chunk.is_decode]
        messages += [_progressed(sequence) for sequence in prefills if not sequence.generated]
        for chunk, token in outcome.sampled:
            self._append(chunk, token, messages)
        return messages

    def _append(self, chunk: Chunk, token: SampledToken, messages: list[FromCore]) -> None:
        """Put a sampled token into its sequence, say so, and end the sequence where that says so."""
        sequence, token_id, logprob = token
        end = chunk.start + chunk.length
        sequence.tokens[end] = token_id
        if sequence.clock.first_token is None:
            sequence.clock.first_token = time.monotonic()
            messages.append(_prefilled(sequence))
        request = sequence.request
        messages.append(Generated(request.request_id, (token_id,), (logprob,) if request.sampling.logprobs else ()))
        reason = _finish_reason(sequence, end + 1 - sequence.prompt_length, token_id)
        if reason is not None:
            messages.append(Completed(sequence.id, reason, sequence.preemptions))
            self._free(sequence)

    def _fail(self, sequence: Sequence, error: Exception) -> Rejected:
        """End a request that cannot be computed."""
        self._free(sequence)
        return _failed(sequence.request, error, "prompt")

    def _free(self, sequence: Sequence) -> None:
        """The one way out: pages, pins, positions and the books."""
        self._scheduler.free(sequence)
        self._runner.remove(sequence)
        del self._sequences[sequence.id]
        if self._in_flight is not None and not self._in_flight.is_alive:
            self._in_flight = None


def _failed(request: AddRequest | EncodeRequest, error: Exception, field: str) -> Rejected:
    """A mismatch is in the request's own data and is told; other errors stay in the log."""
    if isinstance(error, MaskMismatchError):
        return rejected(request, Reason.IMAGE_COUNT_MISMATCH, field, str(error))
    return rejected(request, Reason.ENGINE_FAILURE, "", _FAILED)


def _progressed(sequence: Sequence) -> Progressed:
    return Progressed(sequence.id, 0, sequence.media_available(), min(sequence.computed, sequence.prompt_length))


def _prefilled(sequence: Sequence) -> Prefilled:
    return Prefilled(
        request_id=sequence.id,
        cached_tokens=sequence.cached_tokens or 0,
        encoded_media=tuple(sorted(sequence.encoded_here)),
        timings=sequence.clock.timings(),
    )


def _finish_reason(sequence: Sequence, generated: int, token_id: int) -> FinishReason | None:
    """Why a sequence ends with its token number `generated`, if it does; there may be others behind it, unread."""
    sampling = sequence.request.sampling
    may_end = generated > sampling.min_new_tokens or not sampling.min_new_tokens
    if may_end and (token_id in sampling.end_ids or token_id in sampling.stop_token_ids):
        return FinishReason.STOP
    if generated >= sampling.max_new_tokens:
        return FinishReason.CONTEXT_FULL if sampling.context_limited else FinishReason.LENGTH
    return None
