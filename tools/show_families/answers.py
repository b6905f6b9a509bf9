"""Bars 1 and 2: greedy answers and logprobs of every family against transformers' own, in every arrangement."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch

from tests.engine.parity import MODELS, MOST_NEAR_TIES, Compared, compare_everywhere
from tools.bars.pytest_run import measure_tests
from tools.bars.table import Figure, judged

PROMPTS = 28
"""Two rounds over all kinds of a checkpoint that takes clips."""
LOGPROB_TOLERANCE = 1e-4


def measure_bar_1() -> Iterator[Figure]:
    """A row per checkpoint, and what all of them together were put through."""
    results = _compared()
    for name, one in results.items():
        yield judged(
            1, f"{name}: {len(one.kinds)} kinds of prompts, answers equal to transformers'",
            f"{one.answers} answers, {one.arranged}",
            "all, in all arrangements", not one.failures, "; ".join(one.failures),
        )  # fmt: skip
    outcomes = [outcome for one in results.values() for outcome in one.outcomes]
    for what, count in (
        ("preemptions under KV pressure", sum(one.preemptions for one in outcomes)),
        ("chunks that began inside a picture or clip", sum(one.chunks_starting_inside_an_image for one in outcomes)),
        ("prompt tokens that came from the prefix cache", sum(one.cached_tokens for one in outcomes)),
    ):
        yield judged(1, what, count, "at least 1", count > 0)
    yield measure_tests(1, "SmolLM2 from its GGUF, converted once", "tests/engine/test_smollm2.py", "-m", "real_model")


def measure_bar_2() -> Iterator[Figure]:
    """A row per checkpoint, and the near ties of all."""
    results = _compared()
    for name, one in results.items():
        worst = max((outcome.comparison.logprob_difference for outcome in one.outcomes), default=float("nan"))
        yield judged(
            2, f"{name}: largest difference of a logprob", f"{worst:.1e}", f"under {LOGPROB_TOLERANCE:.0e}",
            worst < LOGPROB_TOLERANCE,
        )  # fmt: skip
    answers, near_ties = sum(one.answers for one in results.values()), sum(one.near_ties for one in results.values())
    share = near_ties / max(1, answers)
    measured = f"{near_ties} of {answers} ({100 * share:.2f} %)"
    yield judged(
        2, "first differences at near ties", measured, f"under {100 * MOST_NEAR_TIES:.1f} %", share < MOST_NEAR_TIES
    )


@cache
def _compared() -> dict[str, Compared]:
    """Every checkpoint in every arrangement; both bars read it."""
    torch.set_num_threads(1)
    return {name: compare_everywhere(name, PROMPTS) for name in MODELS}
