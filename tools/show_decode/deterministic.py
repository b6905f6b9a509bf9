"""Bar 7: one answer in random batches, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.deterministic import RUNS, measure
from tools.bars.ratios import ratio_figure
from tools.bars.table import Figure, judged


def measure_bar_7() -> Iterator[Figure]:
    """How many answers there were, with the setting and without, and the speed that it leaves."""
    result = measure()
    promise, without = result.promise, result.without
    note = f"without the setting there were {without.answers} in {without.runs}"
    yield judged(
        7, f"different answers to one request, {promise.runs} times in random batches", promise.answers, "1",
        promise.holds and promise.runs >= RUNS, note,
    )  # fmt: skip
    yield from (ratio_figure(7, comparison, "its cost") for comparison in result.comparisons)
