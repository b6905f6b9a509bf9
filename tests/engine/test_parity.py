"""Greedy answers are transformers' own: alone, batched, chunked inside media, preempted, from the prefix cache.

A whole run makes the table in docs/models.md, or demands that it is there. `make show-families` runs every arrangement
on more prompts.
"""

from __future__ import annotations

import pytest

from tests.engine import matrix
from tests.engine.parity import MODELS, NEW_TOKENS, SHORT_ARRANGEMENTS, Arrangement, check_outcome, run_arrangement
from tests.engine.reference import Case, Reference

PROMPTS = 14
"""A round over all kinds of a checkpoint that takes clips; more than one of others."""

NAMES = list(MODELS) if __debug__ else ["llama", "qwen2_5_vl", "gemma3", "llava_next", "qwen3_vl"]
"""Under python -O, where only assertions of our own could matter, one checkpoint of each kind."""

_COMPARED: dict[str, dict[str, frozenset[str]]] = {}
"""What this run has compared; see `matrix.Compared`."""


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, list[Case]]:
    reference = Reference(MODELS[request.param](tmp_path_factory.mktemp("parity") / request.param))
    return reference, reference.cases(PROMPTS, NEW_TOKENS)


@pytest.mark.parametrize("arrangement", SHORT_ARRANGEMENTS, ids=lambda one: one.name)
def test_answers_equal_those_of_transformers(
    model: tuple[Reference, list[Case]], arrangement: Arrangement, request: pytest.FixtureRequest
) -> None:
    reference, cases = model
    outcome = run_arrangement(reference, cases, arrangement)
    check_outcome(outcome, arrangement, reference.checkpoint.takes_images)
    name = request.node.callspec.params["model"]
    _COMPARED.setdefault(name, {})[arrangement.name] = frozenset(case.kind for case in cases)


def test_the_table_of_families_and_cases_is_in_the_documentation() -> None:
    if sum(map(len, _COMPARED.values())) < len(MODELS) * len(SHORT_ARRANGEMENTS):
        pytest.skip("only a run of all of them can tell")
    matrix.check_or_update(_COMPARED)
