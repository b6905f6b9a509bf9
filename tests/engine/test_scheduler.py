"""Steps stay within their budgets, nobody overtakes, and everybody gets there; proven without a device."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fanlight_engine.config import EngineConfig
from fanlight_engine.core.block_pool import BlockPool
from fanlight_engine.core.encode_queue import EncodeQueue
from fanlight_engine.core.encoder_budget import EncoderBudget
from fanlight_engine.core.messages import EncodeRequest, MediaInput
from fanlight_engine.core.scheduler import SHORT_PART, Chunk, Plan, Scheduler
from fanlight_engine.core.sequence import Sequence, Status
from fanlight_engine.model.vision_cache import VisionCache
from tests.engine.builders import Part, picture, sequence, words


class Core:
    """A scheduler with a runner that only pretends: it encodes what is asked and samples random ids."""

    def __init__(self, pages: int = 17, cached_rows: int = 64, **changed: int | bool) -> None:
        values = {"page_size": 4, "max_running_requests": 4, "max_step_tokens": 16, "max_step_embedding_rows": 8}
        self.config = EngineConfig(**{**values, **changed})
        self.pool = BlockPool(pages)
        self.vision_cache: VisionCache[str] = VisionCache(cached_rows)
        self.encoder = EncoderBudget(self.vision_cache, 1, self.config.max_step_embedding_rows)
        self.scheduler = Scheduler(self.config, self.pool, self.encoder)
        self.encodes = EncodeQueue(self.encoder)
        self.alive: dict[str, Sequence] = {}
        self.finished: list[str] = []
        self.last_step_was_short = False
        self.ids = random.Random(5)

    def add(self, request_id: str, *parts: Part, max_new_tokens: int = 4) -> Sequence:
        one = sequence(request_id, *parts, max_new_tokens=max_new_tokens)
        self.alive[request_id] = one
        self.scheduler.add(one)
        return one

    def abort(self, request_id: str) -> None:
        self.scheduler.free(self.alive.pop(request_id))

    def encode(self, request_id: str, medium: MediaInput) -> None:
        self.encodes.add(EncodeRequest(request_id, medium))

    def step(self) -> Plan:
        """Schedule, check what every plan must keep to, and pretend to compute it."""
        before, waited = list(self.scheduler.running), list(self.scheduler.waiting)
        passed_over = self.encodes.was_passed_over
        plan = self.scheduler.schedule(leave_encoder=passed_over)
        self.encodes.plan(plan.encode_jobs)
        if not passed_over:
            self._check_order(before, waited, plan)
        self._check_budgets(plan)
        for job in plan.encode_jobs.values():
            self.vision_cache.fill(job.medium.digest, "embedding")
        self._answer_encodes()
        for chunk in plan.chunks:
            self._check_chunk(chunk)
        self._compute(plan)
        self.check()
        return plan

    def run(self, limit: int = 300) -> None:
        """Step until everybody is through."""
        for _ in range(limit):
            if not self.scheduler.has_work and not len(self.encodes):
                break
            self.step()
        assert not self.alive, f"{sorted(self.alive)} still here after {limit} steps"
        assert not len(self.encodes)
        assert self.pool.available == self.pool.usable_pages
        assert self.encoder.pins == 0

    def check(self) -> None:
        self.scheduler.check_integrity()
        self.encodes.check_integrity()
        for queue in (self.scheduler.running, self.scheduler.waiting):
            numbers = [one.number for one in queue]
            assert numbers == sorted(numbers), "in order of arrival"
        assert self.vision_cache.used_bytes <= self.vision_cache.budget

    def _check_order(self, before: list[Sequence], waited: list[Sequence], plan: Plan) -> None:
        flags = [chunk.is_decode for chunk in plan.chunks]
        assert flags == sorted(flags, reverse=True), "decodes come first"
        preempted = [one for one in before if one.status is Status.WAITING]
        assert preempted == before[len(before) - len(preempted) :], "the youngest are preempted"
        planned = {chunk.sequence.id for chunk in plan.chunks}
        for one in self.scheduler.running:
            assert one.id in planned or not one.is_decoding, "a running stream gets its token in every step"
        is_short = self._check_who_went_ahead(waited, plan)
        assert not (is_short and self.last_step_was_short), "every other step is in order of arrival"
        self.last_step_was_short = is_short
        has_text = before and before[0].remaining and not before[0].mask.media(before[0].computed, before[0].length)
        if has_text and not is_short:
            assert before[0].id in planned, "the oldest always goes on"

    def _check_who_went_ahead(self, waited: list[Sequence], plan: Plan) -> bool:
        """Whether the step was a short one; it keeps to what such a step is allowed."""
        still_waiting = [one for one in waited if one.status is Status.WAITING and not one.preemptions]
        started = [chunk for chunk in plan.chunks if chunk.sequence in waited]
        overtaking = [one for one in started if any(old.number < one.sequence.number for old in still_waiting)]
        under_way = [one for one in self.scheduler.running if one.remaining and not one.is_decoding]
        prompts = [chunk for chunk in plan.chunks if not chunk.is_decode]
        left_out = [one for one in under_way if one.id not in {chunk.sequence.id for chunk in prompts}]
        has_overtaken_a_running_one = any(
            one.number < chunk.sequence.number and not one.mask.media(one.computed, one.length)
            for one in left_out
            for chunk in started
        )
        if not overtaking and not has_overtaken_a_running_one:
            return False
        assert prompts == started, "a short step computes nothing of prompts that are under way"
        assert all(chunk.samples for chunk in prompts), "who goes ahead goes whole"
        assert sum(chunk.length for chunk in prompts) <= max(1, self.config.max_step_tokens // SHORT_PART)
        assert not any(chunk.sequence.mask.media(chunk.start, chunk.end) for chunk in prompts), "and brings text only"
        missing = sum(
            -(-one.length // self.config.page_size) for one in still_waiting if one.number < prompts[-1].sequence.number
        )
        missing += sum(-(-one.length // self.config.page_size) - len(one.pages) for one in left_out)
        assert missing <= self.pool.available, "and leaves the pages that those before it need"
        return True

    def _check_budgets(self, plan: Plan) -> None:
        assert plan.tokens <= self.config.max_step_tokens
        assert len(self.scheduler.running) <= self.config.max_running_requests
        rows = [job.medium.embedding_rows for job in plan.encode_jobs.values()]
        decodes = any(chunk.is_decode for chunk in plan.chunks)
        most = self.config.max_step_embedding_rows // 4 if decodes else self.config.max_step_embedding_rows
        assert sum(rows) <= most or len(rows) == 1

    def _check_chunk(self, chunk: Chunk) -> None:
        one = chunk.sequence
        assert one.status is Status.RUNNING
        assert chunk.length > 0
        assert chunk.start == one.computed
        assert chunk.end <= min(one.length, len(one.pages) * self.config.page_size)
        for number in one.mask.media(chunk.start, chunk.end):
            digest = one.request.media[number].digest
            assert digest in one.pinned
            assert self.vision_cache.get(digest) == "embedding"

    def _answer_encodes(self) -> None:
        for one in self.encodes.planned:
            assert self.vision_cache.get(one.request.media.digest) == "embedding"
            self.finished.append(one.request.request_id)
        self.encodes.finish()

    def _compute(self, plan: Plan) -> None:
        samples = [chunk.sequence for chunk in plan.chunks if chunk.samples]
        for chunk in plan.chunks:
            self.scheduler.computed(chunk)
        for one in samples:
            one.tokens.append(self.ids.randrange(10, 500))
            if one.generated >= one.request.sampling.max_new_tokens:
                self.finished.append(one.id)
                self.abort(one.id)


parts = st.lists(
    st.one_of(
        st.integers(1, 12).map(words),  # all of the same text, so that prompts share pages
        st.sampled_from([1, 3, 6, 11]).map(lambda rows: picture(f"of {rows} rows", rows)),
    ),
    min_size=1,
    max_size=5,
)


class RandomTraffic(RuleBasedStateMachine):
    """Requests come, go and are computed under budgets so small that everything runs out all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Core(pages=18, cached_rows=12)
        self.added: list[str] = []
        self.aborted: set[str] = set()

    @rule(parts=parts, max_new_tokens=st.integers(1, 6))
    def add(self, parts: list[Part], max_new_tokens: int) -> None:
        if len(sequence("any", *parts).tokens) + max_new_tokens <= 17 * 4:
            self.added.append(f"request-{len(self.added)}")
            self.core.add(self.added[-1], *parts, max_new_tokens=max_new_tokens)

    @rule(rows=st.sampled_from([1, 3, 6, 11, 12]))
    def encode(self, rows: int) -> None:
        self.added.append(f"encode-{len(self.added)}")
        self.core.encode(self.added[-1], picture(f"of {rows} rows", rows))

    @precondition(lambda self: self.core.alive)
    @rule(choice=st.data())
    def abort(self, choice: st.DataObject) -> None:
        victim = choice.draw(st.sampled_from(sorted(self.core.alive)))
        self.core.abort(victim)
        self.aborted.add(victim)

    @precondition(lambda self: bool(self.core.alive) or len(self.core.encodes) > 0)
    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.core.step()

    @invariant()
    def books_are_right(self) -> None:
        self.core.check()

    def teardown(self) -> None:
        self.core.run()
        assert {*self.core.finished, *self.aborted} == {*self.added}
        assert len(self.core.finished) + len(self.aborted) == len(self.added), "everybody ends exactly once"


