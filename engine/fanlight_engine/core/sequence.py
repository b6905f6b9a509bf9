"""A request inside the core: its tokens, its pages, how far it is computed. Knows no tensors.

Three lengths tell everything about where a sequence stands:

    |<-------- computed -------->|<---- remaining ---->|
    |<---------- prompt_length ---------->|<-generated->|
    |<--------------------- length -------------------->|

A step computes a chunk of the remaining tokens. When it reaches the end it samples the next one, so a running decode
always has exactly one remaining token. Preemption sets computed back to 0 and keeps the tokens; so does outgrowing the
short rotary factors.

While the device computes a step, the token that it will sample stands in the sequence as UNREAD: lengths are right, and
the step after it can be planned.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum

from fanlight_engine.core.image_mask import ImageMask
from fanlight_engine.core.messages import AddRequest, CoreTimings
from fanlight_engine.core.prefix_cache import next_key, root_key
from fanlight_engine.core.spans import NO_SPANS, Spans
from fanlight_engine.lora import ServedLora

UNREAD = -1
"""A token that a step samples which is not read yet."""


class Status(Enum):
    """Where a sequence is; the scheduler moves it."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True)
class StageClock:
    """Moments of time.monotonic() that timings are made of; None until they happen."""

    arrival: float
    first_step: float | None = None
    first_token: float | None = None
    encode_seconds: float = 0.0

    def timings(self) -> CoreTimings:
        """Durations so far; stages that have not happened are 0."""
        first_step = self.first_step if self.first_step is not None else time.monotonic()
        first_token = self.first_token if self.first_token is not None else first_step
        return CoreTimings(
            queue=max(0.0, first_step - self.arrival),
            encode_images=self.encode_seconds,
            prefill=max(0.0, first_token - first_step - self.encode_seconds),
        )


@dataclass(slots=True, eq=False)
class Sequence:
    """One request. `number` orders by arrival; filled by the scheduler unless said otherwise.

    What decides whether it is decoding is read for every sequence in every step, so it is kept where reading is cheap.
    """

    request: AddRequest
    mask: ImageMask
    spans: Spans = NO_SPANS
    lora: ServedLora | None = None
    """The adapter that answers; None for the checkpoint itself."""
    number: int = 0
    row: int = -1
    """Its own among the rows of running sequences; -1 while it does not run."""
    status: Status = Status.WAITING
    tokens: list[int] = field(default_factory=list)
    """Prompt and generated ids; the engine appends."""
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    """Only grows while it runs; what was given back is not used again, the next pages are another list."""
    pinned: set[bytes] = field(default_factory=set)
    """Digests of the media whose embeddings this sequence's next chunks need."""
    encoded_here: set[int] = field(default_factory=set)
    """Numbers of the media that the tower ran for on this request's behalf; filled by the engine."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache when it first ran."""
    preemptions: int = 0
    long_factors: bool = False
    """Whether its keys are rotated by the long factors of LongRoPE."""
    clock: StageClock = field(init=False)
    prompt_length: int = field(init=False)
    """Tokens of the expanded prompt."""
    _keys: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt_ids)
        self.prompt_length = len(self.tokens)
        self.clock = StageClock(self.request.arrival or time.monotonic())

    @property
    def id(self) -> str:
        """The request id."""
        return self.request.request_id

    @property
    def length(self) -> int:
        """Prompt and generated tokens."""
        return len(self.tokens)

    @property
    def generated(self) -> int:
        """Tokens sampled so far."""
        return self.length - self.prompt_length

    @property
    def remaining(self) -> int:
        """Tokens whose KV is not computed yet."""
        return self.length - self.computed

    @property
    def is_decoding(self) -> bool:
        """Whether exactly the last sampled token is left to compute."""
        return self.computed >= self.prompt_length and self.computed == len(self.tokens) - 1

    def page_keys(self, page_size: int, pages: int, first: int = 0) -> list[bytes]:
        """Prefix-cache keys of the pages [first, pages), which must be full, as must those before them."""
        assert pages * page_size <= self.length
        while len(self._keys) < pages:
            start, end = len(self._keys) * page_size, (len(self._keys) + 1) * page_size
            previous = self._keys[-1] if self._keys else self._root_key()
            spans = self.spans.beginning_between(start, end)
            block = self.tokens[start : max([end, *(span.end for span in spans)])]
            self._keys.append(next_key(previous, block, start, self.mask, self.request.media, spans))
        return self._keys[first:pages]

    def take_factors(self, border: int) -> bool:
        """Take the rotary factors for the length it has now; whether they are others, and what was computed is void.

        A sequence of more than `border` tokens takes the long ones for all its positions; 0 = there are no long ones.
        """
        is_long = 0 < border < self.length
        if is_long == self.long_factors:
            return False
        self.long_factors = is_long
        self._keys = []
        return True

    def has_its_factors(self, border: int) -> bool:
        """Whether `take_factors` would change nothing."""
        return (0 < border < self.length) == self.long_factors

    def media_needed_with(self, number: int) -> list[int]:
        """A medium that is ahead and those that have to be computed with it, but for what is computed already."""
        return [one for one in self.spans.media_with(number) if self.mask.last_positions[one] >= self.computed]

    def media_available(self) -> int:
        """Media that need no more encoding: behind the computed tokens or encoded already."""
        return sum(
            last < self.computed or number in self.encoded_here or medium.digest in self.pinned
            for number, (medium, last) in enumerate(zip(self.request.media, self.mask.last_positions, strict=True))
        )

    def _root_key(self) -> bytes:
        return root_key(self.request.cache_salt, self.lora.digest if self.lora else b"", self.long_factors)
