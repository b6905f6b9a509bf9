"""Bars 3, 8, 10 and 11: answers and counts that must be equal, by whatever way the media come in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import torch

from tests.e2e.comparison import Compared, differing
from tests.e2e.media_sources import compare_sources
from tests.e2e.native_models import compare_native
from tests.e2e.token_counts import compare_counts
from tests.e2e.video_answers import compare_videos
from tests.engine.parity import MOST_NEAR_TIES
from tools.bars.table import Figure, judged

REQUESTS = 500
MOST_NOTES = 5


def measure_bar_3() -> Iterator[Figure]:
    """A row per source: all pictures, models and doors together."""
    rows = asyncio.run(compare_sources())
    yield from _groups(3, rows, lambda name: f"answers from {_source_of(name)} equal to those from bytes")


def measure_bar_8() -> Iterator[Figure]:
    """The counts as one row, and how often each kind of request was among them."""
    counts = asyncio.run(compare_counts(REQUESTS))
    yield judged(
        8, "lengths, masks and pages that differ from those of the generation",
        f"{len(counts.unequal)} in {counts.requests} requests", f"0 in at least {REQUESTS}",
        not counts.unequal and counts.requests >= REQUESTS, "; ".join(counts.unequal[:MOST_NOTES]),
    )  # fmt: skip
    kinds = ", ".join(f"{number} {kind}" for kind, number in counts.kinds.most_common())
    yield judged(8, "kinds of media among them", len(counts.kinds), "printed", True, kinds)


def measure_bar_10() -> Iterator[Figure]:
    """A row per native model and kind of media."""
    rows = asyncio.run(compare_native())
    yield from _groups(10, rows, lambda name: f"{_before_colon(name)}: answers equal to those from patches")


def measure_bar_11() -> Iterator[Figure]:
    """A row per model, and the near ties of all."""
    torch.set_num_threads(1)
    rows = asyncio.run(compare_videos())
    yield from _groups(11, rows, lambda name: f"{_before_colon(name)}: answers equal to transformers'")
    near_ties = sum(row.near_tie for row in rows)
    share = near_ties / max(1, len(rows))
    most = f"under {100 * MOST_NEAR_TIES:.1f} %"
    measured = f"{near_ties} of {len(rows)} ({100 * share:.2f} %)"
    yield judged(11, "first differences at near ties", measured, most, share < MOST_NEAR_TIES)


def _groups(bar: int, rows: Sequence[Compared], title: Callable[[str], str]) -> Iterator[Figure]:
    """A figure for all rows with the same title; those that differ are in its note."""
    groups: dict[str, list[Compared]] = {}
    for row in rows:
        groups.setdefault(title(row.name), []).append(row)
    assert groups, "nothing was compared"
    for what, members in groups.items():
        wrong = differing(members)
        note = "; ".join(f"{row.name}: {row.detail}" for row in wrong[:MOST_NOTES])
        yield judged(bar, what, f"{len(members) - len(wrong)} of {len(members)}", "all", not wrong, note)


def _before_colon(name: str) -> str:
    return name.partition(":")[0]


def _source_of(name: str) -> str:
    """Names are "model, picture: source, door"."""
    return name.partition(": ")[2].rpartition(",")[0]
