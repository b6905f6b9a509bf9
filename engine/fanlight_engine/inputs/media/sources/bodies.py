"""Where the bytes of uploads are: bodies, and the shelf that makes them. Here both are in memory.

A body is one file, while it comes in and afterwards. Nothing here counts bytes or decides what is kept.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Label:
    """What must be known of a body after a restart. `owner` is the principal's hash, never its name."""

    owner: str
    digest: str | None
    total_bytes: int | None = None
    content_type: str = ""
    image_size: tuple[int, int] | None = None


class BodyGoneError(Exception):
    """The body was discarded, by us or behind our back."""


class Body(Protocol):
    """The bytes of one file. Any method but `blocks` may be called from any thread."""

    @property
    def blocks(self) -> bool:
        """Whether calls wait for a device, and belong into a thread."""
        ...

    def write(self, offset: int, chunk: bytes) -> None:
        """Put the chunk there; what was beyond is cut off. Raises OSError, BodyGoneError."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Bytes from there, fewer at the end. Raises OSError, BodyGoneError."""
        ...

    def seal(self, label: Label) -> None:
        """It is complete with label.total_bytes: from now on it survives a restart as a file that is held.

        What was written beyond is cut off. Raises OSError, BodyGoneError.
        """
        ...

    def touch(self) -> None:
        """It was used now; read after a restart. Never fails."""
        ...

    def discard(self) -> None:
        """Give its room back. Idempotent; never fails."""
        ...


@dataclass(frozen=True, slots=True)
class Recovered:
    """A body that outlived the process that made it. `age` is seconds since it was last used or written."""

    label: Label
    body: Body
    size: int
    age: float
    is_sealed: bool


class Shelf(Protocol):
    """Makes bodies. `open` and `close` block."""

    def open(self) -> Iterable[Recovered]:
        """Take possession, and say what is there already. Raises ConfigError."""
        ...

    def close(self) -> None:
        """Leave everything in order for the next one. Idempotent."""
        ...

    def new_body(self, label: Label) -> Body:
        """An empty body."""
        ...


class MemoryBody:
    """Bytes of this process, in a BytesIO: it grows and turns into `bytes` without copying what it holds.

    That matters because a copy of a large file would stop every thread of the process for tens of milliseconds.
    """

    blocks = False

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._is_gone = False
        self._lock = threading.Lock()

    def write(self, offset: int, chunk: bytes) -> None:
        """See Body."""
        with self._lock:
            if self._is_gone:
                raise BodyGoneError
            if offset == 0:
                self._buffer = io.BytesIO(chunk)
                return
            self._buffer.seek(offset)
            self._buffer.truncate()
            self._buffer.write(chunk)

    def read(self, offset: int, size: int) -> bytes:
        """See Body."""
        everything = self._buffer.getvalue()
        return everything if offset == 0 and size >= len(everything) else everything[offset : offset + size]

    def seal(self, label: Label) -> None:
        """See Body."""
        with self._lock:
            if self._is_gone:
                raise BodyGoneError
            self._buffer.truncate(label.total_bytes)

    def touch(self) -> None:
        """See Body."""

    def discard(self) -> None:
        """See Body."""
        with self._lock:
            self._is_gone = True
            self._buffer = io.BytesIO()


class MemoryShelf:
    """Bodies that end with the process."""

    def open(self) -> Iterable[Recovered]:
        """See Shelf."""
        return ()

    def close(self) -> None:
        """See Shelf."""

    def new_body(self, label: Label) -> Body:
        """See Shelf."""
        return MemoryBody()
