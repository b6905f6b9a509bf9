"""A core that launches steps before it has read the last one's tokens answers as one that reads first.

On a GPU the core does so by itself; here it is told to, so that a CPU can prove it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.client_in_process import InProcessClient
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.build import build_engine
from fanlight_engine.core.messages import AddRequest, Completed, Generated
from fanlight_engine.core.scheduler import Plan
from fanlight_engine.core.sequence import UNREAD, Sequence
from fanlight_engine.errors import Reason
from fanlight_engine.model.runner import Launched
from fanlight_engine.request import FinishReason
from tests.engine.answers import MakeDriver, answer, assert_rejected, end_of, prefill_of
from tests.engine.builders import llava_picture, request, words
from tests.engine.driver import Answer, Driver
from tests.engine.parity import ARRANGEMENTS, MODELS, NEW_TOKENS, Arrangement, check_outcome, run_arrangement
from tests.engine.reference import Case, Reference

FAMILIES = ["llama", "qwen2_5_vl", "gemma3", "phi3_longrope", "qwen3_moe", "fanlight-tiny"] if __debug__ else ["llama"]
"""One of each kind: text, M-RoPE, spans and windows, long rotary factors, experts, and the embedded one."""
PROMPTS = 14

SAMPLINGS: tuple[dict[str, Any], ...] = (
    {},
    {"logprobs": True, "max_new_tokens": 1},
    {"max_new_tokens": 12, "end_ids": tuple(range(3, 250, 8))},
    {"max_new_tokens": 9, "min_new_tokens": 5, "end_ids": tuple(range(0, 256, 4)), "logprobs": True},
    {"max_new_tokens": 14, "temperature": 0.9, "seed": 11, "stop_token_ids": tuple(range(0, 250, 5))},
    {"max_new_tokens": 14, "temperature": 0.9, "seed": 12, "logprobs": True},
    {"max_new_tokens": 13, "temperature": 1.2, "top_k": 30, "top_p": 0.9, "seed": 3},
    {"max_new_tokens": 16, "repetition_penalty": 1.3, "frequency_penalty": 0.7, "logprobs": True},
    {"max_new_tokens": 17, "temperature": 0.8, "seed": 5, "presence_penalty": 1.5},
)
"""What requests of random traffic ask for."""


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, list[Case]]:
    reference = Reference(MODELS[request.param](tmp_path_factory.mktemp("ahead") / request.param))
    return reference, reference.cases(PROMPTS, NEW_TOKENS)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=lambda one: one.name)
def test_answers_equal_those_of_transformers(model: tuple[Reference, list[Case]], arrangement: Arrangement) -> None:
    reference, cases = model
    outcome = run_arrangement(reference, cases, arrangement, runs_ahead=True)
    check_outcome(outcome, arrangement, reference.checkpoint.takes_images)
    assert outcome.steps_launched_ahead > 0


def test_a_cpu_does_not_run_ahead_by_itself(make_driver: MakeDriver, llama: Checkpoint) -> None:
    """It computes while it is asked to, so that running ahead would gain nothing and make results late."""
    assert not make_driver(llama).engine.runs_ahead


@pytest.fixture(scope="module")
def traffic() -> list[AddRequest]:
    """Their prompts come in pairs that begin alike, so that some are found in the prefix cache."""
    return [
        request(f"r{number}", words(5 + 7 * (number // 2), seed=number // 2), words(1 + number), **sampling)
        for number, sampling in enumerate(SAMPLINGS)
    ]


@pytest.fixture(scope="module")
def alone(traffic: list[AddRequest], llama: Checkpoint) -> dict[str, Answer]:
    driver = Driver(EngineConfig(torch_threads=1, kv_pages=64, context_length=96, page_size=4), llama, False)
    for one in traffic:
        answer(driver, one)
    return driver.answers


@pytest.fixture(scope="module", params=[64, 26], ids=["room for all", "few pages"])
def ahead(request: pytest.FixtureRequest, llama: Checkpoint) -> Driver:
    """With few pages, some preempt others."""
    config = EngineConfig(
        torch_threads=1,
        kv_pages=request.param,
        context_length=96,
        page_size=4,
        max_step_tokens=16,
        max_running_requests=6,
    )
    return Driver(config, llama, runs_ahead=True)


class TestRandomTraffic:
    """Requests of all kinds come and are aborted at random moments; answers are those that each gets alone."""

    @settings(max_examples=40, deadline=None)
    @given(seed=st.integers(0, 1 << 32))
    def test_gets_the_same_answers(
        self, seed: int, traffic: list[AddRequest], alone: dict[str, Answer], ahead: Driver
    ) -> None:
        rng, before, delivered = random.Random(seed), ahead.engine.statistics().generated_tokens, 0
        queue = rng.sample(traffic, rng.randint(1, len(traffic)))
        aborted: set[str] = set()
        while queue or ahead.engine.has_work:
            for _ in range(rng.randint(0, 3)):
                if queue:
                    ahead.add(queue.pop())
            if ahead.engine.has_work and rng.random() < 0.1:
                victim = rng.choice(sorted(ahead.engine._sequences))
                ahead.engine.abort(victim)
                aborted.add(victim)
            ahead.step()
            ahead.engine.check_integrity()
        for name, got in ahead.answers.items():
            expected = alone[name]
            if name in aborted:
                assert got.ids == expected.ids[: len(got.ids)]
                assert got.end is None
            else:
                assert got.ids == expected.ids
                assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
                assert isinstance(got.end, Completed)
                assert isinstance(expected.end, Completed)
                assert got.end.reason is expected.end.reason
            delivered += len(got.ids)
        assert ahead.engine.statistics().generated_tokens - before == delivered, "nothing else is counted"
        ahead.answers.clear()

    def test_did_run_ahead_and_preempt(self, ahead: Driver, request: pytest.FixtureRequest) -> None:
        """Proof that the schedules above were what they were meant to be."""
        assert ahead.steps_launched_ahead > 50
        is_pressed = ahead.engine.statistics().total_pages < 30
        assert bool(ahead.engine.statistics().preemptions) == is_pressed


class TestEnding:
    """A sequence that ends is over, whatever was launched for it meanwhile."""

    def test_at_a_stop_id_delivers_and_counts_nothing_behind_it(
        self, make_driver: MakeDriver, llama: Checkpoint
    ) -> None:
        driver = make_driver(llama, runs_ahead=True)
        free = answer(driver, request("free", words(8), max_new_tokens=10))
        stop = next(one for index, one in enumerate(free) if index >= 3 and one not in free[:index])
        before = driver.engine.statistics()
        stopped = answer(driver, request("stopped", words(8), max_new_tokens=10, stop_token_ids=(stop,)))
        after = driver.engine.statistics()
        assert stopped == free[: free.index(stop) + 1]
        assert end_of(driver, "stopped").reason is FinishReason.STOP
        assert after.generated_tokens - before.generated_tokens == len(stopped)
        assert after.decode_steps - before.decode_steps == len(stopped), "the last one was launched in vain"

    def test_at_its_length_launches_nothing_behind_it(self, make_driver: MakeDriver, llama: Checkpoint) -> None:
        driver = make_driver(llama, runs_ahead=True)
        before = driver.engine.statistics().decode_steps
        assert len(answer(driver, request("length", words(8), max_new_tokens=7))) == 7
        assert driver.engine.statistics().decode_steps - before == 6, "the first token comes from the prompt's step"

    @pytest.mark.parametrize("stops_after", range(2, 10))
    def test_never_leaves_a_wrong_page_in_the_prefix_cache(
        self, stops_after: int, make_driver: MakeDriver, llama: Checkpoint
    ) -> None:
        """Whether or not a page was just full: who goes on from the answer gets what he gets without a cache."""
        driver = make_driver(llama, runs_ahead=True, page_size=4)
        fresh = make_driver(llama, runs_ahead=False, page_size=4, prefix_cache=False)
        prompt = words(7, seed=stops_after)
        free = answer(fresh, request(f"free {stops_after}", prompt, max_new_tokens=10))
        stop = (free[stops_after - 1],)
        first = answer(driver, request(f"first {stops_after}", prompt, max_new_tokens=10, stop_token_ids=stop))
        going_on = [*prompt, *first, *words(3)]
        expected = answer(fresh, request(f"expected {stops_after}", going_on, max_new_tokens=6))
        assert answer(driver, request(f"going on {stops_after}", going_on, max_new_tokens=6)) == expected
        assert prefill_of(driver, f"going on {stops_after}").cached_tokens == (7 + len(first) - 1) // 4 * 4

    @pytest.mark.parametrize("steps", [2, 3, 4])
    def test_by_an_abort_frees_everything_and_its_id(
        self, steps: int, make_driver: MakeDriver, llama: Checkpoint
    ) -> None:
        driver = make_driver(llama, runs_ahead=True)
        neighbour = request(f"neighbour {steps}", words(9, seed=2), max_new_tokens=12)
        alone = answer(driver, neighbour)
        driver.add(neighbour)
        driver.add(request("victim", words(6), max_new_tokens=50, repetition_penalty=1.2))
        for _ in range(steps):
            driver.step()
        assert driver.engine._in_flight is not None
        driver.engine.abort("victim")
        driver.engine.check_integrity()
        again = request("victim", words(11, seed=5), max_new_tokens=8, repetition_penalty=1.3)
        ids = answer(driver, again)
        assert ids == answer(make_driver(llama, runs_ahead=False), again)
        assert driver.answers[neighbour.request_id].ids == alone

    def test_by_an_abort_of_the_last_one_leaves_nothing_in_flight(
        self, make_driver: MakeDriver, llama: Checkpoint
    ) -> None:
        driver = make_driver(llama, runs_ahead=True)
        driver.add(request("only", words(6), max_new_tokens=50))
        driver.step()
        assert driver.engine._in_flight is not None
        driver.engine.abort("only")
        assert not driver.engine.has_work
        driver.engine.check_integrity()


class TestOrder:
    """Running ahead waits for tokens where they, or somebody who waits, decide what comes next."""

    def test_a_request_that_arrives_is_computed_in_the_step_behind_the_one_in_flight(
        self, make_driver: MakeDriver, llama: Checkpoint
    ) -> None:
        driver = make_driver(llama, runs_ahead=True)
        driver.add(request("first", words(6), max_new_tokens=20))
        driver.step()
        driver.step()
        assert driver.engine._in_flight is not None
        driver.add(request("second", words(6, seed=1), max_new_tokens=20))
        driver.step()
        assert driver.engine._in_flight is None, "somebody waits who can come in"
        driver.step()
        assert driver.answers["second"].ids
        driver.run()

    def test_who_waits_for_a_place_does_not_hold_it_up(self, make_driver: MakeDriver, llama: Checkpoint) -> None:
        driver = make_driver(llama, runs_ahead=True, max_running_requests=1)
        driver.add(request("first", words(6), max_new_tokens=4))
        driver.add(request("second", words(6, seed=1), max_new_tokens=4))
        driver.step()
        assert driver.engine._in_flight is not None
        driver.run()
        assert [len(driver.answers[name].ids) for name in ("first", "second")] == [4, 4]

    def test_a_step_that_must_preempt_waits(
        self, make_driver: MakeDriver, llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who is preempted keeps its tokens, and they are all known."""
        driver = make_driver(llama, runs_ahead=True, kv_pages=8, page_size=4, context_length=28)
        scheduler, tokens = driver.engine._scheduler, []
        give_back = scheduler._give_back

        def watched(sequence: Sequence) -> None:
            tokens.append(list(sequence.tokens))
            give_back(sequence)

        monkeypatch.setattr(scheduler, "_give_back", watched)
        asked = [
            request(name, words(8, seed=seed), max_new_tokens=16) for seed, name in enumerate(("elder", "younger"))
        ]
        for one in asked:
            driver.add(one)
        driver.run()
        assert driver.engine.statistics().preemptions > 0
        assert not any(UNREAD in one for one in tokens)
        assert [answer(make_driver(llama), one) for one in asked] == [
            driver.answers[one.request_id].ids for one in asked
        ]

    def test_a_prompt_with_a_picture_beside_decodes(self, make_driver: MakeDriver, llava: Checkpoint) -> None:
        asked = [
            request("text", words(7), max_new_tokens=12),
            request("picture", words(3), llava_picture("one"), words(4), max_new_tokens=8),
        ]
        drivers = [
            make_driver(llava, runs_ahead=ahead, max_step_tokens=9, max_running_requests=4) for ahead in (False, True)
        ]
        for driver in drivers:
            driver.add(asked[0])
            driver.step()
            driver.step()
            driver.add(asked[1])
            driver.run()
        first, second = ({name: one.ids for name, one in driver.answers.items()} for driver in drivers)
        assert first == second


