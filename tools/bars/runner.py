"""Runs the bars of one program and prints their figures: all of them, or those named on the command line.

Exits 1 where a figure falls short; figures that this machine cannot give are named and count neither way. Progress goes
to standard error, the table to standard output. Knows no bar.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import re
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tools.bars.table import Figure, Verdict, judged, render, summary


@dataclass(frozen=True, slots=True)
class Show:
    """A program that shows bars.

    `package` holds the modules; `module_of_bar` says which module has `measure_bar_N()`, which gives the figures of bar
    N and is imported when its turn comes. `packages` are the distributions whose versions matter.
    """

    package: str
    description: str
    module_of_bar: Mapping[int, str]
    packages: tuple[str, ...] = ("torch", "transformers", "grpcio")

    def main(self) -> int:
        """Measure, print, and say with the exit code whether everything holds."""
        bars = self._asked_bars()
        print(self._machine(), file=sys.stderr)
        figures = [figure for bar in bars for figure in self._measured(bar)]
        print(f"\n{self._machine()}\n\n{render(figures)}\n\n{summary(figures)}")
        return 1 if any(figure.verdict is Verdict.SHORT for figure in figures) else 0

    def _asked_bars(self) -> list[int]:
        first, last = min(self.module_of_bar), max(self.module_of_bar)
        parser = argparse.ArgumentParser(prog=f"python -m {self.package}", description=self.description)
        parser.add_argument("bars", nargs="*", type=self._bar, metavar="BAR", help=f"{first} to {last}; default: all")
        return sorted(set(parser.parse_args().bars)) or sorted(self.module_of_bar)

    def _bar(self, text: str) -> int:
        if not (text.isdecimal() and int(text) in self.module_of_bar):
            first, last = min(self.module_of_bar), max(self.module_of_bar)
            raise argparse.ArgumentTypeError(f"{text!r} is no bar; they are {first} to {last}")
        return int(text)

    def _measured(self, bar: int) -> Iterator[Figure]:
        """The figures of a bar; one whose measuring fails falls short."""
        print(f"bar {bar} ...", file=sys.stderr, flush=True)
        begun = time.monotonic()
        try:
            module = importlib.import_module(f"{self.package}.{self.module_of_bar[bar]}")
            yield from getattr(module, f"measure_bar_{bar}")()
        except Exception as error:  # a bar that cannot be shown must not hide the others
            traceback.print_exc()
            yield judged(bar, "measuring this bar", "failed", "a figure", False, f"{type(error).__name__}: {error}")
        print(f"bar {bar} took {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)

    def _machine(self) -> str:
        """What the figures were measured on; a busy machine shows in its load."""
        load = "/".join(f"{one:.1f}" for one in os.getloadavg())
        packages = ", ".join(f"{name} {version(name)}" for name in self.packages)
        return (
            f"{_processor()}, {os.cpu_count()} cores, load {load}, Python {platform.python_version()}, {packages}, "
            f"{time.strftime('%Y-%m-%d %H:%M')}"
        )


def _processor() -> str:
    """The processor's model where the system tells it."""
    facts = Path("/proc/cpuinfo")
    told = re.search(r"^model name\s*: (.*)$", facts.read_text(), re.M) if facts.is_file() else None
    return told[1] if told else platform.machine()
