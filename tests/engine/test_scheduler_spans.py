"""Chunks never end inside a span, and everybody gets there all the same; proven without a device."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from fanlight_engine.checkpoints.families import Bidirectional
from fanlight_engine.client import CoreFacts
from fanlight_engine.core.image_mask import ImageMask
from fanlight_engine.core.messages import AddRequest, MaskRun, MediaInput, SamplingParams
from fanlight_engine.core.scheduler import Chunk, Plan
from fanlight_engine.core.sequence import Sequence
from fanlight_engine.core.spans import refusal_of_spans, spans_of
from tests.engine.builders import Part, data, embedded, picture, sequence, words
from tests.engine.test_scheduler import Core, RandomTraffic, chunks


class SeeingCore(Core):
    """A core of a family with spans; `add` refuses what the core's own admission does."""

    def __init__(self, bidirectional: Bidirectional, cached_rows: int = 64, **changed: int | bool) -> None:
        super().__init__(cached_rows=cached_rows, **changed)
        self.facts = CoreFacts(
            context_length=1024,
            page_size=self.config.page_size,
            pages=self.pool.pages,
            vision_cache_bytes=cached_rows,
            embedding_row_bytes=1,
            bidirectional=bidirectional,
            longest_span=self.config.max_step_tokens - self.config.max_running_requests + 1,
        )

    def takes(self, *parts: Part) -> bool:
        one = sequence("any", *parts, bidirectional=self.facts.bidirectional)
        return refusal_of_spans(one.spans, one.request.media, self.facts) is None

    def add(self, request_id: str, *parts: Part, max_new_tokens: int = 4) -> Sequence:
        assert self.takes(*parts)
        one = sequence(request_id, *parts, bidirectional=self.facts.bidirectional, max_new_tokens=max_new_tokens)
        self.alive[request_id] = one
        self.scheduler.add(one)
        return one

    def _check_budgets(self, plan: Plan) -> None:
        groups = {
            (job.sequence.id, job.sequence.spans.media_with(job.number))
            for job in plan.encode_jobs.values()
            if job.sequence is not None
        }
        has_encodes = any(job.sequence is None for job in plan.encode_jobs.values())
        if len(groups) == 1 and not has_encodes:
            plan = Plan(plan.chunks)  # media of one span are one medium to the encoder's budget
        super()._check_budgets(plan)

    def _check_chunk(self, chunk: Chunk) -> None:
        super()._check_chunk(chunk)
        for span in chunk.sequence.spans.in_order:
            assert not span.start < chunk.end < span.end, f"{chunk} ends inside {span}"


parts = st.lists(
    st.one_of(
        st.integers(1, 8).map(words),  # all of the same text, so that prompts share pages
        st.sampled_from([1, 3, 6, 11]).map(lambda rows: picture(f"of {rows} rows", rows)),
        st.sampled_from([1, 2, 3]).map(lambda rows: picture(f"other of {rows} rows", rows)),
    ),
    min_size=1,
    max_size=6,
)


class RandomMediaSpans(RandomTraffic):
    """As there, where every picture, and pictures that touch, must be computed as a whole."""

    bidirectional = Bidirectional.MEDIA
    step_tokens = 20

    def __init__(self) -> None:
        super().__init__()
        self.core = SeeingCore(self.bidirectional, pages=18, cached_rows=12, max_step_tokens=self.step_tokens)

    @rule(parts=parts, max_new_tokens=st.integers(1, 6))
    def add(self, parts: list[Part], max_new_tokens: int) -> None:
        assert isinstance(self.core, SeeingCore)
        if len(sequence("any", *parts).tokens) + max_new_tokens <= 17 * 4 and self.core.takes(*parts):
            self.added.append(f"request-{len(self.added)}")
            self.core.add(self.added[-1], *parts, max_new_tokens=max_new_tokens)


class RandomPromptSpans(RandomMediaSpans):
    """As there, where every prompt must be computed as a whole."""

    bidirectional = Bidirectional.PROMPT
    step_tokens = 32


TestRandomMediaSpans = RandomMediaSpans.TestCase
TestRandomMediaSpans.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestRandomPromptSpans = RandomPromptSpans.TestCase
TestRandomPromptSpans.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_chunk_ends_before_a_picture_that_the_rest_of_the_step_has_no_room_for() -> None:
    core = SeeingCore(Bidirectional.MEDIA)
    core.add("one", words(10), picture("a", 8), words(3), max_new_tokens=1)
    first, second = core.step(), core.step()
    assert chunks(first) == [("one", 0, 10)]
    assert not first.encode_jobs, "nor is it encoded before its turn"
    assert chunks(second) == [("one", 10, 21)]
    assert core.finished == ["one"]


