"""Decides what the next step computes: policy only, no tensors, no clock but for stamping first steps.

A step has a budget of tokens and a budget of embedding rows. Decodes come first, one token each, so running streams
keep flowing; then chunks of prompts that are under way, then new ones in order of arrival. When pages run out the
youngest running sequence is preempted: it gives everything back and later computes its tokens again. The oldest can
therefore always go on, so there is no livelock.

A long prompt may take the whole budget for many steps, and somebody who asks something short would wait for all of
them. So a step may be a short one: beside the decodes it computes nothing but waiting prompts that fit whole into an
eighth of the budget and that a longer one, which stands before them, keeps waiting. It takes little more time than a
decode step. What keeps that fair:

    two short steps never follow each other: every other step at least is in order of arrival, and a stream of short
    prompts makes a long one take at most twice as many steps, the added ones cheap;
    a short prompt goes ahead only where pages and rows are left for all that stand before it, so it costs them an
    eighth of a step and nothing else: a head of the queue that waits for pages or for a row is never overtaken;
    it goes ahead only with text, so the encoder serves in order of arrival.

A prompt counts as what is left of it behind the prefix cache: the next turn of a long conversation is short.

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
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple

from fanlight_engine.config import EngineConfig
from fanlight_engine.core.block_pool import BlockPool
from fanlight_engine.core.encoder_budget import EncodeJob, EncoderBudget
from fanlight_engine.core.prefix_cache import PrefixCache
from fanlight_engine.core.sequence import UNREAD, Sequence, Status

SHORT_PART = 8
"""A prompt that fits into this part of a step may go ahead of a longer one; so little is cheap beside decodes."""
_SHORT_PROMPTS_LOOKED_FOR = 64
"""How far behind the head of the queue; what is cached of each is looked up, which takes its time."""


def longest_short_prompt(config: EngineConfig) -> int:
    """The most tokens that all prompts of a short step have together."""
    return max(1, config.max_step_tokens // SHORT_PART)


def most_tokens_of_a_short_step(config: EngineConfig) -> int:
    """The same, and a token of each running stream."""
    return longest_short_prompt(config) + config.max_running_requests


class Chunk(NamedTuple):
    """`length` tokens of a sequence from `start`; `samples` when it reaches the sequence's end. A tuple, because a step
    makes as many as there are requests."""

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
        return any(chunk.sequence.mask.media(chunk.start, chunk.end) for chunk in self.chunks if not chunk.is_decode)

    @property
    def has_loras(self) -> bool:
        """Whether any chunk takes a LoRA adapter; known before anything touches the device."""
        return any(chunk.sequence.lora is not None for chunk in self.chunks)

    @property
    def is_decode_only(self) -> bool:
        """Whether every chunk is one decoded token."""
        return not self.chunks or self.chunks[-1].is_decode

    @property
    def tokens(self) -> int:
        """Tokens computed by the step."""
        return sum([chunk.length for chunk in self.chunks])


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
        self._longest_short_prompt = longest_short_prompt(config)
        self._last_step_was_short = False
        self._free_rows = list(range(config.max_running_requests))
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
        if self.waiting or len(plan.chunks) < len(self.running):
            self._plan_prompts(plan)
        return plan

    def plan_ahead(self) -> Plan | None:
        """The step after the one that is being computed, before that one's tokens are read; None where it depends on
        them, or where a waiting sequence can come in.

        So it only decodes, all sequences that surely go on; one that turns out to have ended is computed in vain.
        """
        plan, growing, border = Plan(), [], self._long_factor_border
        for sequence in self.running:
            length = len(sequence.tokens)
            if not sequence.is_decoding or (border and not sequence.has_its_factors(border)):
                return None
            if length - sequence.prompt_length < sequence.request.sampling.max_new_tokens:
                plan.chunks.append(Chunk(sequence, sequence.computed, 1, True))
                if length > len(sequence.pages) * self._page_size:
                    growing.append(sequence)  # by one page, since it grows token by token
        if not plan.chunks or len(growing) > self._pool.available or self._lets_somebody_in(len(plan.chunks)):
            return None
        for sequence in growing:
            self._grow(sequence, len(sequence.tokens), plan)
        return plan

    def begun(self, chunk: Chunk) -> bool:
        """Record that a chunk is being computed: what it samples is UNREAD. Whether it samples."""
        sequence, start, length, _ = chunk
        sequence.computed = start + length
        samples = sequence.computed == len(sequence.tokens)
        if samples:
            sequence.tokens.append(UNREAD)
        return samples

    def taken_back(self, chunk: Chunk) -> None:
        """Record that a chunk which was begun must be computed again."""
        sequence = chunk.sequence
        while sequence.generated and sequence.tokens[-1] == UNREAD:
            sequence.tokens.pop()
        sequence.computed = chunk.start

    def computed(self, chunk: Chunk) -> None:
        """Record that a chunk's KV is in its pages: share full pages, let go of media that are behind it."""
        sequence, start, length, _ = chunk
        end = start + length
        sequence.computed = max(sequence.computed, end)  # the chunk after it may have begun
        full_before, full = start // self._page_size, end // self._page_size
        if full > full_before:
            keys = sequence.page_keys(self._page_size, full, first=full_before)
            for key, page in zip(keys, sequence.pages[full_before:full], strict=True):
                self._prefix_cache.register(key, page)
        if sequence.pinned:
            self._encoder.release_passed(sequence)

    def free(self, sequence: Sequence) -> None:
        """Take everything back from a sequence, whatever state it is in. Freeing twice is harmless."""
        if sequence.status is Status.RUNNING:
            self._stop(sequence)
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
        rows = sorted([*self._free_rows, *(sequence.row for sequence in self.running)])
        if rows != list(range(self._max_running)):
            raise AssertionError("a row is lost or taken twice")

    def _lets_somebody_in(self, running: int) -> bool:
        """Whether the head of the queue has a place beside so many others."""
        has_row = bool(self.waiting) and running < self._max_running
        return has_row and self._shared_pages_where_it_fits(self.waiting[0]) is not None

    def _cross_border(self) -> None:
        """Sequences that have outgrown the short rotary factors begin anew under the long ones."""
        for sequence in self.running if self._long_factor_border else ():
            if sequence.take_factors(self._long_factor_border):
                self._give_back(sequence)

    def _plan_decodes(self, plan: Plan) -> None:
        chunks, page_size, running = plan.chunks, self._page_size, Status.RUNNING
        for sequence in list(self.running):
            if sequence.status is not running or not sequence.is_decoding:  # an elder one may just have preempted it
                continue
            length = len(sequence.tokens)
            if length <= len(sequence.pages) * page_size or self._grow(sequence, length, plan):
                chunks.append(Chunk(sequence, sequence.computed, 1, True))

    def _plan_prompts(self, plan: Plan) -> None:
        """A short step, where one is due; else all prompts in order of arrival."""
        self._last_step_was_short = not self._last_step_was_short and self._plan_short_prompts(plan)
        if not self._last_step_was_short:
            self._plan_prefills(plan)
            self._admit_waiting(plan)

    def _plan_short_prompts(self, plan: Plan) -> bool:
        """Start short prompts that a longer one keeps waiting, without taking anything from it; whether there are any.

        A prompt that waits itself keeps only those waiting that order of arrival would not reach in this step.
        """
        under_way = [one for one in self.running if not one.is_decoding]
        is_one_under_way = is_behind_longer_one = any(one.remaining > self._longest_short_prompt for one in under_way)
        room = self._max_step_tokens - plan.tokens
        room_of_short_ones = min(room, self._longest_short_prompt)
        rows_ahead, tokens_ahead = len(self.running), sum(one.remaining for one in under_way)
        pages_ahead = sum(self._pages_for(one.length) - len(one.pages) for one in under_way)
        has_started = False
        for sequence in list(islice(self.waiting, _SHORT_PROMPTS_LOOKED_FOR)):
            start = self.cached_tokens(sequence)
            remaining = sequence.length - start
            is_kept_waiting = is_behind_longer_one and (is_one_under_way or tokens_ahead + remaining > room)
            may_start = remaining <= room_of_short_ones and rows_ahead < self._max_running
            is_text = not sequence.mask.media(start, sequence.length)
            if is_kept_waiting and may_start and is_text and self._start(sequence, pages_ahead):
                self.waiting.remove(sequence)
                self._plan_chunk(sequence, plan)
                room_of_short_ones -= remaining
                has_started = True
            else:
                is_behind_longer_one = is_behind_longer_one or remaining > self._longest_short_prompt
                tokens_ahead += remaining
                pages_ahead += self._pages_for(sequence.length)
            rows_ahead += 1
        return has_started

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

    def _start(self, sequence: Sequence, reserved_pages: int = 0) -> bool:
        """Make a waiting sequence run from what the prefix cache holds of it, if all its tokens fit right now, beside
        pages that are reserved for others.

        Asking for room for all of them, though pages are taken chunk by chunk, keeps long prompts from preempting
        each other half way.
        """
        sequence.take_factors(self._long_factor_border)  # it may have been preempted just when it crossed the border
        shared = self._shared_pages_where_it_fits(sequence, reserved_pages)
        if shared is None:
            return False
        for page in shared:
            self._pool.retain(page)
        sequence.pages = list(shared)
        sequence.computed = len(shared) * self._page_size
        self._record_start(sequence)
        sequence.status = Status.RUNNING
        sequence.row = heappop(self._free_rows)
        insort(self.running, sequence, key=lambda one: one.number)
        return True

    def _shared_pages_where_it_fits(self, sequence: Sequence, reserved_pages: int = 0) -> list[int] | None:
        """What the prefix cache holds of a waiting sequence; None where not all its tokens fit beside the others."""
        shared = self._prefix_cache.match(self._shareable_keys(sequence))
        revived = sum(self._pool.is_kept(page) for page in shared)
        fits = self._pages_for(sequence.length) - len(shared) <= self._pool.available - revived - reserved_pages
        return shared if fits else None

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
        self._stop(sequence)
        self._give_back(sequence)
        self._encoder.drop_unreserved(plan.encode_jobs)
        sequence.status = Status.WAITING
        sequence.preemptions += 1
        self.preemptions += 1
        insort(self.waiting, sequence, key=lambda one: one.number)

    def _stop(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        heappush(self._free_rows, sequence.row)
        sequence.row = -1

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
