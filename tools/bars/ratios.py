"""Bars that are comparisons of a benchmark: each becomes a figure, and what a busy machine spoilt is measured again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.report import MAX_SPREAD, Comparison
from tools.bars.table import Figure, judged, not_measurable

AGAIN = "measured again, because the rounds had disagreed"

Comparisons = Sequence[Comparison]


def measure_ratios(
    bar: int, measure: Callable[[], Comparisons], again: Callable[[Comparisons], Comparisons] | None = None
) -> Iterator[Figure]:
    """A figure of each comparison. Where rounds disagree about the bar, all is measured once more.

    `again` may measure less: it gets the comparisons that say nothing.
    """
    comparisons = list(measure())
    undecided = [one for one in comparisons if one.holds is None]
    second: dict[str, Comparison] = {}
    if undecided:
        second = {one.name: one for one in (again(undecided) if again else measure())}
    for one in comparisons:
        if one.holds is None and one.name in second:
            yield ratio_figure(bar, _steadier(one, second[one.name]), AGAIN)
        else:
            yield ratio_figure(bar, one)


def ratio_figure(bar: int, comparison: Comparison, note: str = "") -> Figure:
    """The ratio against its bar. A goal is printed and never falls short; where rounds disagree nothing is said."""
    required = f"at least {comparison.bar:.2f}" if comparison.gates else f"goal {comparison.bar:.2f}, printed"
    figures = f"{comparison.ours.median:.4g} to {comparison.theirs.median:.4g} {comparison.unit}"
    notes = "; ".join(filter(None, (f"{figures}, rounds spread by {comparison.spread:.0%}", note)))
    if comparison.ratio is not None:
        measured = f"{comparison.ratio:.2f}"
    elif comparison.holds is not None:
        measured = f"{'reached' if comparison.holds else 'missed'} in every round"
    else:
        busy = f"{notes}, over {MAX_SPREAD:.0%}: the machine is busy"
        return not_measurable(bar, comparison.name, required, busy)
    return judged(bar, comparison.name, measured, required, bool(comparison.holds) or not comparison.gates, notes)


def _steadier(first: Comparison, second: Comparison) -> Comparison:
    """The second time where it says something; else the one whose rounds spread less."""
    return second if second.holds is not None else min(first, second, key=lambda one: one.spread)
