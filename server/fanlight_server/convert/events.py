"""Engine events -> messages of the server. No message made here exceeds 3 MiB.

Durations become google.protobuf.Duration; stages that did not happen stay unset, so that 0 never means "not measured".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.duration_pb2 import Duration
from msgspec.structs import replace

from fanlight.v1 import chat_pb2, events_pb2, inference_pb2
from fanlight_engine.events import (
    Accepted,
    Delta,
    EncoderUse,
    Event,
    Finished,
    MediaUsage,
    Progress,
    Timings,
    Usage,
)
from fanlight_engine.request import FinishReason, OutputOptions
from fanlight_server.active_requests import CancelOutcome
from fanlight_server.convert.failures import failure_of
from fanlight_server.convert.values import MODALITIES, duration_of, refuse_oversized
from fanlight_server.status import ErrorReason, Refusal

_MAX_DELTA_CHARACTERS = 1 << 18
_MAX_DELTA_TOKENS = 1 << 16

_FINISH_REASONS = {
    FinishReason.STOP: events_pb2.FINISH_REASON_STOP,
    FinishReason.STOP_SEQUENCE: events_pb2.FINISH_REASON_STOP_SEQUENCE,
    FinishReason.LENGTH: events_pb2.FINISH_REASON_LENGTH,
    FinishReason.CONTEXT_FULL: events_pb2.FINISH_REASON_CONTEXT_FULL,
    FinishReason.CANCELLED: events_pb2.FINISH_REASON_CANCELLED,
    FinishReason.INTERRUPTED: events_pb2.FINISH_REASON_INTERRUPTED,
    FinishReason.ERROR: events_pb2.FINISH_REASON_ERROR,
}

_ENCODER_USES = {
    EncoderUse.ENCODED: events_pb2.ENCODER_USE_ENCODED,
    EncoderUse.CACHED: events_pb2.ENCODER_USE_CACHED,
    EncoderUse.PROVIDED: events_pb2.ENCODER_USE_PROVIDED,
}

_CANCEL_OUTCOMES = {
    CancelOutcome.CANCELLED: inference_pb2.CANCEL_OUTCOME_CANCELLED,
    CancelOutcome.FINISHED: inference_pb2.CANCEL_OUTCOME_FINISHED,
    CancelOutcome.UNKNOWN: inference_pb2.CANCEL_OUTCOME_UNKNOWN,
}

_ANSWER_FAILED = Refusal(ErrorReason.INTERNAL, "this answer failed; nothing in the request is known to be wrong")


def stream_response(
    sequence: int, event: Event, request_id: str, seed: int | None
) -> inference_pb2.GenerateStreamResponse:
    """One event of GenerateStream. `request_id` and `seed` are told in accepted."""
    if isinstance(event, Delta):  # nearly all of them; filled in place, which takes a third of the time
        response = inference_pb2.GenerateStreamResponse(sequence=sequence)
        _fill_delta(response.delta, event)
        return response
    name, message = _event_field(event, request_id, seed)
    return inference_pb2.GenerateStreamResponse(sequence=sequence, **{name: message})


def chat_event(
    sequence: int, turn_id: str, event: Event, request_id: str = "", seed: int | None = None
) -> chat_pb2.ChatResponse:
    """One event of a chat turn; of the chat as a whole when `turn_id` is empty."""
    name, message = _event_field(event, request_id, seed)
    return chat_pb2.ChatResponse(sequence=sequence, turn_id=turn_id, **{name: message})


def chat_ready(sequence: int, model: str) -> chat_pb2.ChatResponse:
    """The chat is set up, and `model` answers."""
    return chat_pb2.ChatResponse(sequence=sequence, ready=chat_pb2.ChatReady(model=model))


def chat_turn_error(sequence: int, turn_id: str, refusal: Refusal) -> chat_pb2.ChatResponse:
    """The turn, or another message of the client, was refused or failed."""
    return chat_pb2.ChatResponse(sequence=sequence, turn_id=turn_id, turn_error=failure_of(refusal))


def chat_going_away(sequence: int, seconds_left: float) -> chat_pb2.ChatResponse:
    """The server drains."""
    return chat_pb2.ChatResponse(
        sequence=sequence, going_away=chat_pb2.ChatGoingAway(time_left=duration_of(seconds_left))
    )


def cancel_response(outcome: CancelOutcome) -> inference_pb2.CancelResponse:
    """What a cancellation found."""
    return inference_pb2.CancelResponse(outcome=_CANCEL_OUTCOMES[outcome])


class WholeAnswer:
    """Collects the events of one generation into the response of Generate."""

    def __init__(self, request_id: str, seed: int | None) -> None:
        self._texts: list[str] = []
        self._response = inference_pb2.GenerateResponse(request_id=request_id, seed=seed)
        self._answer = self._response.answers.add()

    def take(self, event: Event) -> None:
        """Add the next event."""
        match event:
            case Delta():
                self._texts.append(event.text)
                self._answer.tokens.extend(_delta(event).tokens)
            case Finished():
                self._answer.finished.CopyFrom(_finished(event))
            case Usage():
                self._response.usage.CopyFrom(_usage(event))
            case _:
                pass  # a unary call has no room for acceptance and progress

    def response(self) -> inference_pb2.GenerateResponse:
        """The response after the last event. Raises ServiceError when it is too large for one message."""
        self._answer.text = "".join(self._texts)
        return refuse_oversized(self._response, "use GenerateStream")


def visible_events(event: Event, output: OutputOptions) -> Iterable[Event]:
    """The event as its reader asked for it: without text or tokens that were not, in pieces that fit a message."""
    if not isinstance(event, Delta):
        return (event,)
    wants_tokens = output.token_ids or output.logprobs
    if (event.text and not output.text) or (event.tokens and not wants_tokens):
        event = replace(event, text=event.text if output.text else "", tokens=event.tokens if wants_tokens else ())
    if not event.text and not event.tokens:
        return ()
    return (event,) if _fits(event) else _pieces(event)


def _fits(delta: Delta) -> bool:
    return len(delta.text) <= _MAX_DELTA_CHARACTERS and len(delta.tokens) <= _MAX_DELTA_TOKENS


def _pieces(delta: Delta) -> Iterator[Delta]:
    """A reader that stood still for long gets much at once."""
    if _fits(delta):
        yield delta
        return
    text_half, tokens_half = (len(delta.text) + 1) // 2, (len(delta.tokens) + 1) // 2
    yield from _pieces(replace(delta, text=delta.text[:text_half], tokens=delta.tokens[:tokens_half]))
    yield from _pieces(replace(delta, text=delta.text[text_half:], tokens=delta.tokens[tokens_half:]))


def _event_field(event: Event, request_id: str, seed: int | None) -> tuple[str, Any]:
    """The name of the oneof's field, and its message."""
    match event:
        case Accepted():
            return "accepted", _accepted(event, request_id, seed)
        case Progress():
            return "progress", _progress(event)
        case Delta():
            return "delta", _delta(event)
        case Finished():
            return "finished", _finished(event)
        case Usage():
            return "usage", _usage(event)


