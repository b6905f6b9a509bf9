"""EngineClient with the core in a thread of this process: for tests, debugging and small models.

One thread owns the engine and steps it. The event loop talks to it through a queue of commands, and hears back in one
callback per step. With `serialise` every message goes through bytes on its way, as it would to another process.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.client import CoreFacts, CoreStatistics, error_of
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.build import Report, build_engine
from fanlight_engine.core.engine import Engine
from fanlight_engine.core.messages import (
    AbortRequest,
    AddRequest,
    Completed,
    Encoded,
    EncodeRequest,
    FromCore,
    Rejected,
    ToCore,
    decode_from_core,
    decode_to_core,
    encode,
)
from fanlight_engine.errors import EngineStoppedError

_log = logging.getLogger(__name__)
_TERMINAL = (Completed, Rejected, Encoded)


class InProcessStream:
    """Messages of one request. Used on the event loop only; see CoreStream."""

    def __init__(self) -> None:
        self._messages: list[FromCore] = []
        self._arrived: asyncio.Future[None] | None = None
        """What the reader waits for, if it does."""
        self._closed = False
        self._stopped = False

    def put(self, message: FromCore) -> None:
        """The next message."""
        self._messages.append(message)
        self._wake()

    def close(self, stopped: bool = False) -> None:
        """No more messages come; `stopped` when the core is gone."""
        self._closed = True
        self._stopped = self._stopped or stopped
        self._wake()

    async def __aiter__(self) -> AsyncIterator[list[FromCore]]:
        """Batches of all that arrived since the last one."""
        while True:
            if not self._messages and not self._closed:
                self._arrived = asyncio.get_running_loop().create_future()
                await self._arrived
            batch, self._messages = self._messages, []
            if batch:
                yield batch
            if self._stopped:
                raise EngineStoppedError("the engine stopped before the request was finished")
            if self._closed and not self._messages:
                return

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)


class InProcessClient:
    """The core in a thread."""

    def __init__(
        self,
        config: EngineConfig,
        checkpoint: Checkpoint,
        *,
        serialise: bool = False,
        report: Report = lambda line: None,
        build: Callable[..., Engine] = build_engine,
    ) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._serialise = serialise
        self._report = report
        self._build = build
        self._commands: queue.SimpleQueue[ToCore | Callable[[Engine], None] | None] = queue.SimpleQueue()
        self._streams: dict[str, InProcessStream] = {}
        self._draining: Counter[str] = Counter()
        """Aborts that the core has not carried out: messages under these ids are of the request that was aborted."""
        self._questions: set[asyncio.Future[Any]] = set()
        self._facts: CoreFacts | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False
        self._has_stopped = asyncio.Event()

    @property
    def facts(self) -> CoreFacts:
        """See EngineClient.facts."""
        assert self._facts is not None, "the client was not started"
        return self._facts

    async def start(self) -> None:
        """See EngineClient.start."""
        self._loop = asyncio.get_running_loop()
        built: asyncio.Future[CoreFacts] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(built,), name="fanlight-core", daemon=True)
        self._thread.start()
        self._facts = await built

    def submit(self, request: AddRequest) -> InProcessStream:
        """See EngineClient.submit."""
        return self._open(request)

    async def encode(self, request: EncodeRequest) -> Encoded:
        """See EngineClient.encode."""
        try:
            async for batch in self._open(request):
                for message in batch:
                    if isinstance(message, Rejected):
                        raise error_of(message)
                    if isinstance(message, Encoded):
                        return message
        finally:
            self.abort(request.request_id)  # does nothing once it was answered
        raise EngineStoppedError("the request was aborted before its media were encoded")

    def _open(self, request: AddRequest | EncodeRequest) -> InProcessStream:
        if self._stopped:
            raise EngineStoppedError("the engine is stopped")
        assert request.request_id not in self._streams, "request ids of running requests are unique"
        stream = self._streams[request.request_id] = InProcessStream()
        self._commands.put(self._to_core(request))
        return stream

    def abort(self, request_id: str) -> None:
        """See EngineClient.abort."""
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            stream.close()
            self._draining[request_id] += 1
            self._commands.put(self._to_core(AbortRequest(request_id)))

    async def statistics(self) -> CoreStatistics:
        """See EngineClient.statistics."""
        return await self._ask(lambda engine: engine.statistics())

    async def check_integrity(self) -> None:
        """See EngineClient.check_integrity."""
        await self._ask(lambda engine: engine.check_integrity())

    async def wait_until_stopped(self) -> None:
        """See EngineClient.wait_until_stopped."""
        await self._has_stopped.wait()

    async def stop(self) -> None:
        """See EngineClient.stop."""
        if self._thread is None:
            return
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)
        self._end_streams()

    # On the core's thread.

    def _run(self, built: asyncio.Future[CoreFacts]) -> None:
        try:
            engine = self._build(self._config, self._checkpoint, self._report)
        except BaseException as error:
            self._on_loop(self._end_streams)
            self._on_loop(_settle, built, None, error)
            return
        self._on_loop(_settle, built, engine.facts, None)
        try:
            while self._obey(engine):
                if engine.has_work:
                    self._tell(engine.step())
        except Exception:  # a fault of ours; every waiting request must hear of it, and health with them
            _log.exception("the core died")
        finally:
            self._on_loop(self._end_streams)

    def _obey(self, engine: Engine) -> bool:
        """Carry out all commands that wait; block for one when there is nothing to compute. False ends the core."""
        while True:
            try:
                command = self._commands.get(block=not engine.has_work)
            except queue.Empty:
                return True
            if command is None:
                return False
            if isinstance(command, AddRequest):
                self._tell([engine.add(command)])
            elif isinstance(command, EncodeRequest):
                answer = engine.encode(command)
                self._tell([answer] if answer is not None else [])
            elif isinstance(command, AbortRequest):
                engine.abort(command.request_id)
                self._on_loop(self._drained, command.request_id)
            else:
                command(engine)

    def _tell(self, messages: list[FromCore]) -> None:
        if messages:
            self._on_loop(self._deliver, [self._from_core(message) for message in messages])

    def _on_loop(self, callback: Callable[..., None], *arguments: Any) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop was closed under us; nobody is left to tell
            _log.debug("the event loop is closed; a message of the core was dropped")

    # On the event loop.

    def _deliver(self, messages: list[FromCore]) -> None:
        for message in messages:
            request_id = message.request_id
            stream = self._streams.get(request_id)
            if stream is None or request_id in self._draining:  # aborted meanwhile
                continue
            stream.put(message)
            if isinstance(message, _TERMINAL):
                stream.close()
                del self._streams[request_id]

    def _drained(self, request_id: str) -> None:
        self._draining[request_id] -= 1
        if not self._draining[request_id]:
            del self._draining[request_id]

    def _end_streams(self) -> None:
        self._stopped = True
        self._has_stopped.set()
        for stream in self._streams.values():
            stream.close(stopped=True)
        self._streams.clear()
        for question in self._questions:
            _settle(question, None, EngineStoppedError("the engine stopped before it answered"))

    async def _ask(self, question: Callable[[Engine], Any]) -> Any:
        """Run a function on the core's thread between two steps."""
        if self._stopped or self._thread is None:
            raise EngineStoppedError("the engine is stopped")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._questions.add(answer)
        answer.add_done_callback(self._questions.discard)

        def run(engine: Engine) -> None:
            try:
                result = question(engine)
            except Exception as error:  # the asker gets it; the core goes on
                self._on_loop(_settle, answer, None, error)
            else:
                self._on_loop(_settle, answer, result, None)

        self._commands.put(run)
        return await answer

    def _to_core(self, message: ToCore) -> ToCore:
        return decode_to_core(encode(message)) if self._serialise else message

    def _from_core(self, message: FromCore) -> FromCore:
        return decode_from_core(encode(message)) if self._serialise else message


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
