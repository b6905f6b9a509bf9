"""Bar 9: how fast media are prepared beside transformers' own processor, and what of that the step loop feels."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

from benchmarks.media import measure
from benchmarks.report import MAX_SPREAD, Comparison
from tests.e2e.media_threads import MEDIA_THREADS, Looks, look_at_threads
from tests.e2e.serving import serving
from tools.bars.table import Figure, judged, not_measurable

MOST_OF_STEP_LOOP = 0.001


def measure_bar_9() -> Iterator[Figure]:
    """Ratios of the benchmark, then the threads of a server under load."""
    yield from map(_ratio, _comparisons())
    looks = asyncio.run(_looks())
    share = looks.share_of_step_loop
    yield judged(
        9, "share of the step loop's time that goes into media", f"{100 * share:.2f} % ({looks.media_in_step} of "
        f"{looks.in_step} looks)", "about 0 %", share <= MOST_OF_STEP_LOOP and looks.in_step > 0, _where(looks),
    )  # fmt: skip
    loop_share = looks.share_of(threading.main_thread().name)
    yield judged(
        9, "share of the event loop's time that goes into media", f"{100 * loop_share:.2f} %", "about 0 %",
        loop_share <= 10 * MOST_OF_STEP_LOOP,
    )  # fmt: skip
    seen = looks.share_of(MEDIA_THREADS)
    yield judged(9, "moments at which media threads were seen at work", f"{100 * seen:.0f} %", "above 0 %", seen > 0)


def _comparisons() -> list[Comparison]:
    """Measured once more where the rounds of any spread too far; of the two, the one with less spread counts."""
    comparisons = list(measure().comparisons)
    if any(comparison.ratio is None for comparison in comparisons):
        pairs = zip(comparisons, measure().comparisons, strict=True)
        comparisons = [min(pair, key=lambda comparison: comparison.spread) for pair in pairs]
    return comparisons


def _ratio(comparison: Comparison) -> Figure:
    what = f"{comparison.name}: pictures a second of one core, to transformers'"
    required = f"at least {comparison.bar:.2f}"
    figures = f"{comparison.ours.median:.1f} to {comparison.theirs.median:.1f} {comparison.unit}"
    if comparison.ratio is None:
        why = f"rounds spread by {comparison.spread:.0%}, over {MAX_SPREAD:.0%}: the machine is busy; {figures}"
        return not_measurable(9, what, required, why)
    holds = comparison.ratio >= comparison.bar
    return judged(9, what, f"{comparison.ratio:.2f}", required, holds, f"{figures}, spread {comparison.spread:.0%}")


async def _looks() -> Looks:
    async with serving() as served:
        return await look_at_threads(served, first_picture=1500)


def _where(looks: Looks) -> str:
    return ", ".join(f"{thread}: seen {count} times" for thread, count in looks.media_by_thread.most_common())
