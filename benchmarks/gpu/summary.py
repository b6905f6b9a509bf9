"""The results file as text for people, as a picture, and as an exit code. Knows the file's form, and no device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import MAX_SPREAD

GOOD = ("ok", "not measurable")
"""How a section may end without the run being a failure."""
_NOTE_CHARACTERS = 400


def text_of(results: Mapping[str, Any]) -> str:
    """Everything worth reading, section by section."""
    return "\n".join(_lines(results))


def everything_holds(results: Mapping[str, Any]) -> bool:
    """Whether all sections ended well and no ratio that gates fell short. Figures of tiny models mean nothing."""
    sections: list[Mapping[str, Any]] = list(results.get("sections", {}).values())
    if any(section.get("status") not in GOOD for section in sections):
        return False
    if results.get("tiny"):
        return True
    return not any(one["gates"] and one["holds"] is False for section in sections for one in _comparisons(section))


def write_picture(file: Path, results: Mapping[str, Any]) -> bool:
    """Every ratio as a bar, with a mark at what is aimed at. False where matplotlib is missing or there is no ratio."""
    ratios = [
        (one["name"], one["ratio"], one["bar"])
        for section in results.get("sections", {}).values()
        for one in _comparisons(section)
        if one["ratio"] is not None
    ]
    try:
        from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]
    except ImportError:
        return False
    if not ratios:
        return False
    figure = Figure(figsize=(10, 1 + 0.4 * len(ratios)), layout="tight")
    axes = figure.subplots()
    for row, (_, ratio, bar) in enumerate(ratios):
        axes.barh(row, ratio, 0.6, color="#1b6ca8")
        axes.text(ratio, row, f" {ratio:.2f}", va="center")
        if bar:
            axes.plot([bar, bar], [row - 0.4, row + 0.4], color="#c0392b")
    axes.set_yticks(range(len(ratios)), [name for name, _, _ in ratios])
    axes.invert_yaxis()
    axes.set_xlabel("ratio; red: what is aimed at")
    axes.set_title(str(_machine(results).get("card", "")))
    figure.savefig(file, format="svg")
    return True


def _lines(results: Mapping[str, Any]) -> Iterator[str]:
    yield ", ".join(f"{name} {value}" for name, value in _machine(results).items()) or "the machine is not known"
    if results.get("tiny"):
        yield "tiny models: this shows that the script runs; no figure below means anything"
    for name, section in results.get("sections", {}).items():
        yield ""
        why = f": {section['why']}" if "why" in section else ""
        yield f"== {name}: {section.get('what', '')} -- {section.get('status')}{why} ({section.get('seconds', 0)} s)"
        yield from (_comparison_line(one) for one in _comparisons(section))
        yield from _figure_lines(section.get("figures", {}))
        yield from (f"   note: {_shortened(note)}" for note in section.get("notes", []))


def _comparison_line(one: Mapping[str, Any]) -> str:
    figures = f"{one['ours']['median']:10.1f} {one['theirs']['median']:10.1f} {one['unit']}"
    if one["ratio"] is None:
        return f"   {one['name']:44} {figures}  no ratio: rounds spread {one['spread']:.0%}, over {MAX_SPREAD:.0%}"
    verdict = ""
    if one["bar"] > 0:
        verdict = f" (bar {one['bar']:.2f} {'holds' if one['holds'] else 'FALLS SHORT'})"
    return f"   {one['name']:44} {figures}  ratio {one['ratio']:.3f}{verdict} to {one['theirs']['name']}"


def _figure_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    for name, value in figures.items():
        if name == "machine":
            continue
        if isinstance(value, list):
            yield f"   {name}:"
            yield from (f"     {_in_line(one)}" for one in value)
        else:
            yield f"   {name}: {_in_line(value)}"


def _in_line(value: Any) -> str:
    return ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, dict) else str(value)


def _shortened(note: str) -> str:
    """The beginning and the end of a long one: what was done, and what went wrong."""
    lines = " | ".join(line.strip() for line in note.strip().splitlines())
    half = _NOTE_CHARACTERS // 2
    return lines if len(lines) <= _NOTE_CHARACTERS else f"{lines[:half]} ... {lines[-half:]}"


def _comparisons(section: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return section.get("comparisons", [])


def _machine(results: Mapping[str, Any]) -> Mapping[str, Any]:
    return results.get("sections", {}).get("ceilings", {}).get("figures", {}).get("machine", {})
