"""Drives a core step by step without clocks or threads, and compares its answers with the reference's."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.build import build_engine
from fanlight_engine.core.engine import Engine
from fanlight_engine.core.messages import (
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
    SamplingParams,
    decode_from_core,
    decode_to_core,
    encode,
)
from fanlight_engine.core.scheduler import Plan
from fanlight_engine.model.runner import Launched, Runner
from tests.engine.reference import NEAR_TIE, Case


@dataclass(slots=True)
class Answer:
    """What the core said about one request."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prefilled: Prefilled | None = None
    end: Completed | Rejected | Encoded | None = None


class Driver:
    """One core, fed by hand; every message goes through its serialised form."""

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint, runs_ahead: bool | None = None) -> None:
        """`runs_ahead` as in Engine; None leaves it to device and settings."""
        self.engine: Engine = build_engine(config, checkpoint, runs_ahead=runs_ahead)
        self.answers: dict[str, Answer] = {}
        self.largest_batch = 0
        self.chunks_starting_inside_an_image = 0
        self.chunks_ending_before_a_span = 0
        self.steps_launched_ahead = 0
        self._watch(self.engine._runner)

    def add(self, request: AddRequest) -> FromCore:
        """Queue a request."""
        self.answers[request.request_id] = Answer()
        request = decode_to_core(encode(request))  # pyright: ignore[reportAssignmentType] what goes in comes out
        return self._hear(self.engine.add(request))

    def encode(self, request: EncodeRequest) -> Encoded | Rejected | None:
        """Ask for the embeddings of one medium; what the core says at once, if anything."""
        self.answers[request.request_id] = Answer()
        request = decode_to_core(encode(request))  # pyright: ignore[reportAssignmentType] what goes in comes out
        said = self.engine.encode(request)
        if said is not None:
            self._hear(said)
        return self.answers[request.request_id].end  # pyright: ignore[reportReturnType] nothing was generated

    def step(self) -> None:
        """One step of the core."""
        for message in self.engine.step():
            self._hear(message)

    def run(self, limit: int = 100_000) -> None:
        """Step until nothing is left to do, then check the books."""
        for _ in range(limit):
            if not self.engine.has_work:
                self.engine.check_integrity()
                return
            self.step()
        raise AssertionError(f"still working after {limit} steps")

    def run_in_random_batches(self, requests: Iterable[AddRequest], rng: random.Random, most: int = 16) -> None:
        """Feed requests while others run, so that batches of every size up to `most` come about."""
        queue = list(requests)
        while queue or self.engine.has_work:
            running = self.engine.statistics()
            room = most - running.running_requests - running.waiting_requests
            for _ in range(min(len(queue), rng.randint(0, max(0, room)))):
                self.add(queue.pop(0))
            self.step()
            self.engine.check_integrity()

    def _watch(self, runner: Runner) -> None:
        """Record what each plan looks like on its way to the device."""
        launch = runner.launch

        def watched(plan: Plan, after: Launched | None = None) -> Launched:
            self.steps_launched_ahead += after is not None
            self.largest_batch = max(self.largest_batch, len(plan.chunks))
            for chunk in plan.chunks:
                first = next(chunk.sequence.mask.pieces(chunk.start, chunk.end), None)
                if first is not None and first.position == chunk.start and first.row > 0:
                    self.chunks_starting_inside_an_image += 1
                self.chunks_ending_before_a_span += bool(
                    chunk.sequence.spans.beginning_between(chunk.end, chunk.end + 1)
                )
            return launch(plan, after)

        runner.launch = watched

    def _hear(self, message: FromCore) -> FromCore:
        message = decode_from_core(encode(message))
        answer = self.answers[message.request_id]
        if isinstance(message, Generated):
            answer.ids.extend(message.token_ids)
            answer.logprobs.extend(message.logprobs)
        elif isinstance(message, Prefilled):
            assert answer.prefilled is None, "it comes once"
            answer.prefilled = message
        elif isinstance(message, Completed | Rejected | Encoded):
            answer.end = message
        else:
            assert isinstance(message, Admitted | Progressed), message
        return message


def request_for(case: Case, number: int, checkpoint: Checkpoint, new_tokens: int) -> AddRequest:
    """The case as a request for up to `new_tokens` greedy tokens with logprobs."""
    return AddRequest(
        request_id=f"{case.kind}-{number}",
        prompt_ids=case.prompt_ids,
        sampling=SamplingParams(
            max_new_tokens=new_tokens,
            min_new_tokens=case.min_new_tokens,
            end_ids=checkpoint.end_ids,
            logprobs=True,
        ),
        media=case.media,
        mask_runs=case.mask_runs,
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many answers were compared, how many first differed at one of the reference's near ties, and the largest
    difference of a logprob before that."""

    compared: int
    near_ties: int
    logprob_difference: float

    @property
    def near_tie_share(self) -> float:
        """Share of the answers that differ at a near tie."""
        return self.near_ties / max(1, self.compared)


def compare(answers: Sequence[Answer], cases: Sequence[Case], logprob_tolerance: float = 1e-4) -> Comparison:
    """Raises AssertionError at the first answer that differs where the reference was not undecided."""
    near_ties, worst = 0, 0.0
    for answer, case in zip(answers, cases, strict=True):
        assert isinstance(answer.end, Completed), answer.end
        first = _first_difference(answer.ids, case.answer)
        for ours, theirs in zip(answer.logprobs[:first], case.logprobs, strict=False):
            assert abs(ours - theirs) < logprob_tolerance, (case.kind, ours, theirs)
            worst = max(worst, abs(ours - theirs))
        if first is None:
            continue
        margin = case.margins[first] if first < len(case.margins) else float("inf")
        assert margin < NEAR_TIE, (
            f"{case.kind}: differs at token {first}: {answer.ids} instead of {list(case.answer)}, "
            f"where the best two logits are {margin:.6f} apart"
        )
        near_ties += 1
    return Comparison(len(cases), near_ties, worst)


def _first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    for index, (left, right) in enumerate(zip(ours, theirs, strict=False)):
        if left != right:
            return index
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))
