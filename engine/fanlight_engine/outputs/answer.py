"""What the core says about one request -> the events its caller receives, with usage and timings.

Owns the counting and the clock of one answer; the text is OutputAssembler's. Knows nothing of tasks or the wire.
"""

from __future__ import annotations

import time
from itertools import repeat

from fanlight_engine.client import error_of
from fanlight_engine.core.messages import (
    Admitted,
    Completed,
    CoreTimings,
    FromCore,
    Generated,
    Prefilled,
    Progressed,
    Rejected,
)
from fanlight_engine.events import Accepted, EncoderUse, Event, Finished, MediaUsage, Progress, Timings, Usage
from fanlight_engine.inputs.preparation import MediaUse, PreparedRequest
from fanlight_engine.outputs.assembly import OutputAssembler
from fanlight_engine.request import FinishReason

_OUTPUT_INDEX = 0


class Answer:
    """One request's answer. `ended` once Finished and Usage were given; `core_ended` once the core needs no abort."""

    def __init__(self, prepared: PreparedRequest, assembler: OutputAssembler) -> None:
        self.ended = False
        self.core_ended = False
        self._prepared = prepared
        self._assembler = assembler
        self._cached_tokens = 0
        self._prefilled: Prefilled | None = None
        self._preemptions = 0
        self._first_token_at = 0.0
        self._last_token_at = 0.0

    def consume(self, batch: list[FromCore]) -> list[Event]:
        """The events of one batch, its tokens as one delta. Raises what the core's refusal or failure means."""
        events: list[Event] = []
        for message in batch:
            if isinstance(message, Generated):
                if self._generated(message):
                    return events + self.end(FinishReason.STOP_SEQUENCE)
                continue
            self._take_delta(events)
            if isinstance(message, Admitted):
                events.append(self._accepted(message))
                if message.queue_position:
                    events.append(self._progress(Progressed(message.request_id, message.queue_position, 0, 0)))
            elif isinstance(message, Progressed):
                events.append(self._progress(message))
            elif isinstance(message, Prefilled):
                self._prefilled = message
            elif isinstance(message, Rejected):
                self.core_ended = True
                raise error_of(message)
            else:
                assert isinstance(message, Completed), "a generation's stream has nothing else"
                self.core_ended = True
                self._preemptions = message.preemptions
                return events + self.end(message.reason)
        self._take_delta(events)
        return events

    def end(self, reason: FinishReason) -> list[Event]:
        """The last text, Finished and Usage."""
        self.ended = True
        self._assembler.finish()
        stop = self._assembler.stop
        finished = Finished(
            index=_OUTPUT_INDEX,
            reason=reason if stop is None else FinishReason.STOP_SEQUENCE,
            stop_sequence=stop,
            completion_tokens=self._assembler.completion_tokens,
        )
        events: list[Event] = []
        self._take_delta(events)
        return [*events, finished, self._usage()]

    def _accepted(self, message: Admitted) -> Accepted:
        self._cached_tokens = message.cached_tokens
        return Accepted(
            request_id=message.request_id,
            prompt_tokens=len(self._prepared.request.prompt_ids),
            image_tokens=self._prepared.image_tokens,
            cached_tokens=message.cached_tokens,
        )

    def _progress(self, message: Progressed) -> Progress:
        request = self._prepared.request
        return Progress(
            queue_position=message.queue_position,
            images_encoded=message.media_encoded,
            images_total=len(request.media),
            prefill_tokens_done=message.prefill_tokens_done,
            prefill_tokens_total=len(request.prompt_ids),
        )

    def _generated(self, message: Generated) -> bool:
        """True when a stop string was completed; tokens behind it are neither counted nor sent."""
        self._last_token_at = time.monotonic()
        self._first_token_at = self._first_token_at or self._last_token_at
        push, logprobs = self._assembler.push, message.logprobs
        if len(message.token_ids) == 1:  # as a rule
            return push(message.token_ids[0], logprobs[0] if logprobs else None)
        pairs = zip(message.token_ids, logprobs or repeat(None), strict=False)
        return any(push(token_id, logprob) for token_id, logprob in pairs)

    def _take_delta(self, events: list[Event]) -> None:
        delta = self._assembler.take()
        if delta is not None:
            events.append(delta)

    def _usage(self) -> Usage:
        request, prefilled = self._prepared.request, self._prefilled
        media = tuple(self._media_usage(use) for use in self._prepared.media)
        return Usage(
            prompt_tokens=len(request.prompt_ids),
            image_tokens=self._prepared.image_tokens,
            cached_tokens=self._cached_tokens if prefilled is None else prefilled.cached_tokens,
            completion_tokens=self._assembler.completion_tokens,
            images=len(request.media),
            encoder_cache_hits=0 if prefilled is None else sum(one.encoder is EncoderUse.CACHED for one in media),
            preemptions=self._preemptions,
            seed=request.sampling.seed,
            media=media,
            timings=self._timings(CoreTimings() if prefilled is None else prefilled.timings),
        )

    def _media_usage(self, use: MediaUse) -> MediaUsage:
        """Of a request that ended before its prefill nothing is known but what it brought; none of it was encoded."""
        medium = use.medium
        encoder = EncoderUse.CACHED
        if medium.input.is_embedded:
            encoder = EncoderUse.PROVIDED
        elif self._prefilled is not None and use.number in self._prefilled.encoded_media:
            encoder = EncoderUse.ENCODED
        return MediaUsage(medium.input.modality, len(medium.replacement.ids), medium.replacement.rows, encoder)

    def _timings(self, core: CoreTimings) -> Timings:
        arrival, tokens = self._prepared.request.arrival, self._assembler.completion_tokens
        return Timings(
            queue=core.queue,
            decode_media=self._prepared.decode_seconds,
            preprocess_media=self._prepared.preprocess_seconds,
            encode_images=core.encode_images,
            prefill=core.prefill,
            time_to_first_token=self._first_token_at - arrival if tokens else 0.0,
            inter_token_mean=(self._last_token_at - self._first_token_at) / (tokens - 1) if tokens > 1 else 0.0,
            total=time.monotonic() - arrival,
        )


def end_before_submission(reason: FinishReason, arrival: float) -> list[Event]:
    """The end of a request that was cancelled while its prompt was still being prepared."""
    timings = Timings(total=time.monotonic() - arrival)
    return [Finished(_OUTPUT_INDEX, reason), Usage(0, 0, 0, 0, timings=timings)]
