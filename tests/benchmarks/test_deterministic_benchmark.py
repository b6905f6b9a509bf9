"""The benchmark of the setting `deterministic` asks one request among many others, and sees every difference."""

from __future__ import annotations

import random

import pytest

from benchmarks.deterministic import (
    LATEST_ARRIVAL,
    MAX_STEP_TOKENS,
    MOST_REQUESTS,
    NEW_TOKENS,
    PROMPT_TOKENS,
    Promise,
    _random_batch,
    answers_in_random_batches,
)
from tests.engine.cpu_kernels import WAYS


def test_every_batch_holds_the_request_and_no_two_batches_are_alike():
    source = random.Random(0)
    target = tuple(range(PROMPT_TOKENS))
    batches = [list(_random_batch(source, target)) for _ in range(50)]
    for batch in batches:
        assert 1 <= len(batch) <= MOST_REQUESTS
        assert len({one.request.request_id for one in batch}) == len(batch)
        assert all(0 <= one.step <= LATEST_ARRIVAL for one in batch)
        targets = [one.request for one in batch if one.is_target]
        assert targets
        assert all(one.prompt_ids == target and one.sampling.max_new_tokens == NEW_TOKENS for one in targets)
    assert len({len(batch) for batch in batches}) > 5
    assert any(sum(len(one.request.prompt_ids) for one in batch) > 4 * MAX_STEP_TOKENS for batch in batches)


def test_the_request_is_answered_as_often_as_asked():
    promise = answers_in_random_batches(runs=8, threads=1, deterministic=False)
    assert promise.runs >= 8
    assert 1 <= promise.answers <= promise.runs


def test_two_answers_break_the_promise():
    assert Promise(1000, 1).holds
    assert not Promise(1000, 2).holds


@pytest.mark.skipif(WAYS[0][0] == "none", reason="needs kernels for this CPU")
def test_with_the_setting_there_is_one_answer():
    promise = answers_in_random_batches(runs=12, threads=1, deterministic=True)
    assert promise.runs >= 12
    assert promise.answers == 1