def _accepted(event: Accepted, request_id: str, seed: int | None) -> events_pb2.Accepted:
    return events_pb2.Accepted(
        request_id=request_id,
        prompt_tokens=event.prompt_tokens,
        image_tokens=event.image_tokens,
        cached_tokens=event.cached_tokens,
        seed=seed,
    )


def _progress(event: Progress) -> events_pb2.Progress:
    has_images, has_prefill = event.images_total > 0, event.prefill_tokens_total > 0
    return events_pb2.Progress(
        queue_position=event.queue_position or None,
        images_encoded=event.images_encoded if has_images else None,
        images_total=event.images_total if has_images else None,
        prefill_tokens_done=event.prefill_tokens_done if has_prefill else None,
        prefill_tokens_total=event.prefill_tokens_total if has_prefill else None,
    )


def _delta(event: Delta) -> events_pb2.Delta:
    delta = events_pb2.Delta()
    _fill_delta(delta, event)
    return delta


def _fill_delta(delta: events_pb2.Delta, event: Delta) -> None:
    if event.index:
        delta.index = event.index
    delta.text = event.text
    for token in event.tokens:
        delta.tokens.add(id=token.id, logprob=token.logprob)


def _finished(event: Finished) -> events_pb2.Finished:
    failed = event.reason is FinishReason.ERROR
    return events_pb2.Finished(
        index=event.index,
        reason=_FINISH_REASONS[event.reason],
        stop_sequence=event.stop_sequence,
        completion_tokens=event.completion_tokens,
        error=failure_of(_ANSWER_FAILED) if failed else None,
    )


def _usage(event: Usage) -> events_pb2.Usage:
    return events_pb2.Usage(
        prompt_tokens=event.prompt_tokens,
        image_tokens=event.image_tokens,
        cached_tokens=event.cached_tokens,
        completion_tokens=event.completion_tokens,
        images=event.images,
        encoder_cache_hits=event.encoder_cache_hits,
        timings=_timings(event.timings),
        media=[_media_usage(one) for one in event.media],
    )


def _media_usage(one: MediaUsage) -> events_pb2.MediaUsage:
    return events_pb2.MediaUsage(
        modality=MODALITIES[one.modality],
        tokens=one.tokens,
        embeddings=one.embeddings,
        encoder=_ENCODER_USES[one.encoder],
    )


def _timings(timings: Timings) -> events_pb2.Timings:
    return events_pb2.Timings(
        queue=_measured(timings.queue),
        decode_media=_measured(timings.decode_media),
        preprocess=_measured(timings.preprocess_media),
        encode=_measured(timings.encode_images),
        prefill=_measured(timings.prefill),
        first_token=_measured(timings.time_to_first_token),
        inter_token=_measured(timings.inter_token_mean),
        total=_measured(timings.total),
    )


def _measured(seconds: float) -> Duration | None:
    return duration_of(seconds) if seconds > 0 else None