def test_a_whole_prompt_waits_for_a_step_that_has_room_for_it_beside_running_streams() -> None:
    core = SeeingCore(Bidirectional.PROMPT)
    core.add("elder", words(13, seed=1), max_new_tokens=1)
    core.add("younger", picture("a", 4), words(7), max_new_tokens=2)
    assert chunks(core.step()) == [("elder", 0, 13)]
    assert chunks(core.step()) == [("younger", 0, 11)]
    assert chunks(core.step()) == [("younger", 11, 12)], "what is generated is computed token by token"


def test_the_longest_span_of_all_gets_its_step_however_many_streams_run() -> None:
    core = SeeingCore(Bidirectional.MEDIA, pages=64)
    for number in range(3):
        core.add(f"stream-{number}", words(2, seed=number), max_new_tokens=40)
    core.step()
    longest = picture("longest", core.facts.longest_span)
    core.add("longest", words(4), longest, words(1), max_new_tokens=1)
    assert not core.takes(picture("longer", longest.embedding_rows + 1))
    for _ in range(3):
        core.step()
    assert core.finished == ["longest"]
    assert len(core.alive) == 3


def test_a_prompt_cached_half_way_into_a_picture_goes_on_there_to_its_end() -> None:
    core = SeeingCore(Bidirectional.MEDIA)
    core.add("first", words(2), picture("a", 8), words(3), max_new_tokens=1)
    core.run()
    again = core.add("again", words(2), picture("a", 8), words(1, seed=5), max_new_tokens=1)
    assert core.scheduler.cached_tokens(again) == 8
    assert chunks(core.step()) == [("again", 8, 11)]


def test_pictures_that_touch_are_encoded_in_one_step_even_above_its_budget() -> None:
    core = SeeingCore(Bidirectional.MEDIA, max_step_tokens=64)
    core.add("one", words(2), picture("a", 6), picture("b", 6), words(1), picture("c", 6), max_new_tokens=1)
    first, second = core.step(), core.step()
    assert (chunks(first), len(first.encode_jobs)) == ([("one", 0, 15)], 2)
    assert (chunks(second), len(second.encode_jobs)) == ([("one", 15, 21)], 1)


def test_two_requests_that_each_need_half_of_the_cache_twice_do_not_block_each_other() -> None:
    core = SeeingCore(Bidirectional.MEDIA, cached_rows=8, max_step_tokens=32, max_step_embedding_rows=4)
    ready = embedded("ready", data(np.zeros((4, 1), dtype=np.float32)))  # costs the tower nothing, so it could slip in
    core.add("one", words(1), picture("a", 4), picture("b", 4), words(2), max_new_tokens=2)
    core.add("two", words(1), ready, picture("c", 4), words(2), max_new_tokens=2)
    core.run(limit=20)
    assert core.finished == ["one", "two"]


def test_media_linked_by_a_span_stay_until_all_of_them_are_passed() -> None:
    core = SeeingCore(Bidirectional.MEDIA, max_step_tokens=9, max_running_requests=1)
    scattered = linked(picture("a", 4), picture("b", 4))
    core.alive["one"] = scattered
    core.scheduler.add(scattered)
    assert chunks(core.step()) == [("one", 0, 6)]
    assert len(scattered.pinned) == 2, "the second is needed with the rest of the first"
    assert chunks(core.step()) == [("one", 6, 13)]
    assert not scattered.pinned
    core.run()


@pytest.mark.parametrize("bidirectional", [Bidirectional.MEDIA, Bidirectional.PROMPT])
def test_a_preempted_prompt_is_computed_as_a_whole_again_and_its_answer_is_not(bidirectional: Bidirectional) -> None:
    core = SeeingCore(bidirectional, pages=9, max_step_tokens=24)
    for number in range(3):
        core.add(str(number), words(3, seed=number), picture(str(number), 5), words(3), max_new_tokens=18)
    core.run()
    assert core.scheduler.preemptions > 0
    assert sorted(core.finished) == ["0", "1", "2"]


def linked(first: MediaInput, second: MediaInput) -> Sequence:
    """A prompt of 13 tokens that shows two rows of the first, and then the other two with all of the second behind."""
    runs = (MaskRun(1, 0, 2), MaskRun(6, 2, 6))
    made = AddRequest("one", tuple(words(13)), SamplingParams(max_new_tokens=1), (first, second), runs)
    mask = ImageMask(made.media, runs, 13)
    return Sequence(made, mask, spans_of(Bidirectional.MEDIA, mask, 13))