TestRandomTraffic = RandomTraffic.TestCase
TestRandomTraffic.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def chunks(plan: Plan) -> list[tuple[str, int, int]]:
    """Who computes from where to where."""
    return [(chunk.sequence.id, chunk.start, chunk.end) for chunk in plan.chunks]


def test_a_long_prompt_is_computed_in_chunks_of_the_token_budget() -> None:
    core = Core()
    core.add("long", words(37), max_new_tokens=1)
    assert [chunks(core.step()) for _ in range(3)] == [[("long", 0, 16)], [("long", 16, 32)], [("long", 32, 37)]]
    assert core.finished == ["long"]


def test_running_streams_get_their_token_before_a_new_prompt_gets_the_rest() -> None:
    core = Core()
    core.add("stream", words(3), max_new_tokens=8)
    core.step()
    core.add("prompt", words(40, seed=2))
    plan = core.step()
    assert chunks(plan) == [("stream", 3, 4), ("prompt", 0, 15)]
    assert [chunk.is_decode for chunk in plan.chunks] == [True, False]
    assert not plan.is_decode_only


def test_a_repeated_prompt_computes_only_its_last_page_and_always_its_last_token() -> None:
    core = Core()
    core.add("first", words(12), max_new_tokens=1)
    core.run()
    again = core.add("again", words(12), max_new_tokens=1)
    assert core.scheduler.cached_tokens(again) == 8, "the third page ends with the last token"
    assert chunks(core.step()) == [("again", 8, 12)]
    core.add("one_more_token", words(13), max_new_tokens=1)
    assert chunks(core.step()) == [("one_more_token", 12, 13)]


