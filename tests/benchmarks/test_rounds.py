"""Rounds in which everybody measures in turn."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.neighbours import Neighbours, _descends, _ticks_of_family
from benchmarks.rounds import take_turns


def nobody() -> float:
    return 0.0


class Contender:
    """Gives the figures it was made with, one after another, and notes when it was called."""

    def __init__(self, name: str, figures: list[float], calls: list[str]) -> None:
        self.name = name
        self.figures = iter(figures)
        self.calls = calls

    def __call__(self) -> Mapping[str, float]:
        self.calls.append(self.name)
        return {"speed": next(self.figures)}


def test_a_round_counts_at_the_best_of_its_passes_and_the_first_one_is_dropped():
    one = Contender("one", [99.0, 1.0, 3.0, 2.0, 7.0, 5.0, 6.0], [])
    assert take_turns({"one": one}, rounds=2, passes=3, cores_taken=nobody) == {("one", "speed"): (3.0, 7.0)}


def test_everybody_measures_in_every_pass_and_another_one_begins():
    calls: list[str] = []
    contenders = {name: Contender(name, [1.0] * 5, calls) for name in ("a", "b", "c")}
    take_turns(contenders, rounds=2, passes=2, cores_taken=nobody)
    assert ["".join(calls[turn : turn + 3]) for turn in range(0, 15, 3)] == ["abc", "bca", "cab", "cab", "abc"]


def test_a_pass_in_which_others_took_the_machine_is_measured_again():
    taken = iter([0.0, 0.9, 0.0, 0.05, 0.0, 0.9, 0.0, 0.0])  # before and after each of four passes
    one = Contender("one", [99.0, 1.0, 50.0, 2.0], [])
    assert take_turns({"one": one}, rounds=2, passes=1, cores_taken=lambda: next(taken)) == {
        ("one", "speed"): (1.0, 2.0)
    }


def test_a_machine_that_is_never_quiet_is_measured_as_it_is():
    one = Contender("one", [float(number) for number in range(20)], [])
    assert len(take_turns({"one": one}, rounds=3, passes=2, cores_taken=lambda: 1.0)[("one", "speed")]) == 3


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="only Linux tells")
def test_what_children_compute_is_counted_as_ours():
    before = _ticks_of_family(os.getpid())
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert _ticks_of_family(os.getpid()) - before >= 0.25 * os.sysconf("SC_CLK_TCK")
    assert Neighbours().cores_taken() >= 0.0


def test_descent_is_followed_over_generations():
    parents = {5: 4, 4: 3, 3: 1, 9: 1}
    assert _descends(5, 3, parents)
    assert not _descends(9, 3, parents)
