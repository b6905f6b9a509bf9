"""Drives one chat: reads what the client says, runs one turn at a time, writes what happens.

`chat_session` decides; this file waits. Three tasks share the session (all on one event loop): one reads the client,
one answers turns, one watches for a drain. The chat ends when the answering task finds nothing left to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any

from fanlight_engine.events import Event, Finished, Usage
from fanlight_engine.request import FinishReason, Message, TextPart
from fanlight_server.active_requests import ANONYMOUS, ActiveRequests, new_request_id
from fanlight_server.backend import Backend
from fanlight_server.chat_session import ChatSession, ChatSetup, Interrupt, Turn, TurnRequest, not_set_up_error
from fanlight_server.convert import events as to_wire
from fanlight_server.convert import requests as from_wire
from fanlight_server.lifecycle import Lifecycle
from fanlight_server.model_names import asked_model
from fanlight_server.rpc.call import current_call
from fanlight_server.rpc.paced_writer import PacedWriter
from fanlight_server.rpc.wire import UnknownFieldsError
from fanlight_server.status import (
    Refusal,
    ServiceError,
    StreamLostError,
    draining_error,
    explain,
    fields_named,
    missing_field,
)

SETUP_TIMEOUT_SECONDS = 10.0


class Chat:
    """One open chat."""

    def __init__(
        self,
        backend: Backend,
        requests: ActiveRequests,
        lifecycle: Lifecycle,
        messages: AsyncIterator[Any],
        writer: PacedWriter,
    ) -> None:
        self._backend = backend
        self._requests = requests
        self._lifecycle = lifecycle
        self._messages = messages
        self._writer = writer
        self._session = ChatSession()
        self._running_request_id = ""
        self._interrupted: Turn | None = None
        self._resolving: asyncio.Future[tuple[Message, ...]] | None = None
        self._something_changed = asyncio.Event()

    async def run(self, setup_timeout: float) -> None:
        """Returns when the client half-closed and every turn ended; every other end is a ServiceError."""
        await self._set_up(setup_timeout)
        answering = asyncio.create_task(self._answer_turns())
        others = [asyncio.create_task(self._read_client()), asyncio.create_task(self._announce_drain())]
        try:
            async with self._writer.kept_alive():
                await _until_done(answering, others)
        finally:
            await _stop_tasks([answering, *others])
        if self._session.draining and not self._session.input_closed:
            raise draining_error()

    async def _set_up(self, limit: float) -> None:
        setup = await self._receive_setup(limit)
        model = asked_model(self._backend, setup.model, "setup.model")
        self._session.set_up(setup)
        await self._writer.send(partial(to_wire.chat_ready, model=model))

    async def _receive_setup(self, limit: float) -> ChatSetup:
        """The first message, unless it is another one, does not come in time, or the server drains."""
        first = asyncio.create_task(_next_or_none(self._messages))
        drain = asyncio.create_task(self._lifecycle.draining.wait())
        try:
            await asyncio.wait([first, drain], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if drain.done():
                raise draining_error()
            setup = from_wire.chat_input_of(first.result()) if first.done() and first.result() is not None else None
        finally:
            await _stop_tasks([first, drain])
        if not isinstance(setup, ChatSetup):
            raise not_set_up_error()
        return setup

    async def _read_client(self) -> None:
        """Until the client half-closes. A refused message costs its turn, a broken one the chat."""
        while True:
            message = None
            try:
                message = await _next_or_none(self._messages)
                if message is None:
                    break
                await self._take(from_wire.chat_input_of(message))
            except UnknownFieldsError as error:
                await self._send_turn_error(from_wire.turn_id_of(error.request), error.refusal)
            except ServiceError as error:
                if message is None:  # the bytes were no message, so what follows cannot be trusted
                    raise
                await self._send_turn_error(from_wire.turn_id_of(message), error.refusal)
        self._session.close_input()
        self._something_changed.set()

    async def _take(self, said: ChatSetup | TurnRequest | Interrupt | None) -> None:
        if said is None:
            raise missing_field("kind", "is not set; set one of setup, turn and interrupt")
        if isinstance(said, ChatSetup):
            self._session.set_up(said)
        elif isinstance(said, Interrupt):
            await self._interrupt(said)
        else:
            self._session.add_turn(said)
            self._something_changed.set()

    async def _interrupt(self, interrupt: Interrupt) -> None:
        turn = self._session.interrupt(interrupt)
        if turn is None:
            return
        if turn is not self._session.running:
            await self._send_interrupted(turn)
            return
        self._interrupted = turn
        if self._resolving is not None:
            self._resolving.cancel()
        self._backend.cancel(self._running_request_id, FinishReason.INTERRUPTED)

    async def _send_interrupted(self, turn: Turn) -> None:
        """The end of a turn that never reached the engine."""
        await self._send(turn, Finished(0, FinishReason.INTERRUPTED))
        await self._send(turn, Usage(0, 0, 0, 0))

    async def _announce_drain(self) -> None:
        await self._lifecycle.draining.wait()
        self._session.drain()
        await self._writer.send(partial(to_wire.chat_going_away, seconds_left=self._lifecycle.drain_seconds_left))
        self._something_changed.set()

    async def _answer_turns(self) -> None:
        """One after the other, until nothing more can come."""
        while True:
            self._something_changed.clear()
            if turn := self._session.start_next_turn():
                await self._answer(turn)
            elif self._session.is_over:
                return
            else:
                await self._something_changed.wait()

    async def _answer(self, turn: Turn) -> None:
        """Run one turn. Its failure is a turn_error, and the chat goes on."""
        request_id = self._running_request_id = new_request_id()
        try:
            await self._generate(turn, request_id)
        except StreamLostError:
            raise
        except Exception as error:  # the one error table judges it; the chat outlives its turn
            self._session.fail(turn)
            refusal = explain(error, request_id, partial(self._session.name_field, turn))
            await self._send_turn_error(turn.id, refusal)

    async def _generate(self, turn: Turn, request_id: str) -> None:
        await self._resolve_sources(turn)
        if turn is self._interrupted:
            await self._send_interrupted(turn)
            self._session.finish(turn, TextPart(""))
            return
        generation = from_wire.with_seed(self._session.generation(turn))
        transcript = self._backend.transcript()
        failed = False
        with self._requests.running(ANONYMOUS, request_id, partial(self._backend.cancel, request_id)):
            async with aclosing(self._backend.generate(generation, request_id)) as events:
                async for event in events:
                    transcript.add(event)
                    failed = failed or (isinstance(event, Finished) and event.reason is FinishReason.ERROR)
                    await self._send(turn, event, request_id, generation.sampling.seed)
        if failed:
            self._session.fail(turn)  # finished.error has told it
        else:
            self._session.finish(turn, transcript.part())

    async def _resolve_sources(self, turn: Turn) -> None:
        """URLs are fetched and digests read once: later turns send what came of them. An interrupt ends it early."""
        prompt = self._session.prompt(turn)
        self._resolving = asyncio.ensure_future(self._backend.resolve_sources(prompt, self._session.principal))
        try:
            with fields_named(lambda field: self._session.name_field(turn, f"conversation.{field}")):
                self._session.keep_resolved(turn, await self._resolving)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if turn is not self._interrupted or (task is not None and task.cancelling()):
                raise
        finally:
            self._resolving = None

    async def _send(self, turn: Turn, event: Event, request_id: str = "", seed: int | None = None) -> None:
        current_call().count(event)
        for piece in to_wire.visible_events(event, turn.options.output):
            build = partial(to_wire.chat_event, turn_id=turn.id, event=piece, request_id=request_id, seed=seed)
            await self._writer.send(build)

    async def _send_turn_error(self, turn_id: str, refusal: Refusal) -> None:
        current_call().refuse(refusal)
        await self._writer.send(partial(to_wire.chat_turn_error, turn_id=turn_id, refusal=refusal))


async def _next_or_none(messages: AsyncIterator[Any]) -> Any:
    """The client's next message; None when it has half-closed."""
    return await anext(messages, None)


async def _until_done(main: asyncio.Task[None], others: list[asyncio.Task[None]]) -> None:
    """Wait for `main`. Raises what any of the tasks raises before that."""
    pending = {main, *others}
    while main in pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def _stop_tasks(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel them and wait until they have cleaned up."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
