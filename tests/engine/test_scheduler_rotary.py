"""All pages of a sequence are computed under the rotary factors of its length; proven without a device."""

from __future__ import annotations

import pytest
from hypothesis import settings

from fanlight_engine.core.scheduler import Chunk, Scheduler
from fanlight_engine.core.sequence import Status
from tests.engine.builders import words
from tests.engine.test_scheduler import Core, RandomTraffic, chunks

BORDER = 10


class BorderCore(Core):
    """A core whose model takes long factors above BORDER tokens, and which knows what each page was computed under."""

    def __init__(self, pages: int = 17, cached_rows: int = 64, **changed: int | bool) -> None:
        super().__init__(pages, cached_rows, **changed)
        self.scheduler = Scheduler(self.config, self.pool, self.encoder, BORDER)
        self.is_long: dict[int, bool] = {}

    def _check_chunk(self, chunk: Chunk) -> None:
        super()._check_chunk(chunk)
        one, page_size = chunk.sequence, self.config.page_size
        assert one.long_factors == (one.length > BORDER)
        begun, computed = -(-chunk.start // page_size), -(-chunk.end // page_size)
        self.is_long.update(dict.fromkeys(one.pages[begun:computed], one.long_factors))
        assert all(self.is_long[page] == one.long_factors for page in one.pages[:computed]), "pages of both kinds"


class RandomTrafficOverTheBorder(RandomTraffic):
    """As there; prompts of both kinds share beginnings, and answers cross."""

    def __init__(self) -> None:
        super().__init__()
        self.core = BorderCore(pages=18, cached_rows=12)


TestRandomTrafficOverTheBorder = RandomTrafficOverTheBorder.TestCase
TestRandomTrafficOverTheBorder.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_stream_that_crosses_is_computed_again_in_the_same_step_and_keeps_its_place() -> None:
    core = BorderCore()
    crossing = core.add("crossing", words(8), max_new_tokens=6)
    other = core.add("other", words(3, seed=1), max_new_tokens=9)
    plans = [chunks(core.step()) for _ in range(5)]
    assert plans == [
        [("crossing", 0, 8), ("other", 0, 3)],
        [("crossing", 8, 9), ("other", 3, 4)],
        [("crossing", 9, 10), ("other", 4, 5)],
        [("other", 5, 6), ("crossing", 0, 11)],
        [("crossing", 11, 12), ("other", 6, 7)],
    ]
    assert (crossing.preemptions, other.preemptions, core.scheduler.preemptions) == (0, 0, 0)
    core.run()


def test_what_is_computed_again_takes_as_many_steps_as_it_has_chunks() -> None:
    core = BorderCore(max_step_tokens=6)
    core.add("crossing", words(10), max_new_tokens=2)
    plans = [chunks(core.step()) for _ in range(4)]
    assert [plan[0][1:] for plan in plans] == [(0, 6), (6, 10), (0, 6), (6, 11)]
    core.run()


def test_an_answer_that_ends_at_the_border_is_not_computed_again() -> None:
    core = BorderCore()
    core.add("ending", words(8), max_new_tokens=3)
    assert [chunks(core.step())[0][1:] for _ in range(3)] == [(0, 8), (8, 9), (9, 10)]
    assert core.finished == ["ending"]


def test_a_sequence_that_is_preempted_at_the_border_comes_back_under_long_factors() -> None:
    core = BorderCore(pages=7)
    core.add("old", words(8), max_new_tokens=14)
    young = core.add("young", words(8, seed=1), max_new_tokens=6)
    while young.status is not Status.WAITING or young.length <= BORDER:
        core.step()
    core.run()
    assert core.finished == ["old", "young"]


@pytest.mark.parametrize("length", [BORDER, BORDER + 1])
def test_factors_are_chosen_before_it_is_told_what_the_prefix_cache_holds(length: int) -> None:
    core = BorderCore()
    core.add("first", words(length), max_new_tokens=1)
    core.run()
    again = core.add("again", words(length), max_new_tokens=1)
    assert core.scheduler.cached_tokens(again) == 8
    longer = core.add("longer", words(BORDER + 5), max_new_tokens=1)
    assert core.scheduler.cached_tokens(longer) == (8 if length > BORDER else 0)
    core.run()


def test_without_a_border_every_token_is_computed_once() -> None:
    core = Core()
    core.add("one", words(8), max_new_tokens=20)
    plans = [chunks(core.step())[0] for _ in range(20)]
    assert plans == [("one", 0, 8), *(("one", start, start + 1) for start in range(8, 27))]
    assert core.finished == ["one"]
