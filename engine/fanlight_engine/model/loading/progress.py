"""Progress of reading weights: transformers counts what it has read in bars, which become a line per tenth.

Bars themselves would garble a log. Knows how transformers and tqdm report, and nothing of what is loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging as transformers_logging

Report = Callable[[str], None]
_TENTHS = 10
_SECONDS_WORTH_A_LINE = 1.0


class ReportedProgress:
    """Stands in for a tqdm bar: iterates, and reports a line at every tenth that took a second or more to reach."""

    def __init__(self, items: Iterable[Any] | None, total: int | None, what: str, report: Report) -> None:
        self._items = items
        self._total = total if total is not None else _length(items)
        self._what = what
        self._report = report
        self._done = 0
        self._reported_at = time.monotonic()
        self._reported_tenths = 0

    def __iter__(self) -> Iterator[Any]:
        """The items, counted as they are finished."""
        for item in self._items or ():
            yield item
            self.update()

    def update(self, count: int = 1) -> None:
        """`count` more are done."""
        self._done += count
        tenths = _TENTHS * self._done // self._total if self._total else 0
        now = time.monotonic()
        if tenths > self._reported_tenths and now - self._reported_at >= _SECONDS_WORTH_A_LINE:
            self._report(f"{self._what}: {tenths * 100 // _TENTHS} %")
            self._reported_tenths, self._reported_at = tenths, now

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Whatever else a bar can do (set_postfix, close, refresh) is nothing here."""
        return lambda *_, **__: None

    def __enter__(self) -> ReportedProgress:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def bars_of(report: Report, what: str) -> Callable[..., ReportedProgress]:
    """A function that can be called as tqdm is."""

    def bar(iterable: Iterable[Any] | None = None, *_: Any, total: int | None = None, **__: Any) -> ReportedProgress:
        return ReportedProgress(iterable, total, what, report)

    return bar


@contextmanager
def reported(report: Report, what: str) -> Iterator[None]:
    """While it is entered, transformers' bars are lines of `report` that begin with `what`."""
    bar = bars_of(report, what)
    previous = transformers_logging.set_tqdm_hook(lambda _, args, kwargs: bar(*args, **kwargs))
    try:
        yield
    finally:
        transformers_logging.set_tqdm_hook(previous)


def _length(items: Any) -> int:
    try:
        return len(items)
    except TypeError:
        return 0
