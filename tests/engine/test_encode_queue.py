"""Media that are only to be encoded get what prefills leave, and their turn when these leave nothing."""

from __future__ import annotations

import numpy as np
import pytest

from fanlight_engine.core.encode_queue import EncodeQueue
from fanlight_engine.core.encoder_budget import EncodeJob, EncoderBudget
from fanlight_engine.core.messages import EncodeRequest, MediaInput
from fanlight_engine.core.sequence import Sequence
from fanlight_engine.model.vision_cache import VisionCache
from tests.engine.builders import data, embedded, picture, sequence, words

ROW_BYTES = 2


class Room:
    """A queue beside prefills, with a budget of 8 rows per step over a cache that holds 24."""

    def __init__(self, cached_rows: int = 24) -> None:
        self.cache: VisionCache[str] = VisionCache(cached_rows * ROW_BYTES)
        self.budget = EncoderBudget(self.cache, ROW_BYTES, 8)
        self.queue = EncodeQueue(self.budget)
        self.jobs: dict[bytes, EncodeJob] = {}

    def encode(self, name: str, medium: MediaInput) -> None:
        self.queue.add(EncodeRequest(name, medium))

    def step(self, *prefills: Sequence) -> list[str]:
        """Plan a step in which these sequences want all their media; who of the queue is answered."""
        self.jobs = {}
        self.budget.begin_step(sequences_wait=self.queue.was_passed_over)
        for one in prefills:
            self.budget.limit_chunk(one, one.length, self.jobs)
        self.queue.plan(self.jobs)
        for digest in self.jobs:
            self.cache.fill(digest, "encoded")
        answered = [one.request.request_id for one in self.queue.planned]
        self.queue.finish()
        self.queue.check_integrity()
        return answered


def test_what_fits_the_budget_together_is_encoded_together_in_order_of_arrival() -> None:
    room = Room()
    for name, rows in (("a", 3), ("b", 5), ("c", 1)):
        room.encode(name, picture(name, rows))
    assert room.step() == ["a", "b"]
    assert room.step() == ["c"]
    assert len(room.queue) == 0
    assert room.budget.pins == 0


def test_the_head_is_not_overtaken_by_smaller_ones() -> None:
    room = Room()
    for name, rows in (("a", 3), ("large", 8), ("small", 1)):
        room.encode(name, picture(name, rows))
    assert room.step() == ["a"]
    assert room.step() == ["large"]
    assert room.step() == ["small"]


def test_prefills_come_first_and_leave_the_rest() -> None:
    room = Room()
    room.encode("large", picture("large", 6))
    assert room.step(sequence("talk", picture("shown", 4))) == []
    assert room.step() == ["large"]


def test_a_queue_that_was_passed_over_has_the_next_turn_and_then_prefills_have_it_again() -> None:
    room = Room(cached_rows=1000)
    for number in range(3):
        room.encode(f"encode-{number}", picture(f"e{number}", 8))
    turns = []
    for number in range(6):
        answered = room.step(sequence(f"talk-{number}", picture(f"t{number}", 8)))
        turns.append("queue" if answered else "prefill")
        assert len(room.jobs) == 1
    assert turns == ["prefill", "queue"] * 3


def test_prefills_make_room_for_a_medium_that_needs_the_whole_cache() -> None:
    room = Room(cached_rows=8)
    talk = sequence("talk", picture("a", 3), words(1), picture("b", 3))
    room.step(talk)
    room.encode("whole", picture("whole", 8))
    assert room.step(talk) == [], "what a prefill has pinned it may use"
    talk.computed = talk.length
    room.budget.release_passed(talk)
    younger = sequence("younger", picture("c", 3))
    assert room.step(younger) == ["whole"]
    assert not younger.pinned
    assert room.step(younger) == []
    assert younger.pinned, "and then goes on"


def test_a_medium_that_a_prefill_encodes_in_this_step_is_not_encoded_twice() -> None:
    room = Room()
    same = picture("same", 6)
    room.encode("one", same)
    room.encode("two", same)
    assert room.step(sequence("talk", same)) == ["one", "two"]
    assert [job.sequence and job.sequence.id for job in room.jobs.values()] == ["talk"]


def test_only_the_first_of_several_runs_the_tower() -> None:
    room = Room()
    room.encode("one", picture("same", 6))
    room.encode("two", picture("same", 6))
    room.budget.begin_step()
    room.queue.plan(room.jobs)
    assert [one.runs_tower for one in room.queue.planned] == [True, False]
    assert len(room.jobs) == 1
    with pytest.raises(AssertionError, match="2 encode requests were planned"):
        room.queue.check_integrity()


def test_embeddings_that_come_along_cost_none_of_the_budget() -> None:
    room = Room()
    brought = [embedded(f"brought-{number}", data(np.zeros((5, 1), dtype=np.float32))) for number in range(3)]
    talk = sequence("talk", picture("a", 8), *brought)
    assert room.budget.limit_chunk(talk, talk.length, room.jobs) == talk.length
    assert len(room.jobs) == 4
    assert room.budget.limit_chunk(talk, talk.length, room.jobs) == talk.length
    assert room.budget.cache_hits == 0


def test_an_aborted_request_is_forgotten() -> None:
    room = Room()
    room.encode("gone", picture("gone", 3))
    room.encode("here", picture("here", 3))
    room.queue.abort("gone")
    room.queue.abort("never heard of")
    assert "gone" not in room.queue
    assert room.step() == ["here"]
