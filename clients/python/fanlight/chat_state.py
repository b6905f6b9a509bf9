"""The turns of a chat, and what each message of the server means to them. Knows no call: it is told what arrived."""

from __future__ import annotations

from collections import deque

import grpc

from fanlight.answers import AnswerReader, Event, Usage, read_event
from fanlight.errors import FanlightError, Internal, error_from_failure
from fanlight.v1 import chat_pb2


class TurnState:
    """What has arrived for one turn and was not read yet."""

    def __init__(self, turn_id: str) -> None:
        self.turn_id = turn_id
        self.reader = AnswerReader(turn_id)
        self.inbox: deque[Event] = deque()
        self.ended = False
        self.error: FanlightError | None = None

    @property
    def has_news(self) -> bool:
        """Whether a reader of the turn need not wait."""
        return bool(self.inbox) or self.ended

    def take(self, event: Event) -> None:
        """Adds an event. Usage is the last one of a turn, but need not follow an answer that failed."""
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

    @property
    def has_open_turns(self) -> bool:
        """Whether any turn has no end yet."""
        return bool(self._open_turns)

    def open_turn(self, turn_id: str) -> TurnState:
        """A turn that is about to be sent; it has ended already if the chat has."""
        turn = TurnState(turn_id)
        if self.ended:
            turn.end(self.error or chat_is_over())
        else:
            self._open_turns[turn_id] = turn
        return turn

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
            turn.end(error_from_failure(response.turn_error, turn.reader.request_id))
        else:
            event = read_event(response)
            if event is not None:
                turn.take(event)
        if turn.ended:
            del self._open_turns[turn.turn_id]

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
