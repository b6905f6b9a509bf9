"""Tells work in a thread that nobody waits for it any more. Set on the event loop, heard in the worker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Abandonment:
    """Whether a piece of work was given up, and what ends the part of it that is running."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._abandoned = False
        self._end: Callable[[], None] | None = None

    def abandon(self) -> None:
        """Give the work up: whatever can be ended now is, whatever begins later ends at once."""
        with self._lock:
            self._abandoned = True
            if self._end is not None:
                self._end()

    @contextmanager
    def ending_with(self, end: Callable[[], None]) -> Iterator[None]:
        """Inside, abandoning calls `end`, at once where it has happened already."""
        with self._lock:
            self._end = end
            if self._abandoned:
                end()
        try:
            yield
        finally:
            with self._lock:
                self._end = None
