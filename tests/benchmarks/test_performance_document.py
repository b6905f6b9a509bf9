"""docs/performance.md shows what the benchmarks wrote, and says what they could not measure."""

from __future__ import annotations

from pathlib import Path

from benchmarks.document import PAGE, RESULTS, SECTIONS, page, read_results
from benchmarks.report import Comparison, Runs, write_svg


def comparison(*ours: float, gates: bool = True) -> Comparison:
    return Comparison("decode", "tokens/s", 1.0, Runs("ours", ours), Runs("theirs", (10.0,) * len(ours)), gates)


def result(*comparisons: Comparison) -> dict[str, object]:
    return {
        "machine": {"processor": "Any", "cores": 2},
        "rounds": 2,
        "missing": ["vLLM CPU: `make peers` installs it"],
        "comparisons": [one.facts() for one in comparisons],
        "flat_out": 12.34,
    }


def test_the_page_shows_the_results_that_lie_beside_it():
    assert PAGE.read_text(encoding="utf-8") == page(read_results()), "run python -m benchmarks.document"


def test_every_result_beside_the_page_has_a_section_and_a_picture():
    names = {section.benchmark for section in SECTIONS}
    for file in RESULTS.glob("*.json"):
        assert file.stem in names
        assert file.with_suffix(".svg").is_file()


def test_every_section_is_introduced_by_its_program():
    for section in SECTIONS:
        assert section.introduction(), section.benchmark


def test_what_was_not_measured_is_said():
    text = page({"cpu": result(comparison(12.0, 12.0))})
    assert "not measured: vLLM CPU" in text
    assert text.count("Not measured yet") == len(SECTIONS) - 1


def test_ratios_bars_and_goals_are_told_apart():
    text = page({"cpu": result(comparison(12.0, 12.0), comparison(9.0, 9.0), comparison(9.0, 9.0, gates=False))})
    assert "| 1.20 | bar 1.00 holds | 0% |" in text
    assert "| 0.90 | bar 1.00 FALLS SHORT | 0% |" in text
    assert "| 0.90 | goal 1.00 not reached | 0% |" in text
    assert "- flat out: 12.34" in text


def test_no_ratio_is_shown_where_rounds_spread():
    text = page({"cpu": result(comparison(8.0, 12.0, 11.4), comparison(11.0, 15.0, 12.0))})
    assert "| none given | bar 1.00 | 35% |" in text
    assert "| none given | bar 1.00 holds in every round | 33% |" in text


def test_a_comparison_is_the_same_out_of_its_facts():
    one = comparison(9.0, 12.0, gates=False)
    assert Comparison.of(one.facts()) == one


def test_equal_results_give_equal_pictures(tmp_path: Path):
    for name in ("one.svg", "two.svg"):
        write_svg(tmp_path / name, "title", [comparison(12.0, 11.0), comparison(8.0, 12.0)])
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert b"<svg" in (tmp_path / "one.svg").read_bytes()
