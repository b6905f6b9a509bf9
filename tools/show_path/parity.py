"""Bar 2: greedy answers against transformers' own, every model in every arrangement."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from tests.engine.parity import (
    ARRANGEMENTS,
    MODELS,
    MOST_NEAR_TIES,
    NEW_TOKENS,
    Outcome,
    check_outcome,
    run_arrangement,
)
from tests.engine.reference import Reference
from tools.bars.table import Figure, judged

PROMPTS = 200


def measure_bar_2() -> Iterator[Figure]:
    """A row per model: what was compared in all arrangements together, and what it was put through."""
    torch.set_num_threads(1)
    for name, make in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            yield from _measure(name, Reference(make(Path(folder) / name)))


def _measure(name: str, reference: Reference) -> Iterator[Figure]:
    cases = reference.cases(PROMPTS, NEW_TOKENS)
    takes_images = reference.checkpoint.takes_images
    outcomes: list[Outcome] = []
    failures: list[str] = []
    for arrangement in ARRANGEMENTS:
        print(f"  {name}, {arrangement.name}", file=sys.stderr, flush=True)
        try:
            outcome = run_arrangement(reference, cases, arrangement)
            check_outcome(outcome, arrangement, takes_images)
        except AssertionError as error:
            failures.append(f"{arrangement.name}: {error}")
        else:
            outcomes.append(outcome)
    compared = sum(outcome.comparison.compared for outcome in outcomes)
    near_ties = sum(outcome.comparison.near_ties for outcome in outcomes)
    arranged = f"{len(outcomes)} of {len(ARRANGEMENTS)} arrangements"
    note = "; ".join(failures)
    yield judged(
        2, f"{name}: answers equal to transformers'", f"{compared} compared, {arranged}",
        f"{PROMPTS} prompts in each", not failures, note,
    )  # fmt: skip
    share = near_ties / max(1, compared)
    yield judged(
        2, f"{name}: first differences at near ties", f"{near_ties} ({100 * share:.2f} %)",
        f"under {100 * MOST_NEAR_TIES:.1f} %", share < MOST_NEAR_TIES,
    )  # fmt: skip
    preemptions = sum(outcome.preemptions for outcome in outcomes)
    yield judged(2, f"{name}: preemptions under KV pressure", preemptions, "at least 1", preemptions > 0)
    if takes_images:
        inside = sum(outcome.chunks_starting_inside_an_image for outcome in outcomes)
        yield judged(2, f"{name}: chunks that began inside an image", inside, "at least 1", inside > 0)
