"""What the server needs from the engine's front half, as a protocol; `fanlight_engine.front.Front` is the one in use.

Imports nothing heavy, so that tests can put a scripted one in its place and commands start at once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Protocol

from fanlight_engine.config import EngineConfig
from fanlight_engine.events import Event
from fanlight_engine.request import FinishReason, Generation, TextPart

if TYPE_CHECKING:
    from fanlight_engine.client import EngineClient
    from fanlight_engine.model.checkpoint import Checkpoint


class Transcript(Protocol):
    """What was said in one answer."""

    def add(self, event: Event) -> None:
        """Take note of the next event."""
        ...

    def part(self) -> TextPart:
        """What was said so far."""
        ...


class Backend(Protocol):
    """Turns generations into events."""

    @property
    def checkpoint(self) -> Checkpoint:
        """What is served."""
        ...

    @property
    def config(self) -> EngineConfig:
        """How it is served."""
        ...

    @property
    def client(self) -> EngineClient:
        """The core behind it; its facts can be read once `start` has returned."""
        ...

    async def start(self) -> None:
        """Load everything. Raises StartupError."""
        ...

    async def stop(self) -> None:
        """Stop everything. Idempotent."""
        ...

    def transcript(self) -> Transcript:
        """Collects the events of a generation that asks for text and token ids, as history for a later one."""
        ...

    def generate(self, generation: Generation, request_id: str) -> AsyncGenerator[Event, None]:
        """Events in the order of `fanlight_engine.events`; closing it early frees the request. Raises EngineError."""
        ...

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> bool:
        """End a running generation with `reason`; False when none of this id runs."""
        ...
