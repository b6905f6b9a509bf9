"""Greedy answers are transformers' own: alone, batched, chunked inside media, preempted, on any pages.

`make show-families` runs every arrangement on more prompts.
"""

from __future__ import annotations

import pytest

from tests.engine.parity import MODELS, NEW_TOKENS, SHORT_ARRANGEMENTS, Arrangement, check_outcome, run_arrangement
from tests.engine.reference import Case, Reference

PROMPTS = 14
"""A round and more over the kinds of any checkpoint."""


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, list[Case]]:
    reference = Reference(MODELS[request.param](tmp_path_factory.mktemp("parity") / request.param))
    return reference, reference.cases(PROMPTS, NEW_TOKENS)


@pytest.mark.parametrize("arrangement", SHORT_ARRANGEMENTS, ids=lambda one: one.name)
def test_answers_equal_those_of_transformers(model: tuple[Reference, list[Case]], arrangement: Arrangement) -> None:
    reference, cases = model
    outcome = run_arrangement(reference, cases, arrangement)
    check_outcome(outcome, arrangement, reference.checkpoint.takes_images)
