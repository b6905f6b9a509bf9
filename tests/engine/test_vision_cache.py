"""Embeddings stay within their bytes, and stay at all while somebody needs them."""

from __future__ import annotations

import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fanlight_engine.model.vision_cache import VisionCache

BUDGET = 10
DIGESTS = [bytes([number]) for number in range(6)]

needs_engine_asserts = pytest.mark.skipif(sys.flags.optimize > 0, reason="python -O strips the engine's asserts")


class CacheAgainstModel(RuleBasedStateMachine):
    """Reservations, fills, pins and reads in any order, next to a list of entries from least to most recently used."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: VisionCache[str] = VisionCache(BUDGET)
        self.order: list[bytes] = []
        self.sizes: dict[bytes, int] = {}
        self.pins: dict[bytes, int] = {}
        self.filled: set[bytes] = set()

    @rule(digest=st.sampled_from(DIGESTS), size=st.integers(1, BUDGET + 2))
    def reserve_and_pin(self, digest: bytes, size: int) -> None:
        if digest in self.order:
            return
        pinned = sum(self.sizes[one] for one in self.order if self.pins[one])
        fits = pinned + size <= BUDGET
        assert self.cache.reserve(digest, size) is fits
        if not fits:
            return
        while sum(self.sizes[one] for one in self.order) + size > BUDGET:
            self._drop(next(one for one in self.order if not self.pins[one]))
        self.order.append(digest)
        self.sizes[digest], self.pins[digest] = size, 0
        self.pin(digest)

    @precondition(lambda self: self.order)
    @rule(choice=st.data())
    def pin_again(self, choice: st.DataObject) -> None:
        self.pin(choice.draw(st.sampled_from(self.order)))

    @precondition(lambda self: any(self.pins.values()))
    @rule(choice=st.data())
    def fill(self, choice: st.DataObject) -> None:
        digest = choice.draw(st.sampled_from([one for one in self.order if self.pins[one]]))
        self.cache.fill(digest, digest.hex())
        self.filled.add(digest)

    @precondition(lambda self: self.filled)
    @rule(choice=st.data())
    def get(self, choice: st.DataObject) -> None:
        digest = choice.draw(st.sampled_from(sorted(self.filled)))
        assert self.cache.get(digest) == digest.hex()
        self._used(digest)

    @precondition(lambda self: any(self.pins.values()))
    @rule(choice=st.data())
    def unpin(self, choice: st.DataObject) -> None:
        digest = choice.draw(st.sampled_from([one for one in self.order if self.pins[one]]))
        self.cache.unpin(digest)
        self.pins[digest] -= 1
        if not self.pins[digest] and digest not in self.filled:
            self._drop(digest)

    @invariant()
    def the_budget_is_kept_and_pinned_entries_are_there(self) -> None:
        assert self.cache.used_bytes == sum(self.sizes[one] for one in self.order) <= BUDGET
        assert [digest for digest in DIGESTS if digest in self.cache] == sorted(self.order)
        assert self.cache.pins == sum(self.pins[one] for one in self.order)

    def pin(self, digest: bytes) -> None:
        self.cache.pin(digest)
        self.pins[digest] += 1
        self._used(digest)

    def _used(self, digest: bytes) -> None:
        self.order.remove(digest)
        self.order.append(digest)

    def _drop(self, digest: bytes) -> None:
        self.order.remove(digest)
        self.filled.discard(digest)
        del self.pins[digest]


TestCacheAgainstModel = CacheAgainstModel.TestCase
TestCacheAgainstModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def cache_with(*digests: bytes, size: int = 4) -> VisionCache[str]:
    """A cache with filled, unpinned entries."""
    cache: VisionCache[str] = VisionCache(BUDGET)
    for digest in digests:
        assert cache.reserve(digest, size)
        cache.fill(digest, digest.decode())
    return cache


def test_the_least_recently_used_embedding_goes_first() -> None:
    cache = cache_with(b"old", b"new")
    cache.get(b"old")
    assert cache.reserve(b"third", 4)
    assert b"old" in cache
    assert b"new" not in cache


def test_a_pinned_embedding_is_never_evicted() -> None:
    cache = cache_with(b"pinned", b"free")
    cache.pin(b"pinned")
    assert not cache.reserve(b"large", 7)
    assert b"free" in cache, "a refused reservation evicts nothing"
    assert cache.reserve(b"fitting", 6)
    assert cache.get(b"pinned") == "pinned"
    assert b"free" not in cache


def test_a_reservation_that_was_never_filled_goes_with_its_last_pin() -> None:
    cache: VisionCache[str] = VisionCache(BUDGET)
    cache.reserve(b"promised", 10)
    cache.pin(b"promised")
    cache.pin(b"promised")
    cache.unpin(b"promised")
    assert b"promised" in cache
    cache.unpin(b"promised")
    assert b"promised" not in cache
    assert cache.used_bytes == 0


def test_a_filled_embedding_outlives_its_last_pin() -> None:
    cache = cache_with(b"seen")
    cache.pin(b"seen")
    cache.unpin(b"seen")
    assert cache.get(b"seen") == "seen"


def test_more_than_the_whole_budget_is_never_promised() -> None:
    cache: VisionCache[str] = VisionCache(BUDGET)
    assert not cache.reserve(b"huge", BUDGET + 1)
    assert cache.used_bytes == 0
    assert cache.reserve(b"exact", BUDGET)


@needs_engine_asserts
def test_unpinning_twice_and_reading_before_encoding_are_our_bugs() -> None:
    cache = cache_with(b"seen")
    with pytest.raises(AssertionError, match="unpinned twice"):
        cache.unpin(b"seen")
    cache.reserve(b"promised", 1)
    with pytest.raises(AssertionError, match="before it was encoded"):
        cache.get(b"promised")
