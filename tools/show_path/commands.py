"""Bars 1 and 9: the commands of the Makefile, and the structure of the source."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator

from tools.bars.commands import run
from tools.bars.table import Figure, judged
from tools.check_structure import COUNTED, GENERATED, MOST_LINES, REPOSITORY, tracked_files

MOST_TEST_SECONDS = 600.0
POLICY_CONTRACT = "Policy never imports torch"


def measure_bar_1() -> Iterator[Figure]:
    """The demo, and the test suite with its time."""
    demo = run("make", "demo")
    yield judged(1, "make demo: exit code", demo.exit_code, "0", demo.exit_code == 0, demo.last_lines)
    told = re.search(r"(\d+) of (\d+) answers were right", demo.output)
    right, asked = told.groups() if told else ("0", "no")
    yield judged(1, "make demo: right answers", f"{right} of {asked}", "all", right == asked)
    test = run("make", "test")
    yield judged(1, "make test: exit code", test.exit_code, "0", test.exit_code == 0, test.last_lines)
    minutes = f"{test.seconds / 60:.1f} minutes"
    yield judged(1, "make test: time", minutes, "under 10 minutes", test.seconds < MOST_TEST_SECONDS)
    passed = re.findall(r"\d+ passed", test.output)
    suites = ", ".join(passed) or "none"
    yield judged(1, "make test: suites passed, the second under python -O", suites, "2 suites", len(passed) == 2)


def measure_bar_9() -> Iterator[Figure]:
    """The checks, the longest file, and what policy files import."""
    check = run("make", "check")
    yield judged(9, "make check: exit code", check.exit_code, "0", check.exit_code == 0, check.last_lines)
    longest, lines = max(_line_counts(), key=lambda pair: pair[1])
    yield judged(
        9, f"lines of the longest file ({longest})", lines, f"at most {MOST_LINES}", lines <= MOST_LINES
    )  # fmt: skip
    modules = _policy_modules()
    heavy = [module for module in modules if _imports_torch(module)]
    measured = f"{len(modules)} modules, {len(heavy)} with torch"
    yield judged(9, "policy modules that load torch", measured, "0 with torch", not heavy, ", ".join(heavy))


def _line_counts() -> Iterator[tuple[str, int]]:
    for name in tracked_files():
        if name.endswith(COUNTED) and not name.startswith(GENERATED):
            yield name, len((REPOSITORY / name).read_text(encoding="utf-8").splitlines())


def _policy_modules() -> list[str]:
    """The modules that the import contract of that name keeps free of torch."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    return next(contract["source_modules"] for contract in contracts if contract["name"] == POLICY_CONTRACT)


def _imports_torch(module: str) -> bool:
    """Whether a fresh interpreter has torch once it has imported the module."""
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode != 0
