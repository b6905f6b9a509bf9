"""A conversation over one bidirectional call: turns that may queue, branch and be interrupted.

What is the same for threads and tasks is written once: ChatState (chat_state.py) keeps the turns, ChatBase and TurnView
send. Chat and AsyncChat add how messages are received. Turns may be read in any order, also by several threads or
tasks: whoever waits for a turn receives for all of them.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from fanlight.answers import Event
from fanlight.chat_state import ChatState, TurnState
from fanlight.errors import error_from_call
from fanlight.requests import Images, Message, Options, build_turn
from fanlight.streams import END_OF_CALL, AnswerView, text_of
from fanlight.v1 import chat_pb2

ROOT = ""
"""Parent of a turn that starts over, before all other turns."""

CLOSE_SECONDS = 5.0


class ChatBase:
    """What both kinds of chat share: sending is the same, as it only queues."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._state = ChatState()

    @property
    def model(self) -> str | None:
        """Name of the model that answers; None before the server has said it is ready."""
        return self._state.model

    @property
    def going_away(self) -> float | None:
        """Seconds that a server which is shutting down leaves for turns to finish; None while it is not."""
        return self._state.going_away

    @property
    def is_over(self) -> bool:
        """Whether the call has ended: no turn will be answered any more."""
        return self._state.ended

    def _post(self, request: chat_pb2.ChatRequest | None) -> None:
        raise NotImplementedError  # the sync and the async face each have their own queue

    def _open_turn(
        self, prompt: str | Sequence[Message], images: Images, parent: TurnView | str | None, options: Options
    ) -> TurnState:
        parent_id = parent.turn_id if isinstance(parent, TurnView) else parent
        turn = build_turn(prompt, images, parent_id, options)
        state = self._state.open_turn(turn.turn_id)
        if not state.ended:
            self._post(chat_pb2.ChatRequest(turn=turn))
        return state

    def interrupt(self, turn: TurnView | str | None = None) -> None:
        """Stops a turn early, or the running one; what it has said stays in the conversation."""
        turn_id = turn.turn_id if isinstance(turn, TurnView) else turn
        self._post(chat_pb2.ChatRequest(interrupt=chat_pb2.ChatInterrupt(turn_id=turn_id)))

    def _finish(self) -> None:
        self._state.end()
        self._post(None)

    def _fail(self, error: grpc.RpcError) -> None:
        self._state.end(error_from_call(error))
        self._post(None)

    def _cancel(self) -> None:
        # In this order: closing the sending side first would let the server believe that this was a goodbye.
        self._call.cancel()
        self._post(None)

    def _raise_if_ended(self) -> None:
        if self._state.error:
            raise self._state.error

    def __del__(self) -> None:
        if hasattr(self, "_state") and not self._state.ended:
            self._cancel()


class TurnView(AnswerView):
    """A turn of a chat and its answer. Losing the last reference to an unfinished turn interrupts it."""

    def __init__(self, chat: ChatBase, state: TurnState) -> None:
        self._base = chat
        self._turn = state
        self._reader = state.reader

    @property
    def turn_id(self) -> str:
        """Id of the turn, which later turns may name as their parent."""
        return self._turn.turn_id

    def interrupt(self) -> None:
        """Stops the answer early; what has been said stays in the conversation. Iterate on to its end."""
        if not self._turn.ended:
            self._base.interrupt(self.turn_id)

    def _pop_event(self) -> Event | None:
        """The oldest event not read yet; None at the end. Raises the turn's error, once, if that is its end."""
        if self._turn.inbox:
            return self._turn.inbox.popleft()
        error, self._turn.error = self._turn.error, None
        if error:
            raise error
        return None

    def __del__(self) -> None:
        if hasattr(self, "_turn"):
            self.interrupt()


class Turn(TurnView, Iterator[str]):
    """Iterate for the answer's text; afterwards `usage`, `finish_reason` and `answer` tell the rest."""

    def __init__(self, chat: Chat, state: TurnState) -> None:
        super().__init__(chat, state)
        self._chat = chat

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        while (event := self._next_event()) is not None:
            text = text_of(event)
            if text is not None:
                return text
        raise StopIteration

    def events(self) -> Iterator[Event]:
        """The turn's events that were not read yet, until its end."""
        while (event := self._next_event()) is not None:
            yield event

    def _next_event(self) -> Event | None:
        while not self._turn.has_news:
            self._chat._receive_for(self._turn)
        return self._pop_event()


