"""What is known of the call that the current task serves: its id, and what its line in the access log says of it."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, field

from fanlight_engine.events import Event, Finished, Usage
from fanlight_server.active_requests import new_request_id
from fanlight_server.status import Refusal


@dataclass(slots=True)
class Call:
    """One call. `code` is the name of its status once it ended; counts stay None for calls that generate nothing.

    `reasons` are those of refusals, `finishes` how answers ended: each once, in the order of their first time, because
    a chat has many turns.
    """

    method: str
    peer: str
    request_id: str = field(default_factory=new_request_id)
    started: float = field(default_factory=time.monotonic)
    code: str = ""
    prompt_tokens: int | None = None
    image_tokens: int | None = None
    completion_tokens: int | None = None
    reasons: dict[str, None] = field(default_factory=dict)
    finishes: dict[str, None] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long the call has been open."""
        return time.monotonic() - self.started

    def count(self, event: Event) -> None:
        """Add the usage and the end of a generation; a chat has several."""
        if isinstance(event, Finished):
            self.finishes[event.reason.name] = None
        if isinstance(event, Usage):
            self.prompt_tokens = (self.prompt_tokens or 0) + event.prompt_tokens
            self.image_tokens = (self.image_tokens or 0) + event.image_tokens
            self.completion_tokens = (self.completion_tokens or 0) + event.completion_tokens

    def refuse(self, refusal: Refusal) -> None:
        """Note why the call, or a turn of it, was refused."""
        self.reasons[refusal.reason.value] = None


_current: ContextVar[Call] = ContextVar("fanlight_call")


def current_call() -> Call:
    """The call of the current task, and of the tasks that it started."""
    return _current.get()


def set_current_call(call: Call) -> None:
    """Done once per call, by the boundary."""
    _current.set(call)
