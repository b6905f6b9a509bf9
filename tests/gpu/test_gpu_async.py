"""Running a step ahead of what was read changes no answer: not with preemption, not with requests that go away."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from tests.engine.parity import MODELS
from tests.gpu.device import Said, answers, assert_same, core, needs_device, requests_of_every_kind

pytestmark = needs_device
REQUESTS = 28
PAGES_FOR_LITTLE_MORE_THAN_ONE = 14
SWITCHED_OFF: dict[str, dict[str, Any]] = {
    "async": {"async_scheduling": False},
    "graphs": {"graphs": False},
    "both": {"async_scheduling": False, "graphs": False},
}


@pytest.fixture(scope="module", params=["llama", "qwen2_5_vl"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return read_checkpoint(MODELS[request.param](tmp_path_factory.mktemp("async") / request.param))


@pytest.mark.parametrize("off", list(SWITCHED_OFF))
def test_answers_are_the_same_without(checkpoint: Checkpoint, off: str) -> None:
    requests = requests_of_every_kind(checkpoint, REQUESTS)
    ahead, behind = core(checkpoint), core(checkpoint, **SWITCHED_OFF[off])
    assert_same(answers(ahead, requests), answers(behind, requests))
    assert ahead.steps_launched_ahead > 0
    assert (behind.steps_launched_ahead > 0) == (off == "graphs")


@pytest.mark.parametrize("off", list(SWITCHED_OFF))
def test_answers_are_the_same_with_preemption(checkpoint: Checkpoint, off: str) -> None:
    requests = requests_of_every_kind(checkpoint, REQUESTS)
    pressed = core(checkpoint, context_length=192, kv_pages=PAGES_FOR_LITTLE_MORE_THAN_ONE)
    roomy = core(checkpoint, **SWITCHED_OFF[off])
    assert_same(answers(pressed, requests), answers(roomy, requests))
    assert pressed.engine.statistics().preemptions > 0


def test_neighbours_of_requests_that_go_away_are_answered_the_same(checkpoint: Checkpoint) -> None:
    requests = requests_of_every_kind(checkpoint, REQUESTS)
    alone = answers(core(checkpoint, async_scheduling=False, graphs=False), requests)
    driver, rng = core(checkpoint), random.Random(6)
    leaving = {request.request_id for request in requests[::3]}
    queue = list(requests)
    while queue or driver.engine.has_work:
        if queue:
            driver.add(queue.pop(0))
        driver.step()
        for request_id in sorted(leaving):
            if request_id in driver.answers and rng.random() < 0.1:
                driver.engine.abort(request_id)
                leaving.discard(request_id)
        driver.engine.check_integrity()
    stayed = [request.request_id for number, request in enumerate(requests) if number % 3]
    said = {name: Said(tuple(driver.answers[name].ids), tuple(driver.answers[name].logprobs)) for name in stayed}
    assert_same(said, {name: alone[name] for name in stayed})
