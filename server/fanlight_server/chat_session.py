"""The state of one chat: which inputs are allowed when, the tree of turns, and the prompt of each turn.

    NEW      --set_up-->       IDLE
    IDLE     --add_turn-->     a turn waits; start_next_turn --> RUNNING
    RUNNING  --add_turn-->     waits (at most 8)
             --interrupt-->    the turn ends by itself, its partial answer is kept
             --finish, fail--> IDLE, or the next waiting turn
    close_input (half-closed): waiting turns finish, then the chat is over
    drain (DRAINING):          the same, and new turns are refused

Plain data in, plain data out: no sockets, no tasks, no protobuf. Whoever drives it (services.chat) does the waiting.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice

from fanlight_engine.request import (
    Conversation,
    Generation,
    Message,
    OutputOptions,
    Role,
    SamplingOptions,
    TextPart,
)
from fanlight_server.active_requests import ANONYMOUS, MAX_REQUEST_ID_LENGTH
from fanlight_server.held_bytes import bytes_of_messages
from fanlight_server.status import ErrorReason, ServiceError, draining_error, field_error

MAX_WAITING_TURNS = 8
MAX_HISTORY_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """Sampling and output of an answer; `path` is the field of the chat's messages that they came from."""

    sampling: SamplingOptions
    output: OutputOptions
    path: str


