"""An EngineClient that answers from a script; every message goes through the seam's encoding, as in another process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import numpy as np

from fanlight_engine.client import CoreFacts, CoreStatistics, error_of
from fanlight_engine.core import messages
from fanlight_engine.core.messages import (
    AbortRequest,
    AddRequest,
    Admitted,
    Completed,
    CoreTimings,
    Encoded,
    EncodeRequest,
    FromCore,
    Generated,
    Prefilled,
    Rejected,
    ToCore,
)
from fanlight_engine.errors import EngineStoppedError
from fanlight_engine.request import FinishReason
from fanlight_engine.tensor_data import tensor_data_of

FACTS = CoreFacts(context_length=512, page_size=16, pages=64, vision_cache_bytes=1 << 20, embedding_row_bytes=256)


class ScriptedStream:
    """One request's messages; what is sent before it is read comes as one batch."""

    def __init__(self) -> None:
        self._waiting: list[FromCore] = []
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._ended = False

    def send(self, *sent: FromCore) -> None:
        self._waiting += [messages.decode_from_core(messages.encode(message)) for message in sent]
        self._changed.set()

    def end(self, error: Exception | None = None) -> None:
        self._ended, self._error = True, error
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[list[FromCore]]:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._waiting:
                batch, self._waiting = self._waiting, []
                yield batch
            if self._ended:
                if self._error is not None:
                    raise self._error
                return


class ScriptedClient:
    """`script(request)` gives the messages that answer a request at once; None leaves it to the test.

    `encode_script(request)` gives the one message that answers an encode request.
    """

    def __init__(
        self,
        script: Callable[[AddRequest], list[FromCore]] | None = None,
        facts: CoreFacts = FACTS,
        encode_script: Callable[[EncodeRequest], Encoded | Rejected] | None = None,
    ) -> None:
        self._script = script
        self._encode_script = encode_script or (lambda request: encoded(request, facts))
        self._facts = facts
        self.received: list[ToCore] = []
        self.streams: dict[str, ScriptedStream] = {}

    @property
    def facts(self) -> CoreFacts:
        return self._facts

    @property
    def aborted(self) -> list[str]:
        return [message.request_id for message in self.received if isinstance(message, AbortRequest)]

    @property
    def added(self) -> list[AddRequest]:
        return [message for message in self.received if isinstance(message, AddRequest)]

    async def start(self) -> None:
        pass

    def submit(self, request: AddRequest) -> ScriptedStream:
        self._receive(request)
        stream = self.streams[request.request_id] = ScriptedStream()
        if self._script is not None:
            stream.send(*self._script(request))
        return stream

    async def encode(self, request: EncodeRequest) -> Encoded:
        self._receive(request)
        said = messages.decode_from_core(messages.encode(self._encode_script(request)))
        if isinstance(said, Rejected):
            raise error_of(said)
        assert isinstance(said, Encoded)
        return said

    def abort(self, request_id: str) -> None:
        self._receive(AbortRequest(request_id))
        if request_id in self.streams:
            self.streams[request_id].end()

    async def statistics(self) -> CoreStatistics:
        return CoreStatistics()

    async def check_integrity(self) -> None:
        pass

    async def wait_until_stopped(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        for stream in self.streams.values():
            stream.end(EngineStoppedError("the core has stopped"))

    def _receive(self, message: ToCore) -> None:
        self.received.append(messages.decode_to_core(messages.encode(message)))


def admitted(request_id: str, cached_tokens: int = 0) -> Admitted:
    return Admitted(request_id, cached_tokens, queue_position=0)


def completed(request_id: str, reason: FinishReason = FinishReason.STOP) -> Completed:
    return Completed(request_id, reason, preemptions=2)


def prefilled(request_id: str) -> Prefilled:
    timings = CoreTimings(queue=0.1, encode_images=0.2, prefill=0.3)
    return Prefilled(request_id, cached_tokens=3, encoded_media=(), timings=timings)


def encoded(request: EncodeRequest, facts: CoreFacts = FACTS, was_cached: bool = False) -> Encoded:
    """Embeddings of ones, as many as the medium has rows, in float32."""
    ones = np.ones((request.media.embedding_rows, facts.embedding_row_bytes // 4), dtype=np.float32)
    return Encoded(request.request_id, {messages.EMBEDDINGS: tensor_data_of(ones)}, was_cached)


def saying(ids: list[int], reason: FinishReason = FinishReason.STOP) -> Callable[[AddRequest], list[FromCore]]:
    """A script that admits, generates `ids` one message each, and completes."""

    def script(request: AddRequest) -> list[FromCore]:
        name = request.request_id
        logprobs = (-0.25,) if request.sampling.logprobs else ()
        generated = (Generated(name, (one,), logprobs) for one in ids)
        return [admitted(name), prefilled(name), *generated, completed(name, reason)]

    return script
