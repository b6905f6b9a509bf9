"""What comes back: events and whole answers as plain frozen data, and the reader that joins events into an answer.

Times are seconds as floats; None means not measured. Events and finish reasons that a newer server may send are
tolerated: an unknown event is skipped, an unknown finish reason is an end like any other. This file does not know
calls: it reads messages that someone else received.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from fanlight.errors import FanlightError, error_from_failure
from fanlight.v1 import chat_pb2, events_pb2, inference_pb2
from fanlight.values import Modality, known_member, optional, optional_seconds, read_modality


class FinishReason(enum.StrEnum):
    """Why an answer ended. Each is final, UNKNOWN too: a reason newer than this client."""

    STOP = "stop"
    STOP_SEQUENCE = "stop_sequence"
    LENGTH = "length"
    CONTEXT_FULL = "context_full"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    ERROR = "error"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Token:
    """A generated token: its id, and the natural logarithm of its probability where that was asked for."""

    id: int
    logprob: float | None = None


@dataclass(frozen=True)
class Timings:
    """Where the time of a request went, in seconds on the server's clock; None for a stage that was not needed."""

    queue: float | None = None
    decode_media: float | None = None
    preprocess: float | None = None
    encode: float | None = None
    prefill: float | None = None
    first_token: float | None = None
    inter_token: float | None = None
    total: float | None = None


class EncoderUse(enum.StrEnum):
    """Whether the vision encoder ran for a picture or clip. PROVIDED: the request brought the embeddings."""

    ENCODED = "encoded"
    CACHED = "cached"
    PROVIDED = "provided"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class MediaUsage:
    """What one picture or clip took: positions in the prompt, how many of them took an embedding, and the encoder."""

    modality: Modality
    tokens: int
    embeddings: int
    encoder: EncoderUse


@dataclass(frozen=True)
class Usage:
    """What a request took. The last event of a generation. Tokens count the prompt after images were expanded.

    `images` counts pictures and clips, `image_tokens` the tokens of both; `media` tells each, in the prompt's order.
    """

    prompt_tokens: int
    image_tokens: int
    cached_tokens: int
    completion_tokens: int
    images: int
    encoder_cache_hits: int
    timings: Timings
    media: tuple[MediaUsage, ...] = ()


@dataclass(frozen=True)
class Accepted:
    """Event: the request passed every check and is queued. The seed repeats the answer when sent back."""

    request_id: str
    prompt_tokens: int
    image_tokens: int
    cached_tokens: int
    seed: int


@dataclass(frozen=True)
class Progress:
    """Event: what is happening before the first token. All None: only a sign of life."""

    queue_position: int | None = None
    images_encoded: int | None = None
    images_total: int | None = None
    prefill_tokens_done: int | None = None
    prefill_tokens_total: int | None = None


@dataclass(frozen=True)
class Delta:
    """Event: the next piece of an answer."""

    index: int
    text: str
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True)
class Finished:
    """Event: an answer ended. `error` is set with FinishReason.ERROR, `stop_sequence` with STOP_SEQUENCE."""

    index: int
    reason: FinishReason
    completion_tokens: int
    stop_sequence: str | None = None
    error: FanlightError | None = None


Event: TypeAlias = Accepted | Progress | Delta | Finished | Usage


@dataclass(frozen=True)
class Answer:
    """A whole answer. `tokens` is empty unless token_ids or logprobs were asked for."""

    text: str
    tokens: tuple[Token, ...]
    finish_reason: FinishReason
    stop_sequence: str | None
    usage: Usage | None
    request_id: str
    seed: int | None

    @property
    def token_ids(self) -> list[int]:
        """Ids of the tokens."""
        return [token.id for token in self.tokens]

    @property
    def logprobs(self) -> list[float | None]:
        """Log-probabilities of the tokens; None where they were not asked for."""
        return [token.logprob for token in self.tokens]


def read_event(response: inference_pb2.GenerateStreamResponse | chat_pb2.ChatResponse) -> Event | None:
    """The event of a streamed message; None for one that this client does not know."""
    kind = response.WhichOneof("event")
    reader = EVENT_READERS.get(kind) if kind else None
    return reader(getattr(response, kind)) if kind and reader else None


def read_accepted(message: events_pb2.Accepted) -> Accepted:
    """Reads the event of the same name."""
    return Accepted(
        request_id=message.request_id,
        prompt_tokens=message.prompt_tokens,
        image_tokens=message.image_tokens,
        cached_tokens=message.cached_tokens,
        seed=message.seed,
    )