class Chat(ChatBase):
    """A conversation, for threads. Made by `Client.chat`; a context manager."""

    def __init__(self, call: Any, outbox: queue.SimpleQueue[chat_pb2.ChatRequest | None]) -> None:
        super().__init__(call)
        self._outbox = outbox
        self._receiving = threading.Lock()

    def send(
        self,
        prompt: str | Sequence[Message],
        *,
        images: Images = (),
        parent: TurnView | str | None = None,
        **options: Unpack[Options],
    ) -> Turn:
        """Sends a turn and returns it at once; iterate it for its answer.

        parent   the turn that it follows, or its id, or ROOT; None: the turn sent last
        options  as for `Client.generate`; any option replaces all those of the chat
        """
        return Turn(self, self._open_turn(prompt, images, parent, options))

    def wait_ready(self) -> Self:
        """Waits until the server has set the chat up. Raises what it answered instead, such as NotFound."""
        while self.model is None and not self._state.ended:
            with self._receiving:
                if self.model is None and not self._state.ended:
                    self._receive()
        self._raise_if_ended()
        return self

    def close(self) -> None:
        """Ends the chat: at once if turns are unfinished, else when the server has said goodbye."""
        if self._state.has_open_turns:
            self._cancel()
        self._post(None)
        patience = threading.Timer(CLOSE_SECONDS, self._call.cancel)
        patience.start()
        try:
            while not self._state.ended:
                with self._receiving:
                    self._receive()
        finally:
            patience.cancel()

    def _post(self, request: chat_pb2.ChatRequest | None) -> None:
        self._outbox.put(request)

    def _receive_for(self, turn: TurnState) -> None:
        with self._receiving:
            # Another thread may have received for this turn while this one waited for the lock.
            if not turn.has_news:
                self._receive()

    def _receive(self) -> None:
        if self._state.ended:
            return
        try:
            self._state.take(next(self._call))
        except StopIteration:
            self._finish()
        except grpc.RpcError as error:
            self._fail(error)

    def __enter__(self) -> Self:
        return self.wait_ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncTurn(TurnView, AsyncIterator[str]):
    """Iterate with `async for` for the answer's text; afterwards `usage`, `finish_reason`, `answer` tell the rest."""

    def __init__(self, chat: AsyncChat, state: TurnState) -> None:
        super().__init__(chat, state)
        self._chat = chat

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while (event := await self._next_event()) is not None:
            text = text_of(event)
            if text is not None:
                return text
        raise StopAsyncIteration

    async def events(self) -> AsyncIterator[Event]:
        """The turn's events that were not read yet, until its end."""
        while (event := await self._next_event()) is not None:
            yield event

    async def _next_event(self) -> Event | None:
        while not self._turn.has_news:
            await self._chat._receive_for(self._turn)
        return self._pop_event()


class AsyncChat(ChatBase):
    """A conversation, for tasks. Made by `AsyncClient.chat`; an async context manager."""

    def __init__(self, call: Any, outbox: asyncio.Queue[chat_pb2.ChatRequest | None]) -> None:
        super().__init__(call)
        self._outbox = outbox
        self._loop = asyncio.get_running_loop()
        self._receiving = asyncio.Lock()
        self._reading: asyncio.Future[Any] | None = None

    def send(
        self,
        prompt: str | Sequence[Message],
        *,
        images: Images = (),
        parent: TurnView | str | None = None,
        **options: Unpack[Options],
    ) -> AsyncTurn:
        """Sends a turn and returns it at once; iterate it for its answer. Arguments as for `Chat.send`."""
        return AsyncTurn(self, self._open_turn(prompt, images, parent, options))

    async def wait_ready(self) -> Self:
        """Waits until the server has set the chat up. Raises what it answered instead, such as NotFound."""
        while self.model is None and not self._state.ended:
            async with self._receiving:
                if self.model is None and not self._state.ended:
                    await self._receive()
        self._raise_if_ended()
        return self

    async def close(self) -> None:
        """Ends the chat: at once if turns are unfinished, else when the server has said goodbye."""
        if self._state.has_open_turns:
            self._cancel()
        self._post(None)
        patience = self._loop.call_later(CLOSE_SECONDS, self._call.cancel)
        try:
            while not self._state.ended:
                async with self._receiving:
                    await self._receive()
        finally:
            patience.cancel()

    def _post(self, request: chat_pb2.ChatRequest | None) -> None:
        # Interrupts of lost turns come from the garbage collector, which may run in any thread, or after the loop.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._outbox.put_nowait, request)

    async def _receive_for(self, turn: TurnState) -> None:
        async with self._receiving:
            # Another task may have received for this turn while this one waited for the lock.
            if not turn.has_news:
                await self._receive()

    async def _receive(self) -> None:
        if self._state.ended:
            return
        response = await self._read()
        if response is not END_OF_CALL:
            self._state.take(response)
        elif not self._state.ended:
            self._finish()

    async def _read(self) -> Any:
        """The next message. The read goes on when the task that waits for it is cancelled: others wait for it too."""
        reading: asyncio.Future[Any] = self._reading or asyncio.ensure_future(self._call.read())
        self._reading = reading
        try:
            response = await asyncio.shield(reading)
        except grpc.RpcError as error:
            self._fail(error)
            response = END_OF_CALL
        except asyncio.CancelledError:
            if not reading.cancelled():
                raise
            response = END_OF_CALL  # the call itself was cancelled, by close
        self._reading = None
        return response

    async def __aenter__(self) -> Self:
        return await self.wait_ready()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
