"""Bar 5: tests and decode speed on a GPU, in one script; where there is none it says so, and shows that it is ready."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.record import Results
from benchmarks.gpu.summary import GOOD
from benchmarks.report import Comparison
from tools.bars.commands import run
from tools.bars.ratios import ratio_figure
from tools.bars.table import Figure, judged, not_measurable

MOST_SECONDS = 540.0
REQUIRED = "70 % of the bandwidth at 1 request, 50 % at 64"


def measure_bar_5() -> Iterator[Figure]:
    """Every comparison of the script where a CUDA device is; else a run of it in which all is tiny."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory)
        if torch.cuda.is_available():
            yield _script(out, "the script, tests/gpu included", "--tests")
            for section in _sections(out):
                yield from (ratio_figure(5, Comparison.of(facts)) for facts in section.get("comparisons", ()))
        else:
            what = "tests/gpu, and tokens per second on a GPU"
            yield not_measurable(5, what, REQUIRED, "torch sees no CUDA device here")
            yield _script(out, "the script is ready: everything tiny, on the CPU", "--device", "cpu", "--tiny")


def _script(out: Path, what: str, *options: str) -> Figure:
    """Whether all its sections ended well, and how long they took."""
    done = run(sys.executable, "-W", "ignore", "-m", "benchmarks.gpu", "--out", str(out), *options)
    sections = _sections(out)
    well = sum(section.get("status") in GOOD for section in sections)
    measured = f"{well} of {len(sections)} sections in {done.seconds:.0f} s"
    holds = well == len(sections) > 0 and done.seconds < MOST_SECONDS
    return judged(5, what, measured, f"all, under {MOST_SECONDS:.0f} s", holds, done.last_lines)


def _sections(out: Path) -> list[Mapping[str, Any]]:
    return list(Results(out / "results.json").read().get("sections", {}).values())
