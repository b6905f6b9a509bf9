"""A conversation for tasks: AsyncChat and AsyncTurn. What they share with Chat and Turn is in chat.py.

`send` returns at once also for a turn whose media have to be uploaded first: that and the sending then happen in a task
of their own, and turns sent meanwhile wait behind it, so that the server gets all of them in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from fanlight.answers import Event
from fanlight.chat import CLOSE_SECONDS, ChatBase, TurnView, turn_id_of
from fanlight.chat_state import TurnState
from fanlight.errors import FanlightError
from fanlight.large_media import may_hold_large_media
from fanlight.media_store import AsyncMediaStore
from fanlight.requests import Images, Message, Options, Videos, build_turn
from fanlight.streams import END_OF_CALL, text_of
from fanlight.transfers import Deadline
from fanlight.v1 import chat_pb2


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
            await self._chat._wait_until_sent(self._turn)
            await self._chat._receive_for(self._turn)
        return self._pop_event()


class AsyncChat(ChatBase):
    """A conversation, for tasks. Made by `AsyncClient.chat`; an async context manager."""

    def __init__(
        self, call: Any, outbox: asyncio.Queue[chat_pb2.ChatRequest | None], media_store: AsyncMediaStore
    ) -> None:
        super().__init__(call)
        self._outbox = outbox
        self._media_store = media_store
        self._last_sending: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._receiving = asyncio.Lock()
        self._reading: asyncio.Future[Any] | None = None

    def send(
        self,
        prompt: str | Sequence[Message],
        *,
        images: Images = (),
        video: Videos = (),
        parent: TurnView | str | None = None,
        **options: Unpack[Options],
    ) -> AsyncTurn:
        """Sends a turn and returns it at once; iterate it for its answer. Arguments as for `Chat.send`.

        An upload that has to come first goes on in the background; if it fails, iterating the turn raises that.
        """
        turn = self._state.open_turn(build_turn(prompt, images, video, turn_id_of(parent), options))
        others_are_waiting = self._last_sending is not None and not self._last_sending.done()
        if not turn.ended and (others_are_waiting or may_hold_large_media(turn.message)):
            self._send_in_background(turn)
        else:
            self._post_turn(turn)
        return AsyncTurn(self, turn)

    def _send_in_background(self, turn: TurnState) -> None:
        turn.sending = asyncio.create_task(self._upload_and_post(turn, after=self._last_sending))
        self._last_sending = turn.sending

    async def _upload_and_post(self, turn: TurnState, after: asyncio.Task[None] | None) -> None:
        if after is not None:
            await asyncio.wait([after])
        again, turn.large_media = turn.large_media, ()
        try:
            if again:
                await self._media_store.upload_all(again, Deadline(None))
            else:
                turn.large_media = await self._media_store.move_out(turn.message, Deadline(None))
        except FanlightError as error:
            self._state.end_unsent(turn, error)
        else:
            if turn.withdrawn:
                self._state.end_unsent(turn)
            self._post_turn(turn)

    async def _wait_until_sent(self, turn: TurnState) -> None:
        if turn.sending is not None:
            await asyncio.wait([turn.sending])
            if not turn.sending.cancelled():
                turn.sending.result()

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
        for turn in self._state.open_turns:
            if turn.sending is not None:
                turn.sending.cancel()
        if self._state.open_turns:
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
            if not turn.has_news and not turn.is_being_sent:
                await self._receive()

    async def _receive(self) -> None:
        if self._state.ended:
            return
        response = await self._read()
        if response is not END_OF_CALL:
            self._state.take(response)
        elif not self._state.ended:
            self._finish()
        while (turn := self._state.pop_lost()) is not None:
            self._send_in_background(turn)

    async def _read(self) -> Any:
        """The next message. The read goes on when the task that waits for it is cancelled: others wait for it too."""
        reading: asyncio.Future[Any] = self._reading or asyncio.ensure_future(self._call.read())
        self._reading = reading
        try:
            response = await asyncio.shield(reading)
        except (grpc.RpcError, FanlightError) as error:  # the latter of an upload for the setup
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
