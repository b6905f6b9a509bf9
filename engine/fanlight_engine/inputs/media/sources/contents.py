"""What a store holds, what came of unfinished uploads, how many bytes that makes, and what goes first.

    held       complete files, the least recently used first; those being read stay
    partial    unfinished uploads, at most one of a digest and principal that can be resumed

Every byte is reserved before it is written and given back when its body is discarded. Policy only: knows no threads, no
files and no hashing. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from fanlight_engine.errors import StoreFullError
from fanlight_engine.inputs.media.sources.bodies import Body
from fanlight_engine.inputs.media.sources.facts import FileFacts

MAX_ENTRIES = 65_536
"""Files and unfinished uploads in all, however small: each costs memory beside its bytes."""


class Key(NamedTuple):
    """Whose, and which: principals never meet, not even where their files are equal."""

    owner: str
    digest: str


@dataclass(slots=True, eq=False)
class HeldFile:
    """A complete file. `last_used` is a time of the store's clock."""

    key: Key
    size: int
    facts: FileFacts
    body: Body
    last_used: float
    is_verified: bool = True
    """False after a restart, until its digest has been computed again."""
    readers: int = 0
    is_removed: bool = False


class PartialState(StrEnum):
    """How far an upload is."""

    OPEN = "open"
    SEALING = "sealing"
    GONE = "gone"


@dataclass(slots=True, eq=False)
class PartialUpload:
    """What has come of an upload. Written under `lock`, by `writer` and nobody else."""

    owner: str
    digest: str | None
    body: Body
    last_written: float
    total_bytes: int | None = None
    committed_bytes: int = 0
    hasher: Any = None
    """SHA-256 of the committed bytes; None after a restart, until they have been read again."""
    writer: object = None
    state: PartialState = PartialState.OPEN
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def key(self) -> Key | None:
        """Under which it can be resumed; None without a digest."""
        return None if self.digest is None else Key(self.owner, self.digest)


