"""The turns of a chat, and what each message of the server means to them. Knows no call: it is told what arrived.

A turn whose uploads the server has let go of is kept for whoever sends it again, once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import grpc

from fanlight.answers import AnswerReader, Event, Usage, read_event
from fanlight.errors import Cancelled, FanlightError, Internal, error_from_failure, media_are_gone
from fanlight.large_media import LargeMedium
from fanlight.v1 import chat_pb2


class TurnState:
    """A turn that is sent, and what has arrived for it and was not read yet.

    large_media  what was uploaded for it, until the server has taken the turn; then, and without uploads, nothing
    sending      the task that uploads and sends it, for tasks only; None when it was sent at once
    withdrawn    whether it was interrupted, so that it need not be sent if it has not been
    """

    def __init__(self, message: chat_pb2.ChatTurn) -> None:
        self.message = message
        self.turn_id = message.turn_id
        self.large_media: Sequence[LargeMedium] = ()
        self.sending: asyncio.Task[None] | None = None
        self.withdrawn = False
        self.reader = AnswerReader(message.turn_id)
        self.inbox: deque[Event] = deque()
        self.ended = False
        self.error: FanlightError | None = None

    @property
    def is_being_sent(self) -> bool:
        """Whether a task is uploading or waiting to send it."""
        return self.sending is not None and not self.sending.done()

    @property
    def has_news(self) -> bool:
        """Whether a reader of the turn need not wait."""
        return bool(self.inbox) or self.ended

    def take(self, event: Event) -> None:
        """Adds an event. Usage is the last one of a turn, but need not follow an answer that failed."""
        self.large_media = ()
        self.reader.take(event)
        self.inbox.append(event)
        if isinstance(event, Usage) or self.reader.error:
            self.end(self.reader.error)

    def end(self, error: FanlightError | None) -> None:
        """The turn is over, for good or with an error to raise."""
        if not self.ended:
            self.ended, self.error = True, error


class ChatState:
    """The turns of a chat by id, and what the server said about the chat as a whole."""

    def __init__(self) -> None:
        self.model: str | None = None
        self.going_away: float | None = None
        self.ended = False
        self.error: FanlightError | None = None
        self._open_turns: dict[str, TurnState] = {}
        self._newest: TurnState | None = None
        self._lost: deque[TurnState] = deque()

    @property
    def open_turns(self) -> list[TurnState]:
        """The turns that have no end yet."""
        return list(self._open_turns.values())

    def open_turn(self, message: chat_pb2.ChatTurn) -> TurnState:
        """A turn that is about to be sent; it has ended already if the chat has."""
        turn = self._newest = TurnState(message)
        if self.ended:
            turn.end(self.error or chat_is_over())
        else:
            self._open_turns[turn.turn_id] = turn
        return turn

    def withdraw(self, turn_id: str | None) -> None:
        """The turn is interrupted; if it has not been sent, it need not be."""
        if turn_id in self._open_turns:
            self._open_turns[turn_id].withdrawn = True

    def end_unsent(self, turn: TurnState, error: FanlightError | None = None) -> None:
        """The turn will not be sent, because its upload failed or because it was withdrawn."""
        turn.end(error or Cancelled("the turn was interrupted before it was sent", code=grpc.StatusCode.CANCELLED))
        self._open_turns.pop(turn.turn_id, None)

    def pop_lost(self) -> TurnState | None:
        """A turn whose uploads the server has let go of, to be sent again; None when there is none."""
        return self._lost.popleft() if self._lost else None

    def take(self, response: chat_pb2.ChatResponse) -> None:
        """Passes a message of the server on to what it is about. What nobody knows is ignored."""
        if response.HasField("ready"):
            self.model = response.ready.model
        elif response.HasField("going_away"):
            self.going_away = response.going_away.time_left.ToTimedelta().total_seconds()
        elif response.turn_id in self._open_turns:
            self._take_turn_event(self._open_turns[response.turn_id], response)

    def _take_turn_event(self, turn: TurnState, response: chat_pb2.ChatResponse) -> None:
        if response.HasField("turn_error"):
            self._take_turn_error(turn, error_from_failure(response.turn_error, turn.reader.request_id))
        else:
            event = read_event(response)
            if event is not None:
                turn.take(event)
        if turn.ended:
            del self._open_turns[turn.turn_id]

    def _take_turn_error(self, turn: TurnState, error: FanlightError) -> None:
        # A turn that another one follows already cannot be sent again: it would come after that.
        if media_are_gone(error) and turn.large_media and turn is self._newest:
            self._lost.append(turn)
        else:
            turn.end(error)

    def end(self, error: FanlightError | None = None) -> None:
        """The call is over: turns without an end of their own end now."""
        if self.ended:
            return
        self.ended, self.error = True, error
        for turn in self._open_turns.values():
            turn.end(error or chat_is_over())
        self._open_turns.clear()


def chat_is_over() -> FanlightError:
    """The error of a turn that cannot be answered any more."""
    return Internal("the chat ended before the turn was answered", code=grpc.StatusCode.UNKNOWN)
