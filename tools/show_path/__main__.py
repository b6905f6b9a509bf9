"""`python -m tools.show_path [BAR ...]`: measure all bars, or those named, and print the table.

Exits 1 where a figure falls short; figures that this machine cannot give are named and count neither way. Progress goes
to standard error, the table to standard output.
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
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from tools.show_path.table import Figure, Verdict, judged, render, summary

MODULE_OF_BAR = {
    1: "commands",
    2: "parity",
    3: "accuracy",
    4: "load",
    5: "load",
    6: "flow",
    7: "hostile",
    8: "newcomer",
    9: "commands",
}
"""Each module has `measure_bar_N()`, which gives the figures of bar N; it is imported when its turn comes."""


def main() -> int:
    """Measure, print, and say with the exit code whether everything holds."""
    bars = _bars()
    print(_machine(), file=sys.stderr)
    figures = [figure for bar in bars for figure in _measured(bar)]
    print(f"\n{_machine()}\n\n{render(figures)}\n\n{summary(figures)}")
    return 1 if any(figure.verdict is Verdict.SHORT for figure in figures) else 0


def _bars() -> list[int]:
    parser = argparse.ArgumentParser(prog="python -m tools.show_path", description=__doc__)
    parser.add_argument("bars", nargs="*", type=_bar, metavar="BAR", help="1 to 9; default: all")
    return sorted(set(parser.parse_args().bars)) or list(MODULE_OF_BAR)


def _bar(text: str) -> int:
    if not (text.isdecimal() and int(text) in MODULE_OF_BAR):
        raise argparse.ArgumentTypeError(f"{text!r} is no bar; they are {min(MODULE_OF_BAR)} to {max(MODULE_OF_BAR)}")
    return int(text)


def _measured(bar: int) -> Iterator[Figure]:
    """The figures of a bar; one whose measuring fails falls short."""
    print(f"bar {bar} ...", file=sys.stderr, flush=True)
    begun = time.monotonic()
    try:
        module = importlib.import_module(f"tools.show_path.{MODULE_OF_BAR[bar]}")
        yield from getattr(module, f"measure_bar_{bar}")()
    except Exception as error:  # a bar that cannot be shown must not hide the others
        traceback.print_exc()
        yield judged(bar, "measuring this bar", "failed", "a figure", False, f"{type(error).__name__}: {error}")
    print(f"bar {bar} took {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)


def _machine() -> str:
    """What the figures were measured on; a busy machine shows in its load."""
    load = "/".join(f"{one:.1f}" for one in os.getloadavg())
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "grpcio"))
    return (
        f"{_processor()}, {os.cpu_count()} cores, load {load}, Python {platform.python_version()}, {packages}, "
        f"{time.strftime('%Y-%m-%d %H:%M')}"
    )


def _processor() -> str:
    """The processor's model where the system tells it."""
    facts = Path("/proc/cpuinfo")
    told = re.search(r"^model name\s*: (.*)$", facts.read_text(), re.M) if facts.is_file() else None
    return told[1] if told else platform.machine()


if __name__ == "__main__":
    sys.exit(main())
