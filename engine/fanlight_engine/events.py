"""What a caller receives while a request runs, as plain frozen data, in this order:

    Accepted, (Progress | Delta)*, Finished, Usage

A request-wide failure is an exception instead, raised out of the same iterator. Durations are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from fanlight_engine.request import FinishReason, Modality


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request passed admission. Counts are of the expanded prompt."""

    request_id: str
    prompt_tokens: int
    image_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a request stands before its first token; also the heartbeat of a silent stream.

    `queue_position` is 0 once the request runs.
    """

    queue_position: int = 0
    images_encoded: int = 0
    images_total: int = 0
    prefill_tokens_done: int = 0
    prefill_tokens_total: int = 0


class Token(msgspec.Struct, frozen=True, gc=False):
    """One generated token; `logprob` is natural log, under the distribution before temperature; None unless asked."""

    id: int
    logprob: float | None = None


class Delta(msgspec.Struct, frozen=True, gc=False):
    """New text and the tokens it came from. Never a partial character nor part of a stop string.

    Of these there are as many as tokens; a Struct is made in less than a tenth of the time of a frozen dataclass.
    """

    index: int
    text: str
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The one terminal event of an output."""

    index: int
    reason: FinishReason
    stop_sequence: str | None = None
    completion_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time went, in seconds. Stages that did not happen are 0."""

    queue: float = 0.0
    decode_media: float = 0.0
    preprocess_media: float = 0.0
    encode_images: float = 0.0
    prefill: float = 0.0
    time_to_first_token: float = 0.0
    inter_token_mean: float = 0.0
    total: float = 0.0


class EncoderUse(StrEnum):
    """What the vision tower did for one picture or clip of a request."""

    ENCODED = "encoded"
    """It ran for this request."""
    CACHED = "cached"
    """The embeddings, or the computed pages that they are part of, were known."""
    PROVIDED = "provided"
    """The request brought the embeddings."""


@dataclass(frozen=True, slots=True)
class MediaUsage:
    """One picture or clip of the request, in the request's order. `tokens` are its positions in the expanded prompt,
    separators included; `embeddings` those of them that take an embedding."""

    modality: Modality
    tokens: int
    embeddings: int
    encoder: EncoderUse


@dataclass(frozen=True, slots=True)
class Usage:
    """Token accounting over the expanded prompt; sent last and once."""

    prompt_tokens: int
    image_tokens: int
    cached_tokens: int
    completion_tokens: int
    images: int = 0
    encoder_cache_hits: int = 0
    preemptions: int = 0
    seed: int = 0
    media: tuple[MediaUsage, ...] = ()
    timings: Timings = field(default_factory=Timings)


Event = Accepted | Progress | Delta | Finished | Usage
