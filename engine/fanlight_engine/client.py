"""EngineClient: the one seam between the front half and the core.

Servicers, commands and offline callers reach the core only through it. What crosses is `core.messages`; here is also
which exception a refusal of the core means. Nothing here knows tensors, text or the wire.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from fanlight_engine.checkpoints.families import Bidirectional
from fanlight_engine.core.memory_use import MemoryUse
from fanlight_engine.core.messages import AddRequest, Encoded, EncodeRequest, FromCore, Rejected
from fanlight_engine.errors import (
    CoreFailureError,
    DuplicateRequestError,
    EngineError,
    EngineStoppedError,
    InvalidRequestError,
    OverloadedError,
    Reason,
)
from fanlight_engine.lora import ServedLora


@dataclass(frozen=True, slots=True)
class CoreFacts:
    """What the front must know of the core's capacity.

    `context_length` bounds prompt + answer of one request, in tokens: the model's context or what the whole KV cache
    holds, whichever is smaller. `vision_cache_bytes` and `embedding_row_bytes` bound the media of one request. What
    of a prompt sees the whole of itself, as `bidirectional` says, is computed in one step, which has room for
    `longest_span` tokens of one request for certain.
    """

    context_length: int
    page_size: int
    pages: int
    vision_cache_bytes: int
    embedding_row_bytes: int
    dtype: str = ""
    """Number type of weights and KV cache, by torch's name for it."""
    attention: str = ""
    """The attention backend."""
    bidirectional: Bidirectional = Bidirectional.NONE
    longest_span: int = 0
    long_factor_border: int = 0
    """Tokens above which a sequence takes the long factors of LongRoPE; 0 where the model has one set."""
    loras: tuple[ServedLora, ...] = ()
    """The adapters that requests may name."""
    memory: MemoryUse = field(default_factory=MemoryUse)
    """What weights and caches take on the device of the model."""


@dataclass(frozen=True, slots=True)
class CoreStatistics:
    """Counters and gauges of the core at one moment; counters only grow."""

    steps: int = 0
    decode_steps: int = 0
    image_steps: int = 0
    """Steps that built an image mask and buffer for pictures or clips; text-only steps never do."""
    running_requests: int = 0
    waiting_requests: int = 0
    free_pages: int = 0
    """Pages no request holds, those kept only by the prefix cache included."""
    total_pages: int = 0
    waiting_encodes: int = 0
    """Media that are to be encoded without generating."""
    pinned_embeddings: int = 0
    vision_cache_bytes: int = 0
    images_encoded: int = 0
    """Pictures and clips that the vision tower ran for."""
    encoder_cache_hits: int = 0
    encoder_batches: int = 0
    prefix_cache_queries: int = 0
    prefix_cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0


class CoreStream(Protocol):
    """What the core says about one request."""

    def __aiter__(self) -> AsyncIterator[list[FromCore]]:
        """Batches of messages in order: all that arrived since the last one, so a slow reader gets fewer, larger ones.

        Ends after a terminal message (Completed, Rejected or Encoded). Raises EngineStoppedError when the core is gone.
        """
        ...


class EngineClient(Protocol):
    """Implemented in process; by a supervised subprocess and by replicas later, behind these very methods."""

    @property
    def facts(self) -> CoreFacts:
        """Capacity of the started core."""
        ...

    async def start(self) -> None:
        """Load the core; returns when it can compute. Raises StartupError."""
        ...

    def submit(self, request: AddRequest) -> CoreStream:
        """Queue a request. Its request_id must not be in use. Raises EngineStoppedError."""
        ...

    async def encode(self, request: EncodeRequest) -> Encoded:
        """The embeddings of one picture or clip; cancelling the call aborts it.

        Its request_id must not be in use. Raises EngineStoppedError, and what `error_of` makes of a refusal.
        """
        ...

    def abort(self, request_id: str) -> None:
        """Free a request wherever it is; its stream ends without a terminal message. Unknown ids are ignored."""
        ...

    async def statistics(self) -> CoreStatistics:
        """Counters and gauges between two steps."""
        ...

    async def check_integrity(self) -> None:
        """Raise AssertionError unless every page, pin and queue is accounted for."""
        ...

    async def wait_until_stopped(self) -> None:
        """Return when the core computes no more, because it was stopped or because it died."""
        ...

    async def stop(self) -> None:
        """Stop the core; open streams raise EngineStoppedError. Idempotent."""
        ...


def error_of(rejected: Rejected) -> EngineError:
    """The exception that a refusal or failure of the core means to the caller."""
    try:
        reason = Reason(rejected.reason)
    except ValueError:
        reason = Reason.ENGINE_FAILURE
    if reason is Reason.OVERLOADED:
        return OverloadedError(rejected.description, rejected.retry_after)
    if reason is Reason.SHUTTING_DOWN:
        return EngineStoppedError(rejected.description)
    if reason is Reason.ENGINE_FAILURE:
        return CoreFailureError(rejected.description)
    if reason is Reason.REQUEST_ID_IN_USE:
        return DuplicateRequestError(rejected.description)
    return InvalidRequestError(rejected.field, rejected.description, reason)
