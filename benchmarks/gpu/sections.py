"""Which sections there are, and the loop that runs them one after another, each in its own process and its own time.

A section that fails, hangs or brings its process down is recorded as such, and the next one runs. Imports no torch: the
loop must outlive whatever a device does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.record import Results

LEAST_SECONDS = 10
"""A section is not begun with less than this."""
_LOG_TAIL_CHARACTERS = 3000
_REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the measurement. `measure` is `module:function`, which takes a Workbench; `seconds` is the most that
    it may take."""

    name: str
    what: str
    measure: str
    seconds: float


SECTIONS = (
    Section("ceilings", "what the card gives: copy bandwidth, matrix rate", "benchmarks.gpu.ceilings:measure", 40),
    Section("decode-1b", "decode steps of a 1B-shaped model", "benchmarks.gpu.decode:measure_1b", 75),
    Section("decode-8b", "decode steps of an 8B-shaped model", "benchmarks.gpu.decode:measure_8b", 90),
    Section("tests", "tests/gpu", "benchmarks.gpu.device_tests:measure", 140),
    Section("switches", "graphs, async, attention: on against off", "benchmarks.gpu.switches:measure", 90),
    Section("attention", "attention kernels alone, over rows and contexts", "benchmarks.gpu.attention:measure", 50),
    Section("prefill", "prompts, against the matrix rate", "benchmarks.gpu.prefill:measure", 50),
    Section("peer", "transformers' compiled generate with a static cache", "benchmarks.gpu.peer:measure", 110),
)
"""What matters most comes first: time may run out, and a machine may be taken away."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What holds for all sections of one run. `seconds` is the most that all of them take together."""

    results: Results
    device: str
    is_tiny: bool
    seconds: float

    @property
    def log(self) -> Path:
        """What the sections printed."""
        return self.results.file.with_name("log.txt")


def run_sections(sections: Sequence[Section], conditions: Conditions) -> None:
    """Run all of them in order; how each ended is in the results file, and nothing is raised."""
    begun = time.monotonic()
    for section in sections:
        left = conditions.seconds - (time.monotonic() - begun)
        seconds = min(section.seconds, left)
        if seconds < min(LEAST_SECONDS, section.seconds):
            conditions.results.set_section(section.name, status="not begun", why="the time of all sections was used up")
            continue
        _run_section(section, conditions, seconds)


def _run_section(section: Section, conditions: Conditions, seconds: float) -> None:
    results = conditions.results
    print(f"{section.name}: {section.what}, at most {seconds:.0f} s", file=sys.stderr, flush=True)
    begun = time.monotonic()
    results.set_section(section.name, what=section.what, status="begun", budget=round(seconds, 1))
    with conditions.log.open("ab") as log:
        start = log.tell()
        process = subprocess.Popen(
            _command(section, conditions, seconds),
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=_REPOSITORY,
            start_new_session=True,
        )
        is_late = False
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            is_late = True
        finally:
            _end(process)
    if is_late:
        results.set_section(section.name, status="out of time", why=f"ended after {seconds:.0f} s")
    elif results.section(section.name)["status"] == "begun":  # it ended without a word
        how = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
        said = _tail(conditions.log, start)
        results.set_section(section.name, status="failed", why=f"its process ended with {how}", error=said)
    results.set_section(section.name, seconds=round(time.monotonic() - begun, 1))
    ended = results.section(section.name)
    print(f"{section.name}: {ended['status']} after {ended['seconds']} s", file=sys.stderr, flush=True)


def _command(section: Section, conditions: Conditions, seconds: float) -> list[str]:
    module = [sys.executable, "-m", "benchmarks.gpu.one_section"]
    arguments = [section.name, section.measure, str(conditions.results.file), conditions.device, f"{seconds:.1f}"]
    return [*module, *arguments, *["--tiny"] * conditions.is_tiny]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the section's process and all that it started; they are a group of their own."""
    with suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(log: Path, start: int) -> str:
    with log.open("rb") as stream:
        stream.seek(start)
        return stream.read().decode(errors="replace")[-_LOG_TAIL_CHARACTERS:]
