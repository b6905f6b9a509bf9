"""Pages are conserved whatever happens, and the least recently released content goes first."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fanlight_engine.core.block_pool import DUMMY_PAGE, BlockPool

needs_engine_asserts = pytest.mark.skipif(sys.flags.optimize > 0, reason="python -O strips the engine's asserts")
PAGES = 8


class PoolAgainstModel(RuleBasedStateMachine):
    """Random holders of pages, next to the plainest model of what the pool should do."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(PAGES)
        self.evicted: list[int] = []
        self.pool.on_evict = self.evicted.append
        self.holders: Counter[int] = Counter()
        self.remembered: set[int] = set()
        self.kept: list[int] = []

    @rule(count=st.integers(0, PAGES))
    def allocate(self, count: int) -> None:
        free = PAGES - 1 - len(self.holders) - len(self.kept)
        self.evicted.clear()
        pages = self.pool.allocate(count)
        if count > free + len(self.kept):
            assert pages is None
            assert not self.evicted
            return
        assert pages is not None
        assert len(pages) == len(set(pages)) == count
        assert DUMMY_PAGE not in pages
        assert not self.holders.keys() & set(pages)
        expected = self.kept[: max(0, count - free)]
        assert self.evicted == expected, "least recently released first, and only when nothing is free"
        assert set(pages) >= set(expected)
        self.kept = self.kept[len(expected) :]
        self.remembered -= set(expected)
        self.holders.update(pages)

    @precondition(lambda self: self.holders or self.kept)
    @rule(choice=st.data())
    def retain(self, choice: st.DataObject) -> None:
        page = choice.draw(st.sampled_from(sorted({*self.holders, *self.kept})))
        self.pool.retain(page)
        self.holders[page] += 1
        if page in self.kept:
            self.kept.remove(page)

    @precondition(lambda self: self.holders)
    @rule(choice=st.data())
    def release(self, choice: st.DataObject) -> None:
        pages = choice.draw(st.lists(st.sampled_from(sorted(self.holders)), unique=True))
        self.pool.release(pages)
        for page in pages:
            self.holders[page] -= 1
            if not self.holders[page]:
                del self.holders[page]
                self.kept.extend([page] if page in self.remembered else [])

    @precondition(lambda self: self.holders)
    @rule(choice=st.data())
    def remember(self, choice: st.DataObject) -> None:
        page = choice.draw(st.sampled_from(sorted(self.holders)))
        self.pool.remember(page)
        self.remembered.add(page)

    @invariant()
    def every_page_is_in_one_place(self) -> None:
        self.pool.check_integrity(self.holders.elements())
        assert self.pool.available == self.pool.usable_pages - len(self.holders)
        assert [page for page in range(PAGES) if self.pool.is_kept(page)] == sorted(self.kept)


TestPoolAgainstModel = PoolAgainstModel.TestCase
TestPoolAgainstModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_all_pages_but_the_dummy_can_be_held_at_once() -> None:
    pool = BlockPool(PAGES)
    assert sorted(pool.allocate(PAGES - 1) or []) == list(range(1, PAGES))
    assert pool.allocate(1) is None
    assert pool.allocate(0) == []


def test_the_tail_of_a_released_prompt_is_evicted_before_its_head() -> None:
    pool = BlockPool(4)
    head, middle, tail = pool.allocate(3) or []
    for page in (head, middle, tail):
        pool.remember(page)
    pool.release(reversed([head, middle, tail]))
    assert [pool.allocate(1), pool.allocate(1), pool.allocate(1)] == [[tail], [middle], [head]]


def test_using_a_kept_page_again_makes_it_the_last_to_be_evicted() -> None:
    pool = BlockPool(3)
    first, second = pool.allocate(2) or []
    for page in (first, second):
        pool.remember(page)
        pool.release([page])
    pool.retain(first)
    pool.release([first])
    assert pool.allocate(1) == [second]


def test_a_forgotten_page_is_reused_before_any_content_is_evicted() -> None:
    pool = BlockPool(3)
    content, scratch = pool.allocate(2) or []
    pool.remember(content)
    pool.release([content, scratch])
    assert pool.allocate(1) == [scratch]
    assert pool.is_kept(content)


def test_integrity_check_notices_a_lost_holder_and_an_invented_one() -> None:
    pool = BlockPool(PAGES)
    pages = pool.allocate(3) or []
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity(pages[:2])
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity([*pages, pages[0]])


@needs_engine_asserts
def test_releasing_a_page_twice_is_our_bug() -> None:
    pool = BlockPool(PAGES)
    pages = pool.allocate(1) or []
    pool.release(pages)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(pages)


@needs_engine_asserts
def test_sharing_a_page_without_content_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="no content"):
        BlockPool(PAGES).retain(1)