def test_without_a_prefix_cache_a_repeated_prompt_is_computed_again() -> None:
    core = Core(prefix_cache=False)
    for name in ("first", "again"):
        core.add(name, words(12), max_new_tokens=1)
        assert chunks(core.step()) == [(name, 0, 12)]


def test_the_head_of_the_queue_is_not_overtaken_while_it_waits_for_pages() -> None:
    core = Core(pages=11)
    core.add("running", words(22), max_new_tokens=6)
    core.step()
    core.step()
    head = core.add("head", words(24, seed=1))
    core.add("small", words(2, seed=2), max_new_tokens=1)
    while "running" in core.alive:
        assert [one.id for one in core.scheduler.waiting] == ["head", "small"]
        core.step()
    assert chunks(core.step()) == [("small", 0, 2)], "now there are pages for both, and it is short"
    core.step()
    assert head.status is Status.RUNNING
    core.run()


def test_when_pages_run_out_the_youngest_gives_its_own_back() -> None:
    core = Core(pages=7)
    old, young = core.add("old", words(8), max_new_tokens=12), core.add("young", words(7, seed=1), max_new_tokens=9)
    while not core.scheduler.preemptions:
        core.step()
    assert young.status is Status.WAITING
    assert (young.preemptions, young.pages, young.computed) == (1, [], 0)
    assert old.status is Status.RUNNING
    kept = list(young.tokens)
    core.run()
    assert young.tokens[: len(kept)] == kept, "its tokens stay"
    assert core.finished[0] == "old"


def test_prompts_that_fit_one_by_one_do_not_preempt_each_other_half_way() -> None:
    core = Core(pages=13)
    for number in range(3):
        core.add(str(number), words(38, seed=number), max_new_tokens=1)
    core.run()
    assert core.scheduler.preemptions == 0


