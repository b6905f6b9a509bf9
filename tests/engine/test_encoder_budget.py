"""A step encodes few image rows, each image once, and pins last from the first chunk to the last."""

from __future__ import annotations

from fanlight_engine.core.encoder_budget import EncodeJob, EncoderBudget
from fanlight_engine.core.sequence import Sequence
from fanlight_engine.model.vision_cache import VisionCache
from tests.engine.builders import picture, sequence, words

ROW_BYTES = 2


class Room:
    """An encoder budget of 8 rows per step over a cache that holds 24."""

    def __init__(self, cached_rows: int = 24, step_rows: int = 8) -> None:
        self.cache: VisionCache[str] = VisionCache(cached_rows * ROW_BYTES)
        self.budget = EncoderBudget(self.cache, ROW_BYTES, step_rows)
        self.jobs: dict[bytes, EncodeJob] = {}

    def step(self) -> None:
        """Finish the step's encoding and begin the next."""
        for digest in self.jobs:
            self.cache.fill(digest, "encoded")
        self.jobs = {}
        self.budget.begin_step()

    def cut(self, one: Sequence, end: int | None = None) -> int:
        """Where the chunk from what is computed to `end` (the prompt's) has to stop."""
        return self.budget.limit_chunk(one, one.length if end is None else end, self.jobs)


def encoded(room: Room) -> list[str]:
    """Who asked for what is encoded in this step."""
    return [f"{job.sequence.id}:{job.number}" for job in room.jobs.values() if job.sequence is not None]


def test_a_chunk_stops_before_the_first_image_over_the_step_budget() -> None:
    room = Room()
    talk = sequence("talk", words(3), picture("a", 5), words(2), picture("b", 5), words(2))
    assert room.cut(talk) == 3 + 5 + 2
    assert encoded(room) == ["talk:0"]
    room.step()
    talk.computed = 10
    assert room.cut(talk) == talk.length
    assert encoded(room) == ["talk:1"]


def test_images_that_fit_the_budget_together_are_encoded_together() -> None:
    room = Room()
    assert room.cut(sequence("one", picture("a", 5))) == 5
    assert room.cut(sequence("two", picture("b", 3))) == 3
    assert room.cut(sequence("three", words(4), picture("c", 1))) == 4
    assert encoded(room) == ["one:0", "two:0"]


def test_an_image_larger_than_the_budget_is_encoded_alone() -> None:
    room = Room()
    large = sequence("large", picture("large", 20))
    assert room.cut(large) == 20
    assert room.cut(sequence("next", picture("small", 1))) == 0
    room.step()
    assert room.cut(sequence("small", picture("small", 1))) == 1
    assert room.cut(sequence("larger", words(2), picture("another", 20))) == 2, "not beside another one"


def test_beside_running_streams_a_step_encodes_a_quarter_but_always_one() -> None:
    room = Room()
    room.budget.begin_step(decodes_run=True)
    assert room.cut(sequence("one", picture("a", 1), picture("b", 1), picture("c", 1))) == 2
    assert encoded(room) == ["one:0", "one:1"]
    room.step()
    room.budget.begin_step(decodes_run=True)
    large = sequence("large", picture("large", 20), picture("next", 1))
    assert room.cut(large) == 20
    room.step()
    room.budget.release_all(large)
    assert room.cut(sequence("three", picture("d", 4), picture("e", 4))) == 8, "nobody waits any more"


def test_sequences_that_are_to_wait_go_on_with_what_they_have_pinned() -> None:
    room = Room()
    talk = sequence("talk", picture("a", 3), words(2), picture("b", 3))
    assert room.cut(talk, end=2) == 2
    room.step()
    talk.computed = 2
    room.budget.begin_step(sequences_wait=True)
    assert room.cut(talk) == 5
    assert room.cut(sequence("other", words(4), picture("a", 3))) == 4, "not even what is cached"


def test_text_before_an_image_waits_for_nobody() -> None:
    room = Room()
    room.cut(sequence("first", picture("a", 8)))
    assert room.cut(sequence("second", words(6), picture("b", 8)), end=6) == 6


def test_the_same_image_is_encoded_once_for_all_who_show_it() -> None:
    room = Room()
    for name in ("one", "two", "three"):
        assert room.cut(sequence(name, picture("same", 6), words(2), picture("same", 6))) == 14
    assert encoded(room) == ["one:0"]
    assert room.budget.pins == 3
    assert room.budget.cache_hits == 2


def test_a_cached_image_costs_none_of_the_budget() -> None:
    room = Room()
    seen = sequence("seen", picture("a", 8))
    room.cut(seen)
    room.step()
    room.budget.release_all(seen)
    assert room.cut(sequence("again", picture("a", 8), picture("b", 8))) == 16
    assert encoded(room) == ["again:1"]


def test_an_image_stays_pinned_exactly_while_a_chunk_ends_inside_it() -> None:
    room = Room()
    talk = sequence("talk", picture("a", 4), words(2), picture("b", 4), words(2))
    for end, pinned in [(3, 1), (4, 0), (5, 0), (7, 1), (9, 1), (10, 0), (12, 0)]:
        assert room.cut(talk, end) == end
        room.step()
        talk.computed = end
        room.budget.release_passed(talk)
        assert room.budget.pins == len(talk.pinned) == pinned, f"after {end} tokens"


def test_an_image_shown_twice_does_not_block_what_comes_between() -> None:
    room = Room(cached_rows=8)
    talk = sequence("talk", picture("a", 6), picture("b", 6), picture("a", 6))
    for end in (6, 12, 18):
        assert room.cut(talk) == end
        assert len(room.jobs) == 1
        room.step()
        talk.computed = end
        room.budget.release_passed(talk)


def test_an_image_that_finds_no_room_beside_pinned_ones_waits() -> None:
    room = Room(cached_rows=8)
    first, second = sequence("first", picture("a", 6), words(1)), sequence("second", words(1), picture("b", 6))
    assert room.cut(first) == 7
    assert room.cut(second) == 1
    room.step()
    first.computed = 7
    room.budget.release_passed(first)
    assert room.cut(second) == 7


def test_a_reservation_without_anybody_left_is_not_encoded() -> None:
    room = Room()
    lonely, shared = sequence("lonely", picture("a", 3)), sequence("shared", picture("b", 3))
    room.cut(lonely)
    room.cut(shared)
    room.cut(sequence("other", picture("b", 3)))
    room.budget.release_all(lonely)
    room.budget.release_all(shared)
    room.budget.drop_unreserved(room.jobs)
    assert encoded(room) == ["shared:0"], "somebody else still wants b"
    assert room.budget.pins == 1


def test_younger_requests_leave_the_room_that_an_older_one_waits_for() -> None:
    room = Room(cached_rows=8)
    small = sequence("small", picture("a", 3), words(1), picture("b", 3))
    assert room.cut(small, end=4) == 4
    room.step()
    small.computed = 2
    older = sequence("older", picture("large", 8))
    assert room.cut(older) == 0
    assert room.cut(small) == 4, "what it has pinned it may use, but it takes no more"
    assert room.cut(sequence("younger", picture("a", 3))) == 0, "not even what is cached"
    small.computed = 4
    room.budget.release_passed(small)
    room.step()
    assert room.cut(older) == 8
