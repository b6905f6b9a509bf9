"""Lets several processes share the tests, and writes how each test ended as soon as it has. benchmarks.gpu sets both.

A share is n of m: all tests with one model are in the same, since its reference is costly to compute.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.device_tests import LINES_VARIABLE, SHARE_VARIABLE

MOST_CHARACTERS = 3000


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is in other shares."""
    share, _, count = os.environ.get(SHARE_VARIABLE, "0/1").partition("/")
    ours = [item for item in items if _number(item) % int(count) == int(share)]
    if len(ours) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in ours])
        items[:] = ours


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    """One line per test: when it has run, and when it did not come to that."""
    report: pytest.TestReport = yield
    file = os.environ.get(LINES_VARIABLE)
    if file and (report.when == "call" or report.outcome != "passed"):
        why = "" if report.outcome == "passed" else _why(report)
        line = {"test": item.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 2), "why": why}
        with Path(file).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
    return report


def _why(report: pytest.TestReport) -> str:
    """The reason of a skip by itself, so that equal ones can be counted."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    return report.longreprtext[-MOST_CHARACTERS:]


def _number(item: pytest.Item) -> int:
    """The same in every process, unlike `hash`."""
    callspec = getattr(item, "callspec", None)
    costly = callspec.params.get("model") if callspec is not None else None
    return zlib.crc32(str(costly or item.nodeid).encode())
