"""Comparisons become figures of a bar; what a busy machine spoilt is measured once more."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.report import Comparison, Runs
from tools.bars.ratios import AGAIN, measure_ratios
from tools.bars.table import Verdict


def comparison(name: str, *ours: float, gates: bool = True) -> Comparison:
    return Comparison(name, "tokens/s", 1.0, Runs("ours", ours), Runs("theirs", (10.0,) * len(ours)), gates)


STEADY = comparison("steady", 12.0, 12.0)
SHORT = comparison("short", 8.0, 8.0)
TORN = comparison("torn", 8.0, 14.0)


def test_a_ratio_holds_or_falls_short():
    held, short = measure_ratios(1, lambda: [STEADY, SHORT])
    assert (held.verdict, held.measured) == (Verdict.OK, "1.20")
    assert (short.verdict, short.measured) == (Verdict.SHORT, "0.80")


def test_a_goal_is_printed_and_never_falls_short():
    (figure,) = measure_ratios(1, lambda: [comparison("goal", 8.0, 8.0, gates=False)])
    assert (figure.verdict, figure.measured) == (Verdict.OK, "0.80")
    assert "goal" in figure.required


def test_only_what_spread_too_far_is_taken_from_the_second_time():
    asked: list[list[str]] = []

    def again(refused: Sequence[Comparison]) -> list[Comparison]:
        asked.append([one.name for one in refused])
        return [comparison("steady", 1.0, 1.0), comparison("torn", 11.0, 11.0)]

    steady, torn = measure_ratios(1, lambda: [STEADY, TORN], again)
    assert asked == [["torn"]]
    assert (steady.measured, torn.measured) == ("1.20", "1.10")
    assert AGAIN in torn.note
    assert AGAIN not in steady.note


def test_rounds_that_spread_twice_are_not_measurable_and_the_steadier_ones_are_shown():
    answers = iter([[TORN], [comparison("torn", 9.0, 12.0)]])
    (figure,) = measure_ratios(1, lambda: next(answers))
    assert figure.verdict is Verdict.NOT_MEASURABLE
    assert "10.5 to 10 tokens/s" in figure.note
    assert "busy" in figure.note


def test_rounds_that_spread_and_agree_about_the_bar_decide_without_a_ratio():
    held, short = measure_ratios(1, lambda: [comparison("held", 11.0, 15.0), comparison("short", 5.0, 9.0)])
    assert (held.verdict, held.measured) == (Verdict.OK, "reached in every round")
    assert (short.verdict, short.measured) == (Verdict.SHORT, "missed in every round")


def test_nothing_is_measured_again_where_all_rounds_agree():
    answers = iter([[STEADY]])
    assert len(list(measure_ratios(1, lambda: next(answers)))) == 1
