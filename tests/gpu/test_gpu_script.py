"""benchmarks.gpu runs end to end on a CPU, in small; what fails in it is recorded, stops nothing else, ends in time.

This needs no GPU, so that the script can be relied on where there is one for a few minutes.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.decode import random_model
from benchmarks.gpu.models import TINY, weight_bytes_of_a_step
from benchmarks.gpu.one_section import function_named, measure_section
from benchmarks.gpu.record import Results
from benchmarks.gpu.sections import SECTIONS, Conditions, Section, run_sections
from benchmarks.gpu.step_profile import summarise
from benchmarks.gpu.summary import everything_holds, text_of, write_picture
from benchmarks.gpu.workbench import LoggedError, Workbench
from tests.gpu import conftest

STUBS = "tests.gpu.sections_for_tests"
ENOUGH_TO_BEGIN = 6.0


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results.json")


@pytest.mark.parametrize("section", SECTIONS, ids=lambda one: one.name)
def test_every_section_runs_in_small_on_a_cpu(section: Section, results: Results) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        workbench = Workbench(section.name, results, "cpu", is_tiny=True, seconds=600.0)
        measure_section(workbench, function_named(section.measure))
    finally:
        torch.set_num_threads(threads)
    found = results.section(section.name)
    assert found["status"] == ("not measurable" if section.name == "tests" else "ok"), found
    assert found["status"] != "ok" or found.get("figures") or found.get("comparisons")
    assert section.name in text_of(results.read())


def test_sections_that_fail_are_recorded_and_stop_no_other(results: Results) -> None:
    names = ("raising", "dying", "not_measurable", "failing_in_parts", "good")
    run_sections([_stub(name) for name in names], _conditions(results))
    found = {name: results.section(name) for name in names}
    assert {name: one["status"] for name, one in found.items()} == {
        "raising": "failed",
        "dying": "failed",
        "not_measurable": "not measurable",
        "failing_in_parts": "failed",
        "good": "ok",
    }
    assert found["raising"]["why"] == "ValueError: the kernel is wrong"
    assert "sections_for_tests.py" in found["raising"]["error"]
    assert found["dying"]["why"] == "its process ended with signal 9"
    assert "illegal memory access" in found["dying"]["error"]
    assert "one of two" in found["failing_in_parts"]["notes"][0]
    assert [found[name].get("figures", {}).get("figure") for name in names] == [2, 3, None, 5, 1]
    assert not everything_holds(results.read())


def test_a_section_is_ended_when_its_time_is_over_and_keeps_its_figures(results: Results) -> None:
    run_sections([_stub("hanging", seconds=ENOUGH_TO_BEGIN), _stub("good")], _conditions(results))
    hanging = results.section("hanging")
    assert hanging["status"] == "out of time"
    assert hanging["figures"]["figure"] == 4
    assert not Path(f"/proc/{hanging['figures']['child']}/exe").exists(), "what it started is ended as well"
    assert results.section("good")["status"] == "ok"


def test_a_section_is_not_begun_without_time_for_it(results: Results) -> None:
    run_sections([_stub("good")], _conditions(results, seconds=0.5))
    assert results.section("good")["status"] == "not begun"
    assert not everything_holds(results.read())


def test_figures_are_in_the_file_when_they_are_recorded(results: Results) -> None:
    workbench = Workbench("any", results, "cpu", is_tiny=True, seconds=60.0)
    workbench.record(first=1)
    workbench.record_comparison({"name": "ours"})
    workbench.record(second=2)
    section = json.loads(results.file.read_text(encoding="utf-8"))["sections"]["any"]
    assert section["figures"] == {"first": 1, "second": 2}
    assert section["comparisons"] == [{"name": "ours"}]


def test_an_exception_that_a_core_only_logs_is_told(results: Results) -> None:
    logged = LoggedError()
    logger = logging.getLogger("any core")
    logger.addHandler(logged)

    def measure(workbench: Workbench) -> None:
        try:
            raise ValueError("cannot be captured")
        except ValueError:
            logger.exception("a step failed")
        raise RuntimeError("4 requests failed in a step")

    measure_section(Workbench("any", results, "cpu", True, 60.0, logged), measure)
    assert "4 requests failed" in results.section("any")["error"]
    assert "cannot be captured" in results.section("any")["error"]


@pytest.mark.parametrize(
    ("change", "holds"),
    [({}, True), ({"holds": False}, False), ({"holds": False, "gates": False}, True), ({"holds": None}, True)],
)
def test_a_bar_that_is_not_reached_makes_the_run_a_failure(change: dict[str, Any], holds: bool) -> None:
    assert everything_holds(_content(**change)) == holds
    assert everything_holds({**_content(**change), "tiny": True}), "figures of tiny models are not judged"


def test_the_summary_says_each_ratio_with_its_verdict(tmp_path: Path) -> None:
    content = _content(ratio=0.62, holds=False)
    assert "ratio 0.620 (bar 0.70 FALLS SHORT) to bandwidth limit" in text_of(content)
    assert "no ratio: rounds spread 40%" in text_of(_content(ratio=None, spread=0.4))
    if write_picture(tmp_path / "results.svg", content):
        assert "1B, 1 requests" in (tmp_path / "results.svg").read_text(encoding="utf-8")


def test_a_profile_says_what_the_device_did_and_when_it_did_nothing() -> None:
    events = [
        _event("kernel", "matmul", 0, 40),
        _event("kernel", "attend", 45, 20),
        _event("kernel", "beside it", 50, 5),
        _event("kernel", "matmul", 165, 35),
        _event("cuda_runtime", "cudaEventSynchronize", 10, 120),
        _event("cpu_op", "aten::linear", 0, 1000),
    ]
    figures, text = summarise(events, steps=2, seconds=400e-6)
    assert figures["device_busy_ms"] == pytest.approx(0.0475, abs=1e-3)
    assert figures["gaps_ms"] == pytest.approx(0.0525, abs=1e-3)
    assert figures["host_waits_ms"] == pytest.approx(0.06)
    assert figures["host_ms"] == pytest.approx(0.14)
    assert "attend | matmul" in text
    assert "aten::linear" not in text


def test_random_models_are_drawn_where_they_are_used_and_take_no_room_on_the_disk(tmp_path: Path) -> None:
    checkpoint, model = random_model(TINY, tmp_path, "cpu")
    file = tmp_path / "model.safetensors"
    layers, hidden, inner, vocabulary = 2, 64, 128, 512
    weights = layers * (2 * 64 * hidden + 2 * 32 * hidden + 3 * hidden * inner + 2 * hidden) + hidden
    assert weight_bytes_of_a_step(model) == 2 * (weights + vocabulary * hidden)
    assert file.stat().st_size > 2 * weights
    assert file.stat().st_blocks * 512 < file.stat().st_size / 2
    assert checkpoint.vocab_size == vocabulary
    _, again = random_model(TINY, tmp_path, "cpu")
    assert all(map(torch.equal, model.parameters(), again.parameters()))


def test_shares_of_the_tests_are_all_of_them_and_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [_Item(f"test_{number}") for number in range(50)]
    shares = []
    for share in range(4):
        monkeypatch.setenv(conftest.SHARE_VARIABLE, f"{share}/4")
        ours: list[Any] = list(items)
        conftest.pytest_collection_modifyitems(_Config(), ours)  # pyright: ignore[reportArgumentType]
        shares.append(ours)
    assert sorted(item.nodeid for share in shares for item in share) == sorted(item.nodeid for item in items)
    assert all(shares)


class _Item:
    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


class _Config:
    def __init__(self) -> None:
        self.hook = self

    def pytest_deselected(self, items: list[Any]) -> None:
        assert items


def _stub(name: str, seconds: float = 60.0) -> Section:
    return Section(name, name, f"{STUBS}:{name}", seconds)


def _conditions(results: Results, seconds: float = 300.0) -> Conditions:
    return Conditions(results, "cpu", is_tiny=True, seconds=seconds)


def _event(category: str, name: str, begin: float, length: float) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": length}


def _content(**change: Any) -> dict[str, Any]:
    comparison = {
        "name": "1B, 1 requests",
        "unit": "tokens/s",
        "bar": 0.7,
        "gates": True,
        "ratio": 0.75,
        "holds": True,
        "spread": 0.02,
        "ours": {"name": "fanlight", "median": 300.0},
        "theirs": {"name": "bandwidth limit", "median": 400.0},
        **change,
    }
    return {"sections": {"decode-1b": {"status": "ok", "comparisons": [comparison]}}}
