"""The media benchmark says a ratio only where the rounds agree, and measures what it says it does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import media
from benchmarks.report import Comparison, Runs, machine_facts, machine_line, write_json, write_svg


def comparison(*ours: float, bar: float = 1.0) -> Comparison:
    return Comparison("native", "pictures/s", bar, Runs("ours", ours), Runs("theirs", (10.0,) * len(ours)))


def test_a_ratio_is_the_median_of_the_rounds():
    held = comparison(12.0, 12.5, 11.8)
    assert held.ratio == 1.2
    assert held.holds
    assert "ratio 1.20" in held.line()
    short = comparison(9.0, 9.1, 8.9, bar=0.95)
    assert short.holds is False
    assert "FALLS SHORT" in short.line()


def test_no_ratio_is_given_where_the_rounds_disagree():
    torn = comparison(9.0, 12.0, 12.1)
    assert torn.spread == pytest.approx(3.1 / 12.0)
    assert torn.ratio is None
    assert torn.holds is None
    assert "no ratio" in torn.line()


def test_a_round_in_which_the_machine_was_slow_for_both_changes_nothing():
    slowed = Comparison("any", "x", 1.0, Runs("ours", (12.0, 6.0, 12.6)), Runs("theirs", (10.0, 5.0, 10.0)))
    assert slowed.ratio == 1.2
    assert slowed.spread == pytest.approx(0.06 / 1.2)


def test_a_result_says_where_it_was_measured(tmp_path: Path):
    facts = machine_facts(("numpy", "torch"), 1)
    assert {"processor", "cores", "threads", "load", "python", "numpy", "torch"} == set(facts)
    assert "threads 1" in machine_line(facts)
    result = media.MediaBenchmark((comparison(12.0, 12.0),), facts, ("PNG 1 x 1",), 2)
    write_json(tmp_path / "result.json", result.facts())
    read = json.loads((tmp_path / "result.json").read_text())
    assert read["comparisons"][0]["ratio"] == 1.2
    assert read["comparisons"][0]["ours"]["rounds"] == [12.0, 12.0]
    assert "ratio 1.20" in result.text()


def test_drawing_without_matplotlib_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit, match="matplotlib"):
        write_svg(tmp_path / "result.svg", "title", [comparison(12.0)])


def test_both_sides_get_every_file_in_every_round():
    seen: dict[str, list[bytes]] = {"ours": [], "theirs": []}

    def prepare(side: str, data: bytes) -> None:
        seen[side].append(data)
        sum(range(20_000))

    files = (b"one", b"two")
    compared = media._compared(
        *("any", 1.0, lambda data: prepare("ours", data), lambda data: prepare("theirs", data)), files, 3
    )
    assert len(compared.ours.figures) == len(compared.theirs.figures) == 3
    assert seen["ours"] == seen["theirs"] == [*files] * media.PASSES * 4
