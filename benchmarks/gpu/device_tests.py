"""tests/gpu, in a few processes at once: one JSON line per test as it ends, and what they sum up to.

The tests wait for references that a CPU computes, so that several of them fit beside each other. Each process takes its
share of the tests; tests/gpu/conftest.py says which, and writes the lines.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.gpu.workbench import NotMeasurableError, Workbench

LINES_FILE = "tests.jsonl"
LINES_VARIABLE, SHARE_VARIABLE = "FANLIGHT_GPU_TEST_LINES", "FANLIGHT_GPU_TEST_SHARE"
MOST_PROCESSES = 6
_REPOSITORY = Path(__file__).parents[2]
_NEED_NO_GPU = "tests/gpu/test_gpu_script.py"
_SECONDS_TO_SUM_UP = 3.0


def measure(workbench: Workbench) -> None:
    """The section. Raises RuntimeError where a test failed or did not end, or none passed."""
    if workbench.device == "cpu":
        raise NotMeasurableError("tests/gpu needs a CUDA device, and the cpu was asked for")
    lines = workbench.out / LINES_FILE
    count = max(1, min(MOST_PROCESSES, (os.cpu_count() or 1) // 2))
    processes = [_begin(lines, f"{share}/{count}") for share in range(count)]
    late = [process for process in processes if not _ends(process, workbench.seconds_left - _SECONDS_TO_SUM_UP)]
    for process in late:
        process.kill()
    workbench.record(processes=count, **summary_of(lines))
    codes = [process.wait() for process in processes]
    if not workbench.results.section(workbench.name)["figures"]["outcomes"].get("passed"):
        raise RuntimeError(f"no test passed; exit codes {codes}, see log.txt")
    if late or any(code not in (0, 5) for code in codes):  # 5: a share without a test
        raise RuntimeError(f"{len(late)} of {count} processes did not end in time; exit codes {codes}")


def summary_of(lines: Path) -> dict[str, Any]:
    """How many tests ended how, and everything about those that did not pass."""
    text = lines.read_text(encoding="utf-8") if lines.is_file() else ""
    ended = [json.loads(line) for line in text.splitlines()]
    return {
        "outcomes": dict(Counter(one["outcome"] for one in ended)),
        "slowest": [
            f"{one['seconds']:.1f} s {one['test']}" for one in sorted(ended, key=lambda one: -one["seconds"])[:8]
        ],
        "failed": [one for one in ended if one["outcome"] == "failed"],
        "skipped": dict(Counter(one["why"] for one in ended if one["outcome"] == "skipped")),
    }


def _begin(lines: Path, share: str) -> subprocess.Popen[bytes]:
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore", "--tb=short", f"--ignore={_NEED_NO_GPU}"]
    command = [sys.executable, "-m", "pytest", "tests/gpu", *options]
    environment = os.environ | {LINES_VARIABLE: str(lines.resolve()), SHARE_VARIABLE: share, "OMP_NUM_THREADS": "2"}
    return subprocess.Popen(command, cwd=_REPOSITORY, env=environment)


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(timeout=max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return False
    return True