def read_progress(message: events_pb2.Progress) -> Progress:
    """Reads the event of the same name."""
    return Progress(**{each.name: optional(message, each.name) for each in fields(Progress)})


def read_delta(message: events_pb2.Delta) -> Delta:
    """Reads the event of the same name."""
    return Delta(index=message.index, text=message.text, tokens=tuple(read_token(token) for token in message.tokens))


def read_token(message: events_pb2.Token) -> Token:
    """Reads one token; a logprob that is not set is None, not 0."""
    return Token(id=message.id, logprob=optional(message, "logprob"))


def read_finished(message: events_pb2.Finished) -> Finished:
    """Reads the event of the same name; a failure becomes an exception, which is not raised here."""
    return Finished(
        index=message.index,
        reason=read_finish_reason(message.reason),
        completion_tokens=message.completion_tokens,
        stop_sequence=optional(message, "stop_sequence"),
        error=error_from_failure(message.error) if message.HasField("error") else None,
    )


def read_finish_reason(value: int) -> FinishReason:
    """The reason for a value of the contract, UNKNOWN for one that this client does not know."""
    return known_member(FinishReason, events_pb2.FinishReason, "FINISH_REASON_", value)


def read_usage(message: events_pb2.Usage) -> Usage:
    """Reads the event of the same name."""
    return Usage(
        prompt_tokens=message.prompt_tokens,
        image_tokens=message.image_tokens,
        cached_tokens=message.cached_tokens,
        completion_tokens=message.completion_tokens,
        images=message.images,
        encoder_cache_hits=message.encoder_cache_hits,
        timings=read_timings(message.timings),
        media=tuple(read_media_usage(each) for each in message.media),
    )


def read_media_usage(message: events_pb2.MediaUsage) -> MediaUsage:
    """Reads the message of the same name."""
    return MediaUsage(
        modality=read_modality(message.modality),
        tokens=message.tokens,
        embeddings=message.embeddings,
        encoder=known_member(EncoderUse, events_pb2.EncoderUse, "ENCODER_USE_", message.encoder),
    )


def read_timings(message: events_pb2.Timings) -> Timings:
    """Durations in seconds; None where not set."""
    return Timings(**{each.name: optional_seconds(message, each.name) for each in fields(Timings)})


EVENT_READERS: dict[str, Callable[[Any], Event]] = {
    "accepted": read_accepted,
    "progress": read_progress,
    "delta": read_delta,
    "finished": read_finished,
    "usage": read_usage,
}


def read_answer(response: inference_pb2.GenerateResponse) -> Answer:
    """The answer of a unary call. Raises the answer's own error if it ended with one."""
    reader = AnswerReader(response.request_id)
    reader.seed = response.seed
    for answer in response.answers[:1]:
        reader.take(read_delta(events_pb2.Delta(text=answer.text, tokens=answer.tokens)))
        reader.take(read_finished(answer.finished))
    reader.take(read_usage(response.usage))
    if reader.error:
        raise reader.error
    return reader.answer


class AnswerReader:
    """Joins the events of one request into its answer."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.seed: int | None = None
        self.usage: Usage | None = None
        self.finished: Finished | None = None
        self._pieces: list[str] = []
        self._tokens: list[Token] = []

    def take(self, event: Event) -> None:
        """Adds the next event."""
        if isinstance(event, Delta):
            self._pieces.append(event.text)
            self._tokens.extend(event.tokens)
        elif isinstance(event, Accepted):
            self.request_id, self.seed = event.request_id or self.request_id, event.seed
        elif isinstance(event, Finished):
            self.finished = event
            if event.error:
                event.error.request_id = self.request_id
        elif isinstance(event, Usage):
            self.usage = event

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The tokens so far."""
        return tuple(self._tokens)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended; None while it has not."""
        return self.finished.reason if self.finished else None

    @property
    def error(self) -> FanlightError | None:
        """What made the answer end; None unless it failed."""
        return self.finished.error if self.finished else None

    @property
    def answer(self) -> Answer:
        """The answer. One that was cut off, by closing or losing its stream, counts as cancelled."""
        return Answer(
            text=self.text,
            tokens=self.tokens,
            finish_reason=self.finish_reason or FinishReason.CANCELLED,
            stop_sequence=self.finished.stop_sequence if self.finished else None,
            usage=self.usage,
            request_id=self.request_id,
            seed=self.seed,
        )
