"""Decides what the next step computes: policy only, no tensors, no clock but for stamping first steps.

A step has a budget of tokens and a budget of embedding rows. Decodes come first, one token each, so running streams
keep flowing; then chunks of prompts that are under way, then new ones in order of arrival. The head of the queue is
never overtaken. When pages run out the youngest running sequence is preempted: it gives everything back and later
computes its tokens again. The oldest can therefore always go on, so there is no livelock.

No chunk ends inside a span of positions that see the whole of themselves. Admission lets in no span that would not fit
into a step beside a token of every other running request, so the oldest prompt, which comes first, always gets on.

Where a model has LongRoPE, a running sequence that becomes longer than the border gives its pages back and is computed
again under the long factors, in the same step if that has room. It keeps its place: this is no preemption.

Every way out of the core leads through `free`.
"""

from __future__ import annotations

import time
from bisect import insort
from collections import deque
from dataclasses import dataclass, field

from fanlight_engine.config import EngineConfig
from fanlight_engine.core.block_pool import BlockPool
from fanlight_engine.core.encoder_budget import EncodeJob, EncoderBudget
from fanlight_engine.core.prefix_cache import PrefixCache
from fanlight_engine.core.sequence import Sequence, Status


@dataclass(frozen=True, slots=True)
class Chunk:
    """`length` tokens of a sequence from `start`; `samples` when it reaches the sequence's end."""

    sequence: Sequence
    start: int
    length: int
    is_decode: bool = False
    """Whether this is a running stream's next token; such chunks come first in a plan."""

    @property
    def end(self) -> int:
        """The position after the last token of the chunk."""
        return self.start + self.length

    @property
    def samples(self) -> bool:
        """Whether the step samples a next token for this sequence."""
        return self.end == self.sequence.length


@dataclass(slots=True)
class Plan:
    """What one step does: encode these media, then compute these chunks, decodes first."""

    chunks: list[Chunk] = field(default_factory=list)
    encode_jobs: dict[bytes, EncodeJob] = field(default_factory=dict)

    @property
    def has_media(self) -> bool:
        """Whether any chunk takes embeddings of media; known before anything touches the device."""
        return any(chunk.sequence.mask.media(chunk.start, chunk.end) for chunk in self.chunks)

    @property
    def has_loras(self) -> bool:
        """Whether any chunk takes a LoRA adapter; known before anything touches the device."""
        return any(chunk.sequence.lora is not None for chunk in self.chunks)

    @property
    def is_decode_only(self) -> bool:
        """Whether every chunk is one decoded token."""
        return all(chunk.is_decode for chunk in self.chunks)

    @property
    def tokens(self) -> int:
        """Tokens computed by the step."""
        return sum(chunk.length for chunk in self.chunks)


