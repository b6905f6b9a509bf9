"""A conversation over one bidirectional call: turns that may queue, branch and be interrupted.

What is the same for threads and tasks is written once: ChatState (chat_state.py) keeps the turns, ChatBase and TurnView
are shared. Chat, here, and AsyncChat (async_chat.py) add how messages are sent and received. Turns may be read in any
order, also by several threads or tasks: whoever waits for a turn receives for all of them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from fanlight.answers import Event
from fanlight.chat_state import ChatState, TurnState
from fanlight.errors import FanlightError, error_from_call
from fanlight.media_store import MediaStore
from fanlight.requests import Images, Message, Options, Videos, build_turn
from fanlight.streams import AnswerView, text_of
from fanlight.transfers import Deadline
from fanlight.v1 import chat_pb2

ROOT = ""
"""Parent of a turn that starts over, before all other turns."""

CLOSE_SECONDS = 5.0


class ChatBase:
    """What both kinds of chat share. Posting a message is the same for both, as it only queues."""

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

    def _post_turn(self, turn: TurnState) -> None:
        if not turn.ended:
            self._post(chat_pb2.ChatRequest(turn=turn.message))

    def interrupt(self, turn: TurnView | str | None = None) -> None:
        """Stops a turn early, or the running one; what it has said stays in the conversation."""
        turn_id = turn_id_of(turn)
        self._state.withdraw(turn_id)
        self._post(chat_pb2.ChatRequest(interrupt=chat_pb2.ChatInterrupt(turn_id=turn_id)))

    def _finish(self) -> None:
        self._state.end()
        self._post(None)

    def _fail(self, error: grpc.RpcError | FanlightError) -> None:
        self._state.end(error if isinstance(error, FanlightError) else error_from_call(error))
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


def turn_id_of(turn: TurnView | str | None) -> str | None:
    """The id of a turn; an id, and None, stay as they are."""
    return turn.turn_id if isinstance(turn, TurnView) else turn


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

    def __init__(
        self, call: Any, outbox: queue.SimpleQueue[chat_pb2.ChatRequest | None], media_store: MediaStore
    ) -> None:
        super().__init__(call)
        self._outbox = outbox
        self._media_store = media_store
        self._receiving = threading.Lock()

    def send(
        self,
        prompt: str | Sequence[Message],
        *,
        images: Images = (),
        video: Videos = (),
        parent: TurnView | str | None = None,
        **options: Unpack[Options],
    ) -> Turn:
        """Sends a turn and returns it; iterate it for its answer. Large media are uploaded before, see `Client`.

        prompt, images, video   as for `Client.generate`
        parent   the turn that it follows, or its id, or ROOT; None: the turn sent last
        options  as for `Client.generate`; any option replaces all those of the chat
        """
        message = build_turn(prompt, images, video, turn_id_of(parent), options)
        large_media = () if self.is_over else self._media_store.move_out(message, Deadline(None))
        turn = self._state.open_turn(message)
        turn.large_media = large_media
        self._post_turn(turn)
        return Turn(self, turn)

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
        if self._state.open_turns:
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
        while (turn := self._state.pop_lost()) is not None:
            self._send_again(turn)

    def _send_again(self, turn: TurnState) -> None:
        large_media, turn.large_media = turn.large_media, ()
        try:
            self._media_store.upload_all(large_media, Deadline(None))
        except FanlightError as error:
            self._state.end_unsent(turn, error)
        else:
            self._post_turn(turn)

    def __enter__(self) -> Self:
        return self.wait_ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
