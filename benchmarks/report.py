"""What every benchmark says beside its figures, and when it says none: machine, versions, load, and spread.

Two things are compared in one run, turn about, so that each round gives a ratio of its own, in which a machine that
slows down for a while cancels out. The median of these counts, and is refused where they spread too far: a busy machine
measures itself. Knows nothing of what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch

MAX_SPREAD = 0.2
"""Largest difference between the ratios of two rounds, as part of the median, with which a ratio is still given."""
FEWEST_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Runs:
    """One thing's figure in each round; more is better."""

    name: str
    figures: tuple[float, ...]

    @property
    def median(self) -> float:
        """The figure to quote."""
        return statistics.median(self.figures)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours against theirs in one run, and the ratio that is aimed at: a bar, or a goal where it does not gate."""

    name: str
    unit: str
    bar: float
    ours: Runs
    theirs: Runs
    gates: bool = True

    @property
    def ratios(self) -> tuple[float, ...]:
        """Ours to theirs, round by round."""
        return tuple(our / their for our, their in zip(self.ours.figures, self.theirs.figures, strict=True))

    @property
    def spread(self) -> float:
        """Largest less smallest of the rounds' ratios, as part of their median."""
        return (max(self.ratios) - min(self.ratios)) / statistics.median(self.ratios)

    @property
    def ratio(self) -> float | None:
        """Ours to theirs, the median of the rounds; None where these spread too far to say."""
        return None if self.spread > MAX_SPREAD else statistics.median(self.ratios)

    @property
    def holds(self) -> bool | None:
        """Whether the bar is reached; None where nothing can be said.

        Rounds that spread too far for a ratio still agree on this where all of them are on the same side of the bar.
        """
        reached = [ratio >= self.bar for ratio in self.ratios]
        if self.ratio is not None:
            return self.ratio >= self.bar
        return reached[0] if len(set(reached)) == 1 else None

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Comparison:
        """Out of what `facts` gave."""
        ours, theirs = (Runs(side["name"], tuple(side["rounds"])) for side in (facts["ours"], facts["theirs"]))
        return cls(facts["name"], facts["unit"], facts["bar"], ours, theirs, facts["gates"])

    def line(self) -> str:
        """The comparison in one line of text."""
        figures = f"{self.ours.median:8.2f} {self.theirs.median:8.2f} {self.unit}"
        if self.ratio is None:
            spread = f"no ratio: rounds spread {self.spread:.0%}, over {MAX_SPREAD:.0%}"
            return f"{self.name:42} {figures}  {spread}{f', {self.verdict}' if self.verdict else ''}"
        return f"{self.name:42} {figures}  ratio {self.ratio:.2f} ({self.verdict}, spread {self.spread:.0%})"

    @property
    def verdict(self) -> str:
        """What the rounds say of the bar; nothing where they disagree."""
        if self.holds is None:
            return ""
        aim, reached, missed = ("bar", "holds", "FALLS SHORT") if self.gates else ("goal", "reached", "not reached")
        in_every_round = " in every round" if self.ratio is None else ""
        return f"{aim} {self.bar:.2f} {reached if self.holds else missed}{in_every_round}"

    def facts(self) -> dict[str, Any]:
        """The comparison as JSON values, rounds included."""
        return {
            "name": self.name,
            "unit": self.unit,
            "bar": self.bar,
            "gates": self.gates,
            "ratio": self.ratio,
            "holds": self.holds,
            "spread": self.spread,
            "ours": {"name": self.ours.name, "median": self.ours.median, "rounds": list(self.ours.figures)},
            "theirs": {"name": self.theirs.name, "median": self.theirs.median, "rounds": list(self.theirs.figures)},
        }


class Result(Protocol):
    """What a benchmark has measured."""

    @property
    def comparisons(self) -> Sequence[Comparison]:
        """All of them, for a picture."""
        ...

    def text(self) -> str:
        """For people."""
        ...

    def facts(self) -> dict[str, Any]:
        """For machines."""
        ...


def run_benchmark(description: str, title: str, rounds: int, measure: Callable[[int], Result]) -> None:
    """The command line of a benchmark: measure, print, write. `rounds` is how many count unless asked otherwise."""
    arguments = benchmark_parser(description, rounds).parse_args()
    deliver(measure(checked_rounds(arguments.rounds)), title, arguments)


def benchmark_parser(description: str, rounds: int) -> argparse.ArgumentParser:
    """The options that every benchmark has; one with more of them adds these."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"rounds that count, at least {FEWEST_ROUNDS}")
    parser.add_argument("--json", type=Path, help="file to write the result to")
    parser.add_argument("--svg", type=Path, help="file to draw the result to; needs matplotlib")
    return parser


def checked_rounds(rounds: int) -> int:
    """The number, where a median can be made of so many. Raises SystemExit."""
    if rounds < FEWEST_ROUNDS:
        raise SystemExit(f"--rounds is {rounds}, a median of at least {FEWEST_ROUNDS} is needed")
    return rounds


def deliver(result: Result, title: str, arguments: argparse.Namespace) -> None:
    """Print the result, and write it to the files that were asked for."""
    print(result.text())
    if arguments.json:
        write_json(arguments.json, result.facts())
    if arguments.svg:
        write_svg(arguments.svg, title, result.comparisons)


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def machine_facts(packages: Sequence[str], threads: int) -> dict[str, Any]:
    """Processor, cores, threads in use, load and versions: without them a figure means nothing."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "load": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }


def machine_line(facts: dict[str, Any]) -> str:
    """The same in one line of text."""
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def write_json(file: Path, content: dict[str, Any]) -> None:
    """The whole result, for machines."""
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_svg(file: Path, title: str, comparisons: Sequence[Comparison]) -> None:
    """Every ratio as a bar with the range of its rounds, and a mark at what is aimed at; equal results, equal files.

    Raises SystemExit where matplotlib is missing.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit("--svg needs matplotlib, which is not installed: pip install matplotlib") from None
    with matplotlib.rc_context({"svg.hashsalt": "fanlight", "svg.fonttype": "none"}):
        figure = Figure(figsize=(9, 1.2 + 0.4 * len(comparisons)), layout="tight")
        axes = figure.subplots()
        for row, comparison in enumerate(comparisons):
            ratio = statistics.median(comparison.ratios)
            ends = [[ratio - min(comparison.ratios)], [max(comparison.ratios) - ratio]]
            colour = "#b0b0b0" if comparison.ratio is None else "#1b6ca8"
            axes.barh(row, ratio, 0.6, color=colour, xerr=ends)
            axes.plot([comparison.bar] * 2, [row - 0.4, row + 0.4], color="#c0392b")
        axes.set_yticks(range(len(comparisons)), [comparison.name for comparison in comparisons])
        axes.invert_yaxis()
        axes.set_xlabel(
            "ours to theirs, with the range of the rounds; red: what is aimed at; grey: rounds spread too far"
        )
        axes.set_title(title)
        figure.savefig(file, format="svg", metadata={"Date": None})


def _processor() -> str:
    """The processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