class Contents:
    """The books. `discard` takes the bodies that are of no use any more."""

    def __init__(
        self,
        capacity_bytes: int,
        held_seconds: float,
        partial_seconds: float,
        clock: Callable[[], float],
        discard: Callable[[Body], None],
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.held_seconds = held_seconds
        self.used_bytes = 0
        """Of files, of partial uploads, and of chunks that are being written."""
        self._partial_seconds = partial_seconds
        self._clock = clock
        self._discard = discard
        self._held: OrderedDict[Key, HeldFile] = OrderedDict()
        self._idle_files = 0
        self._idle_bytes = 0
        """Of files that are held and that nobody reads: what could go."""
        self._partials: OrderedDict[PartialUpload, None] = OrderedDict()
        self._resumable: dict[Key, PartialUpload] = {}

    # Room

    def check_room(self, size: int, entries: int = 0) -> None:
        """Raises StoreFullError where so much could not be had even if everything unused went."""
        if self.used_bytes - self._idle_bytes + size > self.capacity_bytes:
            raise StoreFullError(
                f"{size} more bytes do not fit: too many of the {self.capacity_bytes} bytes of the store are in use; "
                "try again later, or delete unfinished uploads; its operator can raise media_store_bytes"
            )
        if self._entries - self._idle_files + entries > MAX_ENTRIES:
            raise StoreFullError(
                f"the store has {MAX_ENTRIES} unfinished uploads and files in use, as many as it takes; try again "
                "later, or delete some"
            )

    def reserve(self, size: int) -> None:
        """Count so many bytes as used; unused files go where that is needed. Raises StoreFullError, and none went."""
        if self.used_bytes + size > self.capacity_bytes:
            self.check_room(size)
            self._evict_until(lambda: self.used_bytes + size <= self.capacity_bytes)
        self.used_bytes += size

    def give_back(self, size: int) -> None:
        """Bytes that were reserved and not used in the end."""
        self.used_bytes -= size
        assert self.used_bytes >= 0

    # Files

    def now(self) -> float:
        """The store's clock."""
        return self._clock()

    def find(self, key: Key) -> HeldFile | None:
        """The file, unless it is past its time."""
        held = self._held.get(key)
        if held is not None and self._is_past(held):
            self.remove(held)
            return None
        return held

    def seconds_left(self, held: HeldFile) -> float:
        """How long the file is kept if nobody uses it."""
        return max(0.0, held.last_used + self.held_seconds - self._clock())

    def touch(self, held: HeldFile) -> None:
        """It is used now."""
        held.last_used = self._clock()
        if not held.is_removed:
            self._held.move_to_end(held.key)

    def add(self, held: HeldFile) -> None:
        """A complete file, whose bytes are reserved; takes the place of another with its key."""
        previous = self._held.get(held.key)
        if previous is not None:
            self.remove(previous)
        self._held[held.key] = held
        self._count_idle(held, 1)

    def remove(self, held: HeldFile) -> None:
        """Nobody finds it any more; its body goes when nobody reads it. Idempotent."""
        if not held.is_removed:
            held.is_removed = True
            del self._held[held.key]
            if not held.readers:
                self._count_idle(held, -1)
                self.discard_reserved(held.body, held.size)

    @contextmanager
    def reading(self, held: HeldFile) -> Iterator[None]:
        """While this lasts the body stays, even if the file is deleted."""
        if not held.readers:
            self._count_idle(held, -1)
        held.readers += 1
        try:
            yield
        finally:
            self.touch(held)
            held.readers -= 1
            self._last_reader_left(held)

    # Unfinished uploads

    def find_partial(self, key: Key) -> PartialUpload | None:
        """What can be resumed, unless it is past its time."""
        partial = self._resumable.get(key)
        if partial is not None and self._is_past_resuming(partial):
            self.drop(partial)
            return None
        return partial

    def add_partial(self, partial: PartialUpload) -> None:
        """A new one; takes the place of another with its key. Raises StoreFullError."""
        previous = None if partial.key is None else self._resumable.get(partial.key)
        if previous is not None:
            self.drop(previous)
        if self._entries >= MAX_ENTRIES:
            self.check_room(0, entries=1)
            self._evict_until(lambda: self._entries < MAX_ENTRIES)
        self._partials[partial] = None
        if partial.key is not None:
            self._resumable[partial.key] = partial

    def written(self, partial: PartialUpload, size: int) -> None:
        """So many bytes more have come, and are reserved."""
        partial.committed_bytes += size
        partial.last_written = self._clock()
        self._partials.move_to_end(partial)

    def finish(self, partial: PartialUpload) -> None:
        """It is complete and becomes a file: nobody can resume or drop it any more. Its bytes stay reserved."""
        assert partial.state is PartialState.OPEN
        partial.state = PartialState.SEALING
        self._forget(partial)

    def drop(self, partial: PartialUpload) -> None:
        """Nothing of it is kept; its writer is refused from now on. Idempotent."""
        if partial.state is PartialState.OPEN:
            partial.state = PartialState.GONE
            self._forget(partial)
            self.discard_reserved(partial.body, partial.committed_bytes)

    def discard_reserved(self, body: Body, size: int) -> None:
        """A body goes, and its bytes with it."""
        self.give_back(size)
        self._discard(body)

    # Time

    def sweep(self) -> None:
        """Let everything go that is past its time."""
        while (held := self._first_idle()) is not None and self._is_past(held):
            self.remove(held)
        while self._partials and self._is_past_resuming(partial := next(iter(self._partials))):
            self.drop(partial)

    def check_integrity(self) -> None:
        """For tests, when nothing is being written: the sum of what is listed is what is used."""
        files = sum(held.size for held in self._held.values())
        partials = sum(partial.committed_bytes for partial in self._partials)
        assert self.used_bytes == files + partials <= self.capacity_bytes
        assert set(self._resumable.values()) <= set(self._partials)
        assert all(partial.state is PartialState.OPEN for partial in self._partials)
        assert not any(held.readers or held.is_removed for held in self._held.values())
        assert (self._idle_files, self._idle_bytes) == (len(self._held), files)

    @property
    def _entries(self) -> int:
        return len(self._held) + len(self._partials)

    def _is_past(self, held: HeldFile) -> bool:
        return not held.readers and self._clock() - held.last_used >= self.held_seconds

    def _is_past_resuming(self, partial: PartialUpload) -> bool:
        return self._clock() - partial.last_written >= self._partial_seconds

    def _evict_until(self, is_enough: Callable[[], bool]) -> None:
        while not is_enough():
            held = self._first_idle()
            assert held is not None, "check_room promised enough of them"
            self.remove(held)

    def _first_idle(self) -> HeldFile | None:
        """The least recently used file that nobody reads."""
        return next((held for held in self._held.values() if not held.readers), None)

    def _last_reader_left(self, held: HeldFile) -> None:
        if held.readers:
            return
        if held.is_removed:
            self.discard_reserved(held.body, held.size)
        else:
            self._count_idle(held, 1)

    def _count_idle(self, held: HeldFile, sign: int) -> None:
        self._idle_files += sign
        self._idle_bytes += sign * held.size

    def _forget(self, partial: PartialUpload) -> None:
        del self._partials[partial]
        if partial.key is not None and self._resumable.get(partial.key) is partial:
            del self._resumable[partial.key]
