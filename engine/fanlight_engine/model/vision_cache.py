"""Embeddings of pictures and clips by digest, bounded by bytes. Opaque to what an embedding is: the runner stores
tensors in it.

An entry is reserved before the tower runs (so that the budget is never exceeded and nothing is encoded twice), then
filled. Pinned entries are in use and stay; of the others the least recently used goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

Embedding = TypeVar("Embedding")


@dataclass(slots=True)
class _Entry(Generic[Embedding]):
    size: int
    pins: int = 0
    embedding: Embedding | None = None


class VisionCache(Generic[Embedding]):
    """LRU by bytes with pins."""

    def __init__(self, budget: int) -> None:
        """`budget` in bytes."""
        self.budget = budget
        self._entries: OrderedDict[bytes, _Entry[Embedding]] = OrderedDict()
        self.used_bytes = 0

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._entries

    @property
    def pins(self) -> int:
        """Sum of pins over all entries."""
        return sum(entry.pins for entry in self._entries.values())

    def reserve(self, digest: bytes, size: int) -> bool:
        """Make room for an embedding of `size` bytes. False, and no change, while pinned entries leave no room."""
        assert digest not in self._entries, "reserved twice"
        evictable = sum(entry.size for entry in self._entries.values() if not entry.pins)
        if self.used_bytes - evictable + size > self.budget:
            return False
        while self.used_bytes + size > self.budget:
            self._evict_oldest()
        self._entries[digest] = _Entry(size)
        self.used_bytes += size
        return True

    def fill(self, digest: bytes, embedding: Embedding) -> None:
        """Put the embedding into its reservation."""
        self._entries[digest].embedding = embedding

    def get(self, digest: bytes) -> Embedding:
        """The embedding of a filled entry, which becomes the most recently used."""
        entry = self._entries[digest]
        assert entry.embedding is not None, "read before it was encoded"
        self._entries.move_to_end(digest)
        return entry.embedding

    def pin(self, digest: bytes) -> None:
        """Keep the entry until as many unpins."""
        self._entries[digest].pins += 1
        self._entries.move_to_end(digest)

    def unpin(self, digest: bytes) -> None:
        """Undo one pin. A reservation that was never filled goes with its last pin."""
        entry = self._entries[digest]
        assert entry.pins > 0, "unpinned twice"
        entry.pins -= 1
        if not entry.pins and entry.embedding is None:
            self._drop(digest)

    def _evict_oldest(self) -> None:
        self._drop(next(digest for digest, entry in self._entries.items() if not entry.pins))

    def _drop(self, digest: bytes) -> None:
        self.used_bytes -= self._entries.pop(digest).size
