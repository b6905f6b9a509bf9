"""Figures of the bars and the table they are printed in. Knows no bar."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Whether a figure is what the bar asks for."""

    OK = "ok"
    SHORT = "SHORT"
    NOT_MEASURABLE = "not measurable here"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure of a bar. `note` says why it could not be measured, or what went wrong."""

    bar: int
    what: str
    measured: str
    required: str
    verdict: Verdict
    note: str = ""


def judged(bar: int, what: str, measured: object, required: str, holds: bool, note: str = "") -> Figure:
    """A figure that was measured, and whether it holds."""
    return Figure(bar, what, str(measured), required, Verdict.OK if holds else Verdict.SHORT, note)


def not_measurable(bar: int, what: str, required: str, why: str) -> Figure:
    """A figure that this machine cannot give."""
    return Figure(bar, what, "-", required, Verdict.NOT_MEASURABLE, why)


HEADINGS = ("bar", "what", "measured", "required", "verdict")
WIDTHS = (3, 72, 34, 26, 18)


def render(figures: Sequence[Figure]) -> str:
    """The table as text, with notes below the rows they belong to."""
    lines = [_row(HEADINGS), _row(tuple("-" * width for width in WIDTHS))]
    bar = 0
    for figure in figures:
        number = str(figure.bar) if figure.bar != bar else ""
        bar = figure.bar
        lines.append(_row((number, figure.what, figure.measured, figure.required, figure.verdict)))
        if figure.note:
            lines += textwrap.wrap(figure.note, 130, initial_indent=" " * 7, subsequent_indent=" " * 7)[:20]
    return "\n".join(lines)


def summary(figures: Sequence[Figure]) -> str:
    """How many figures hold, in one line."""
    counts = {verdict: sum(figure.verdict is verdict for figure in figures) for verdict in Verdict}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)


def _row(cells: Sequence[str]) -> str:
    """Cells side by side; a long one takes several lines."""
    columns = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, WIDTHS, strict=True)]
    height = max(map(len, columns))
    lines = (
        "  ".join(
            (column[line] if line < len(column) else "").ljust(width)
            for column, width in zip(columns, WIDTHS, strict=True)
        )
        for line in range(height)
    )
    return "\n".join(line.rstrip() for line in lines)
