"""Where the server stands (loading, serving, draining), and which calls are open.

Work (calls of fanlight.v1) is told apart from watching (health, reflection), because an open watch must not hold a
drain. Knows tasks and time, not gRPC's messages and not the engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from fanlight_server.status import draining_error, loading_error


class Phase(Enum):
    """Phases only move forward."""

    LOADING = 1
    SERVING = 2
    DRAINING = 3


class Lifecycle:
    """One per server. Must be used from one event loop."""

    def __init__(self) -> None:
        self.phase = Phase.LOADING
        self.has_served = False
        """Set when the engine was ready for the first time: what was decided while loading is known from then on."""
        self.draining = asyncio.Event()
        self.closing = False
        """Set when open calls are being ended: a cancelled call then ends UNAVAILABLE."""
        self._drain_deadline = 0.0
        self._calls: set[asyncio.Task[object]] = set()
        self._work_count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def require_serving(self) -> None:
        """Raise ServiceError unless new work may start."""
        if self.phase is Phase.LOADING:
            raise loading_error()
        if self.phase is Phase.DRAINING:
            raise draining_error()

    def require_loaded(self) -> None:
        """Raise ServiceError while the engine is not there to be described."""
        if self.phase is Phase.LOADING:
            raise loading_error()

    def mark_serving(self) -> None:
        """The engine is ready. Does nothing once draining."""
        if self.phase is Phase.LOADING:
            self.phase = Phase.SERVING
            self.has_served = True

    def mark_draining(self, seconds: float) -> None:
        """Refuse new work from now on; open work has so many seconds left."""
        self.phase = Phase.DRAINING
        self._drain_deadline = time.monotonic() + seconds
        self.draining.set()

    @property
    def drain_seconds_left(self) -> float:
        """How long open work may still take; 0 when the drain is over."""
        return max(0.0, self._drain_deadline - time.monotonic())

    @property
    def work_count(self) -> int:
        """Open calls that a drain waits for."""
        return self._work_count

    @contextmanager
    def open_call(self, is_work: bool) -> Iterator[None]:
        """Count the current task as an open call."""
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        self._count_work(+1 if is_work else 0)
        try:
            yield
        finally:
            self._calls.discard(task)
            self._count_work(-1 if is_work else 0)

    def _count_work(self, change: int) -> None:
        self._work_count += change
        if self._work_count:
            self._idle.clear()
        else:
            self._idle.set()

    async def wait_until_idle(self) -> None:
        """Return when no work is open."""
        await self._idle.wait()

    def end_open_calls(self) -> None:
        """End what is still open, watches too; each ends UNAVAILABLE."""
        self.closing = True
        for task in list(self._calls):
            task.cancel()
