"""InferenceService: Generate, GenerateStream, Chat and Cancel.

How a request ends when it is stopped:

    Cancel by id                 finished with CANCELLED, then usage; the status is OK. Before the request was accepted,
                                 these two are all; before it came, no work is done at all
    deadline, or a lost stream   freed at once; DEADLINE_EXCEEDED or CANCELLED is all that is left to say

Nothing is written before a request is accepted, not even headers: they would commit the call and disable retries.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from fanlight.v1 import inference_pb2_grpc
from fanlight_engine.events import Delta, Event, Finished, Progress, Usage
from fanlight_engine.request import FinishReason, Generation
from fanlight_server.active_requests import ANONYMOUS, ActiveRequests
from fanlight_server.backend import Backend
from fanlight_server.convert import events as to_wire
from fanlight_server.convert import requests as from_wire
from fanlight_server.lifecycle import Lifecycle
from fanlight_server.rpc.call import current_call
from fanlight_server.rpc.paced_writer import HEARTBEAT_SECONDS, PacedWriter
from fanlight_server.services.chat import SETUP_TIMEOUT_SECONDS, Chat
from fanlight_server.status import fields_named


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """How long a stream stays silent before it shows a sign of life, and how long a chat waits for its setup."""

    heartbeat: float = HEARTBEAT_SECONDS
    chat_setup: float = SETUP_TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class _Run:
    """A request that holds its id, and its events."""

    request_id: str
    generation: Generation
    events: AsyncGenerator[Event, None]


class InferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """One per server."""

    def __init__(self, backend: Backend, lifecycle: Lifecycle, times: StreamTimes) -> None:
        self._backend = backend
        self._lifecycle = lifecycle
        self._times = times
        self._requests = ActiveRequests()

    async def Generate(self, request: Any, context: Any) -> Any:
        """The whole answer, when it is complete."""
        async with self._running(request) as run:
            answer = to_wire.WholeAnswer(run.request_id, run.generation.sampling.seed)
            async for event in run.events:
                current_call().count(event)
                answer.take(event)
            return answer.response()

    async def GenerateStream(self, request: Any, context: Any) -> None:
        """The events, as they come."""
        alive = partial(to_wire.stream_response, event=Progress(), request_id="", seed=None)
        writer = PacedWriter(context.write, alive, self._times.heartbeat)
        async with self._running(request) as run:
            output, seed = run.generation.output, run.generation.sampling.seed
            build = partial(to_wire.stream_response, request_id=run.request_id, seed=seed)
            first = await anext(run.events)  # it was accepted; or its end, if it was cancelled before
            current_call().count(first)
            await writer.send(build, first)
            async with writer.kept_alive():
                async for event in run.events:
                    if not isinstance(event, Delta):
                        current_call().count(event)
                    for piece in to_wire.visible_events(event, output):
                        await writer.send(build, piece)

    async def Chat(self, request_iterator: Any, context: Any) -> None:
        """A conversation of many turns."""
        self._lifecycle.require_serving()
        alive = partial(to_wire.chat_event, turn_id="", event=Progress())
        writer = PacedWriter(context.write, alive, self._times.heartbeat)
        chat = Chat(self._backend, self._requests, self._lifecycle, request_iterator, writer)
        await chat.run(self._times.chat_setup)

    async def Cancel(self, request: Any, context: Any) -> Any:
        """Always an outcome, also for ids that nobody knows."""
        request_id = from_wire.cancelled_request_id(request)
        return to_wire.cancel_response(self._requests.cancel(ANONYMOUS, request_id))

    @asynccontextmanager
    async def _running(self, request: Any) -> AsyncIterator[_Run]:
        """Hold the request's id, start it, and free it on every way out."""
        self._lifecycle.require_serving()
        request_id = from_wire.request_id_of(request)
        current_call().request_id = request_id
        generation = from_wire.generation_of(request, ANONYMOUS)
        stop = partial(self._backend.cancel, request_id)
        with self._requests.running(ANONYMOUS, request_id, stop) as wanted, fields_named(from_wire.below_generation):
            source = self._backend.generate(generation, request_id) if wanted else _cancelled_before_it_came()
            async with aclosing(source) as events:
                yield _Run(request_id, generation, events)


async def _cancelled_before_it_came() -> AsyncGenerator[Event, None]:
    yield Finished(0, FinishReason.CANCELLED)
    yield Usage(0, 0, 0, 0)