@dataclass(frozen=True, slots=True)
class ChatSetup:
    """What a chat starts from."""

    model: str
    history: tuple[Message, ...]
    options: AnswerOptions


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A turn as asked for. `parent_turn_id` None is the head, "" the root; `options` None are the setup's."""

    turn_id: str | None
    parent_turn_id: str | None
    messages: tuple[Message, ...]
    options: AnswerOptions | None


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Asks to stop a turn; None is the running one."""

    turn_id: str | None


class State(Enum):
    """Where the chat stands; whether it is half-closed or drains is beside that."""

    NEW = "new"
    IDLE = "idle"
    RUNNING = "running"


@dataclass(slots=True, eq=False)
class Turn:
    """One node of the tree. `answer` is filled by `finish`, `failed` by `fail`; `parent` None is the root."""

    id: str
    parent: Turn | None
    messages: tuple[Message, ...]
    options: AnswerOptions
    answer: Message | None = None
    failed: bool = False

    def path_from_root(self) -> list[Turn]:
        """This turn and everything it follows, oldest first."""
        path: list[Turn] = []
        turn: Turn | None = self
        while turn is not None:
            path.append(turn)
            turn = turn.parent
        return path[::-1]


@dataclass(slots=True)
class ChatSession:
    """One chat of `principal`. Every refusal is a ServiceError that leaves the chat as it was."""

    principal: str = ANONYMOUS
    state: State = State.NEW
    draining: bool = False
    input_closed: bool = False
    running: Turn | None = None
    _setup: ChatSetup | None = None
    _turns: dict[str, Turn] = field(default_factory=dict)
    _waiting: deque[Turn] = field(default_factory=deque)
    _last_sent: Turn | None = None
    _history_bytes: int = 0
    _made_ids: int = 0

    def set_up(self, setup: ChatSetup) -> None:
        """NEW -> IDLE."""
        if self.state is not State.NEW:
            raise ServiceError(
                ErrorReason.CHAT_ALREADY_SET_UP,
                "setup: the chat is set up already; open another chat for another setup",
            )
        self._take_bytes("setup.history", bytes_of_messages(setup.history))
        self._setup = setup
        self.state = State.IDLE

    def add_turn(self, request: TurnRequest) -> Turn:
        """Queue a turn; it becomes the head."""
        if self._setup is None:
            raise not_set_up_error()
        if self.draining:
            raise draining_error()
        if len(self._waiting) >= MAX_WAITING_TURNS:
            raise ServiceError(
                ErrorReason.TURN_QUEUE_FULL,
                f"{MAX_WAITING_TURNS} turns are waiting in this chat already: wait for one to end, or interrupt one",
            )
        turn_id = self._free_turn_id(request.turn_id)
        parent = self._find_parent(request.parent_turn_id)
        self._take_bytes("turn.messages", bytes_of_messages(request.messages))
        turn = Turn(turn_id, parent, request.messages, request.options or self._setup.options)
        self._turns[turn_id] = turn
        self._waiting.append(turn)
        self._last_sent = turn
        return turn

    def start_next_turn(self) -> Turn | None:
        """IDLE -> RUNNING with the turn that waits longest; None when none waits."""
        assert self.running is None, "one turn runs at a time"
        if not self._waiting:
            return None
        self.running = self._waiting.popleft()
        self.state = State.RUNNING
        return self.running

    def prompt(self, turn: Turn) -> tuple[Message, ...]:
        """The setup's history, then messages and answers from the root down to the turn's own messages.

        Raises ServiceError when a turn before it failed.
        """
        assert self._setup is not None
        path = turn.path_from_root()
        if any(earlier.failed for earlier in path):
            raise field_error(
                "turn.parent_turn_id",
                "the turn that this one follows failed; send it again after an earlier one",
                ErrorReason.TURN_NOT_FOUND,
            )
        messages = list(self._setup.history)
        for one in path:
            messages += one.messages
            if one.answer is not None:
                messages.append(one.answer)
        return tuple(messages)

    def generation(self, turn: Turn) -> Generation:
        """What to generate for a turn. Text and ids are always wanted here, because the answer becomes history.

        Raises ServiceError when a turn before it failed.
        """
        assert self._setup is not None
        return Generation(
            prompt=Conversation(self.prompt(turn)),
            sampling=turn.options.sampling,
            output=replace(turn.options.output, text=True, token_ids=True),
            model=self._setup.model,
            principal=self.principal,
        )

    def keep_resolved(self, turn: Turn, messages: tuple[Message, ...]) -> None:
        """`messages` are the turn's prompt with URLs and digests replaced by what they named: later turns send these.

        Raises ServiceError when the chat would hold too much.
        """
        assert self._setup is not None
        self._take_bytes("turn.messages", bytes_of_messages(messages) - bytes_of_messages(self.prompt(turn)))
        rest = iter(messages)
        self._setup = replace(self._setup, history=tuple(islice(rest, len(self._setup.history))))
        for one in turn.path_from_root():
            one.messages = tuple(islice(rest, len(one.messages)))
            if one.answer is not None:
                next(rest)

    def name_field(self, turn: Turn, engine_field: str) -> str:
        """The field of the chat's messages that the engine's path below the turn's Generation came from."""
        assert self._setup is not None
        if engine_field == "config" or engine_field.startswith("config."):
            return turn.options.path + engine_field.removeprefix("config")
        if engine_field == "model":
            return "setup.model"
        prefix = "conversation.messages["
        if not engine_field.startswith(prefix):
            return "turn.messages"
        number, _, rest = engine_field.removeprefix(prefix).partition("]")
        return self._name_message(turn, int(number), rest)

    def _name_message(self, turn: Turn, index: int, rest: str) -> str:
        assert self._setup is not None
        history = len(self._setup.history)
        before = history + sum(len(earlier.messages) + 1 for earlier in turn.path_from_root()[:-1])
        if index < history:
            return f"setup.history[{index}]{rest}"
        return f"turn.messages[{index - before}]{rest}" if index >= before else "turn.parent_turn_id"

    def finish(self, turn: Turn, answer: TextPart) -> None:
        """The turn was answered, in part or whole; the answer's ids make the next turn continue token for token."""
        self._end(turn)
        turn.answer = Message(Role.ASSISTANT, (answer,))
        self._history_bytes += bytes_of_messages((turn.answer,))

    def fail(self, turn: Turn) -> None:
        """The turn ended without an answer: it leaves the tree, and the head is as before."""
        self._end(turn)
        turn.failed = True
        del self._turns[turn.id]
        self._history_bytes -= bytes_of_messages(turn.messages)

    def interrupt(self, interrupt: Interrupt) -> Turn | None:
        """The turn to stop, or None when there is nothing to stop.

        A waiting turn is taken out of the queue with an empty answer. The running one stays: its driver ends it.
        """
        if interrupt.turn_id is None or (self.running is not None and self.running.id == interrupt.turn_id):
            return self.running
        turn = self._turns.get(interrupt.turn_id)
        if turn is None or turn not in self._waiting:
            return None
        self._waiting.remove(turn)
        turn.answer = Message(Role.ASSISTANT, (TextPart(""),))
        return turn

    def close_input(self) -> None:
        """The client will say nothing more."""
        self.input_closed = True

    def drain(self) -> None:
        """The server shuts down."""
        self.draining = True

    @property
    def is_over(self) -> bool:
        """Whether nothing runs, nothing waits and nothing more can come."""
        return self.running is None and not self._waiting and (self.input_closed or self.draining)

    def _end(self, turn: Turn) -> None:
        assert turn is self.running, "only the running turn ends"
        self.running = None
        self.state = State.IDLE

    def _free_turn_id(self, asked: str | None) -> str:
        if asked is None:
            self._made_ids += 1
            while f"turn-{self._made_ids}" in self._turns:
                self._made_ids += 1
            return f"turn-{self._made_ids}"
        if not (1 <= len(asked) <= MAX_REQUEST_ID_LENGTH and asked.isascii() and asked.isprintable()):
            raise field_error(
                "turn.turn_id", f"must be 1 to {MAX_REQUEST_ID_LENGTH} printable ASCII characters; or leave it unset"
            )
        if asked in self._turns:
            raise field_error(
                "turn.turn_id", "a turn of this chat has this id already; choose another", ErrorReason.TURN_ID_IN_USE
            )
        return asked

    def _find_parent(self, asked: str | None) -> Turn | None:
        if asked is None:
            return self._head
        if asked == "":
            return None
        if asked not in self._turns:
            raise field_error(
                "turn.parent_turn_id",
                "no turn of this chat has this id; name an earlier turn, use an empty string for the root, or leave it "
                "unset for the head",
                ErrorReason.TURN_NOT_FOUND,
            )
        return self._turns[asked]

    @property
    def _head(self) -> Turn | None:
        """The turn sent last of those that did not fail."""
        head = self._last_sent
        while head is not None and head.failed:
            head = head.parent
        return head

    def _take_bytes(self, path: str, more: int) -> None:
        size = self._history_bytes + more
        if size > MAX_HISTORY_BYTES:
            raise field_error(
                path,
                f"the chat would hold {size} bytes of messages, {MAX_HISTORY_BYTES} are allowed; open another chat",
            )
        self._history_bytes = size


def not_set_up_error() -> ServiceError:
    """The error for a chat whose first message is no setup, or does not come."""
    return ServiceError(
        ErrorReason.CHAT_NOT_SET_UP, "setup: a chat starts with setup, which may be empty; send it first"
    )