def test_a_sequence_that_can_never_go_on_beside_its_elders_still_finishes() -> None:
    core = Core(pages=9)
    for number in range(4):
        core.add(str(number), words(14, seed=number), max_new_tokens=18)
    core.run()
    assert sorted(core.finished) == ["0", "1", "2", "3"]
    assert core.scheduler.preemptions > 0


def test_no_more_than_the_configured_number_runs_at_once() -> None:
    core = Core(max_running_requests=2)
    for number in range(5):
        core.add(str(number), words(2, seed=number), max_new_tokens=2)
    core.step()
    assert [one.id for one in core.scheduler.running] == ["0", "1"]
    core.run()
    assert core.finished == ["0", "1", "2", "3", "4"]


def test_a_chunk_ends_where_an_image_that_must_wait_begins() -> None:
    core = Core(max_step_tokens=64)
    core.add("images", words(2), picture("a", 6), words(1), picture("b", 6), words(1), max_new_tokens=1)
    first, second = core.step(), core.step()
    assert (chunks(first), len(first.encode_jobs)) == ([("images", 0, 9)], 1)
    assert (chunks(second), len(second.encode_jobs)) == ([("images", 9, 16)], 1)
    assert first.has_media
    assert second.has_media


def test_running_streams_wait_for_few_new_pictures_at_a_time() -> None:
    core = Core(max_step_tokens=64, max_running_requests=8)
    pictures = [picture(f"p{number}", 2) for number in range(4)]
    core.add("crowd", *pictures, max_new_tokens=1)
    assert len(core.step().encode_jobs) == 4, "a full batch while nobody is kept waiting"
    core.add("stream", words(3), max_new_tokens=30)
    core.step()
    for number in range(4):
        core.add(f"request-{number}", picture(f"q{number}", 2), words(1), max_new_tokens=1)
    plans = [core.step() for _ in range(4)]
    assert [len(plan.encode_jobs) for plan in plans] == [1, 1, 1, 1]
    assert all(plan.chunks[0].sequence.id == "stream" for plan in plans)
    core.add("large", picture("large", 7), max_new_tokens=1)
    assert len(core.step().encode_jobs) == 1, "one picture always fits, however large"


def test_an_image_may_straddle_chunks_and_is_encoded_once() -> None:
    core = Core()
    core.add("large", words(10), picture("large", 30), words(2), max_new_tokens=2)
    plans = [core.step() for _ in range(4)]
    assert [len(plan.encode_jobs) for plan in plans] == [1, 0, 0, 0]
    assert [plan.has_media for plan in plans] == [True, True, True, False]


def test_a_plan_of_text_and_decodes_has_no_images_even_behind_images() -> None:
    core = Core()
    core.add("stream", picture("a", 4), words(2), max_new_tokens=8)
    core.step()
    core.add("text", words(5), max_new_tokens=1)
    assert not core.step().has_media
    assert core.encoder.pins == 0


def test_an_old_request_with_a_large_image_is_not_starved_by_small_ones() -> None:
    core = Core(cached_rows=8, pages=64, max_running_requests=8)
    core.add("ahead", picture("ahead", 3), words(30), picture("ahead", 3), words(2), max_new_tokens=1)
    core.add("large", picture("large", 8), max_new_tokens=1)
    for number in range(60):
        core.add(f"small-{number}", picture(str(number), 3), words(7, seed=number), picture(str(number + 1), 3))
        core.step()
        if "large" in core.finished:
            break
    assert "large" in core.finished
    core.run()


@pytest.mark.parametrize("state", ["waiting", "mid_prefill", "decoding", "preempted"])
def test_freeing_takes_everything_back_in_any_state_and_twice_is_harmless(state: str) -> None:
    core = Core(pages=8)
    elder = core.add("elder", words(7), max_new_tokens=18)
    victim = core.add("victim", words(8, seed=1), picture("a", 6), max_new_tokens=4)
    reached = {
        "waiting": lambda: True,
        "mid_prefill": lambda: 0 < victim.computed < victim.prompt_length,
        "decoding": lambda: victim.is_decoding,
        "preempted": lambda: victim.preemptions > 0 and victim.status is Status.WAITING,
    }[state]
    for _ in range(40):
        if reached():
            break
        core.step()
    assert reached()
    core.abort("victim")
    core.scheduler.free(victim)
    core.check()
    assert victim.status is Status.FINISHED
    assert core.encoder.pins == 0
    assert core.pool.usable_pages - core.pool.available == len(elder.pages)
    core.run()