class Scheduler:
    """Queues, pages and budgets of one core."""

    def __init__(
        self, config: EngineConfig, pool: BlockPool, encoder: EncoderBudget, long_factor_border: int = 0
    ) -> None:
        """`long_factor_border` is as in CoreFacts."""
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        """In order of arrival."""
        self.preemptions = 0
        self.prefix_cache_queries = 0
        self.prefix_cached_tokens = 0
        self._pool = pool
        self._prefix_cache = PrefixCache(pool, config.prefix_cache)
        self._encoder = encoder
        self._long_factor_border = long_factor_border
        self._page_size = config.page_size
        self._max_running = config.max_running_requests
        self._max_step_tokens = config.max_step_tokens
        self._next_number = 0

    @property
    def has_work(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence behind all others."""
        sequence.number = self._next_number
        self._next_number += 1
        sequence.take_factors(self._long_factor_border)
        self.waiting.append(sequence)

    def cached_tokens(self, sequence: Sequence) -> int:
        """Prompt tokens whose KV is in the prefix cache right now."""
        return len(self._prefix_cache.match(self._shareable_keys(sequence))) * self._page_size

    def schedule(self, leave_encoder: bool = False) -> Plan:
        """The next step. An empty plan means that nothing can run.

        With `leave_encoder` no medium is encoded that is not under way, so that others can use the encoder.
        """
        plan = Plan()
        self._cross_border()
        self._plan_decodes(plan)
        self._encoder.begin_step(decodes_run=bool(plan.chunks), sequences_wait=leave_encoder)
        self._plan_prefills(plan)
        self._admit_waiting(plan)
        return plan

    def computed(self, chunk: Chunk) -> None:
        """Record that a chunk's KV is in its pages: share full pages, let go of media that are behind it."""
        sequence = chunk.sequence
        sequence.computed = chunk.end
        full_before, full = chunk.start // self._page_size, chunk.end // self._page_size
        keys = sequence.page_keys(self._page_size, full)
        for index in range(full_before, full):
            self._prefix_cache.register(keys[index], sequence.pages[index])
        self._encoder.release_passed(sequence)

    def free(self, sequence: Sequence) -> None:
        """Take everything back from a sequence, whatever state it is in. Freeing twice is harmless."""
        if sequence.status is Status.RUNNING:
            self.running.remove(sequence)
        elif sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        self._give_back(sequence)
        sequence.status = Status.FINISHED

    def check_integrity(self) -> None:
        """Raise AssertionError unless pages and pins are exactly what the running sequences hold."""
        self._pool.check_integrity(page for sequence in self.running for page in sequence.pages)
        pins = sum(len(sequence.pinned) for sequence in self.running)
        if pins != self._encoder.pins:
            raise AssertionError(f"{self._encoder.pins} embeddings pinned, running sequences hold {pins}")
        if any(sequence.pages or sequence.pinned for sequence in self.waiting):
            raise AssertionError("a waiting sequence holds pages or embeddings")

    def _cross_border(self) -> None:
        """Sequences that have outgrown the short rotary factors begin anew under the long ones."""
        for sequence in self.running:
            if sequence.take_factors(self._long_factor_border):
                self._give_back(sequence)

    def _plan_decodes(self, plan: Plan) -> None:
        for sequence in [one for one in self.running if one.is_decoding]:
            if sequence.status is Status.RUNNING and self._grow(sequence, sequence.length, plan):
                plan.chunks.append(Chunk(sequence, sequence.computed, 1, is_decode=True))

    def _plan_prefills(self, plan: Plan) -> None:
        for sequence in [one for one in self.running if not one.is_decoding]:
            if sequence.status is Status.RUNNING:
                self._plan_chunk(sequence, plan)

    def _plan_chunk(self, sequence: Sequence, plan: Plan) -> None:
        """As much of the sequence as tokens, embeddings and pages allow; nothing when that is none."""
        end = sequence.computed + min(sequence.remaining, self._max_step_tokens - plan.tokens)
        end = sequence.spans.cut(sequence.computed, end)  # first, so that no medium is encoded that must wait anyway
        end = self._encoder.limit_chunk(sequence, end, plan.encode_jobs)
        end = sequence.spans.cut(sequence.computed, end)
        if end > sequence.computed and self._grow(sequence, end, plan):
            plan.chunks.append(Chunk(sequence, sequence.computed, end - sequence.computed))

    def _admit_waiting(self, plan: Plan) -> None:
        while self.waiting and len(self.running) < self._max_running and plan.tokens < self._max_step_tokens:
            sequence = self.waiting[0]
            if not self._start(sequence):
                return
            self.waiting.popleft()
            self._plan_chunk(sequence, plan)

    def _start(self, sequence: Sequence) -> bool:
        """Make a waiting sequence run from what the prefix cache holds of it, if all its tokens fit right now.

        Asking for room for all of them, though pages are taken chunk by chunk, keeps long prompts from preempting
        each other half way.
        """
        sequence.take_factors(self._long_factor_border)  # it may have been preempted just when it crossed the border
        shared = self._prefix_cache.match(self._shareable_keys(sequence))
        revived = sum(self._pool.is_kept(page) for page in shared)
        if self._pages_for(sequence.length) - len(shared) > self._pool.available - revived:
            return False
        for page in shared:
            self._pool.retain(page)
        sequence.pages = list(shared)
        sequence.computed = len(shared) * self._page_size
        self._record_start(sequence)
        sequence.status = Status.RUNNING
        insort(self.running, sequence, key=lambda one: one.number)
        return True

    def _record_start(self, sequence: Sequence) -> None:
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            sequence.clock.first_step = time.monotonic()
            self.prefix_cache_queries += 1
            self.prefix_cached_tokens += sequence.computed

    def _grow(self, sequence: Sequence, length: int, plan: Plan) -> bool:
        """Give the sequence pages for `length` tokens, preempting younger ones; False when it was preempted itself."""
        missing = self._pages_for(length) - len(sequence.pages)
        while missing > self._pool.available:
            youngest = self.running[-1]
            self._preempt(youngest, plan)
            if youngest is sequence:
                return False
        if missing > 0:
            pages = self._pool.allocate(missing)
            assert pages is not None
            sequence.pages.extend(pages)
        return True

    def _preempt(self, sequence: Sequence, plan: Plan) -> None:
        """Back to the front of the queue with its tokens; its chunk, if planned already, leaves the plan."""
        plan.chunks[:] = [chunk for chunk in plan.chunks if chunk.sequence is not sequence]
        self.running.remove(sequence)
        self._give_back(sequence)
        self._encoder.drop_unreserved(plan.encode_jobs)
        sequence.status = Status.WAITING
        sequence.preemptions += 1
        self.preemptions += 1
        insort(self.waiting, sequence, key=lambda one: one.number)

    def _give_back(self, sequence: Sequence) -> None:
        self._pool.release(reversed(sequence.pages))
        sequence.pages = []
        sequence.computed = 0
        self._encoder.release_all(sequence)

    def _shareable_keys(self, sequence: Sequence) -> list[bytes]:
        """Keys of the full pages before the last token, which is always computed: its logits are needed."""
        return sequence.page_keys(self._page_size, (sequence.length - 1) // self._page_size)

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self._page_size)