class TestFailure:
    """What fails in flight takes only those along that it belongs to."""

    @pytest.fixture(params=["at its launch", "when it is read"])
    def fails(self, request: pytest.FixtureRequest) -> str:
        return request.param

    @pytest.fixture
    def asked(self) -> list[AddRequest]:
        return [
            request(f"n{number}", words(6, seed=number), max_new_tokens=9, repetition_penalty=1.0 + 0.1 * number)
            for number in range(3)
        ]

    def test_a_step_that_fails_once_is_computed_again(
        self,
        fails: str,
        asked: list[AddRequest],
        make_driver: MakeDriver,
        llama: Checkpoint,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        driver = make_driver(llama, runs_ahead=True)
        alone = [answer(driver, one) for one in asked]
        for moment in range(2, 8):
            calls = _break(driver, monkeypatch, fails, lambda plan, call, moment=moment: call == moment)
            for one in asked:
                driver.add(one)
            driver.run()
            assert calls() > moment
            assert [driver.answers[one.request_id].ids for one in asked] == alone
            monkeypatch.undo()

    def test_a_request_that_breaks_every_step_costs_its_neighbours_nothing(
        self,
        fails: str,
        asked: list[AddRequest],
        make_driver: MakeDriver,
        llama: Checkpoint,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        driver = make_driver(llama, runs_ahead=True)
        alone = [answer(driver, one) for one in asked]

        def is_broken(plan: Plan, call: int) -> bool:
            return any(chunk.sequence.id == "victim" and chunk.end >= 9 for chunk in plan.chunks)

        _break(driver, monkeypatch, fails, is_broken)
        for one in (request("victim", words(6), max_new_tokens=9), *asked):
            driver.add(one)
        driver.run()
        assert_rejected(driver.answers["victim"].end, Reason.ENGINE_FAILURE, "")
        assert len(driver.answers["victim"].ids) == 3
        assert [driver.answers[one.request_id].ids for one in asked] == alone


def _break(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, fails: str, is_broken: Callable[[Plan, int], bool]
) -> Callable[[], int]:
    """Make launching or reading fail for the plans that `is_broken` says; how many were launched."""
    launch, calls = driver.engine._runner.launch, 0

    class Broken:
        def read(self, rows: int) -> Any:
            raise RuntimeError("a kernel failed")

    def watched(plan: Plan, after: Launched | None = None) -> Launched:
        nonlocal calls
        calls += 1
        broken = is_broken(plan, calls)
        if broken and fails == "at its launch":
            raise RuntimeError("a kernel failed")
        launched = launch(plan, after)
        return Launched(launched.sequences, Broken()) if broken else launched  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(driver.engine._runner, "launch", watched)
    return lambda: calls


async def test_a_core_in_a_thread_runs_ahead_and_every_stream_gets_what_it_gets_without(llama: Checkpoint) -> None:
    config = EngineConfig(torch_threads=1, kv_pages=64, context_length=512)
    asked = [request(str(number), words(4 + number, seed=number), max_new_tokens=8) for number in range(6)]
    answers: list[list[list[int]]] = []
    for runs_ahead in (False, True):
        client = InProcessClient(config, llama, build=partial(build_engine, runs_ahead=runs_ahead))
        await client.start()
        streams = [client.submit(one) for one in asked]
        doomed = client.submit(request("doomed", words(9), max_new_tokens=200))
        answers.append(await asyncio.gather(*(_ids_of(stream) for stream in streams)))
        client.abort("doomed")
        await _ids_of(doomed)
        await client.check_integrity()
        await client.stop()
    assert answers[0] == answers[1]


async def _ids_of(stream: Any) -> list[int]:
    return [
        token
        async for batch in stream
        for message in batch
        if isinstance(message, Generated)
        for token in message.token_ids
    ]
