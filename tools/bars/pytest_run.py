"""A bar that is a file of tests: run it, and give how many of its tests passed as the figure."""

from __future__ import annotations

import re
import sys

from tools.bars.commands import run
from tools.bars.table import Figure, judged

_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|error)")


def measure_tests(bar: int, what: str, file: str, *options: str) -> Figure:
    """All tests of a file (or node id) must pass, and none may be skipped."""
    done = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file, *options)
    counts = {kind: int(number) for number, kind in _COUNTS.findall(done.output.strip().splitlines()[-1])}
    passed = counts.get("passed", 0)
    total = sum(counts.values())
    holds = done.exit_code == 0 and passed == total > 0
    return judged(bar, what, f"{passed} of {total} tests of {file}", "all, none skipped", holds, done.last_lines)
