"""What a section measures with: device, time and the place for its figures; and how it says what it cannot give."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.record import Results

MOST_TRACEBACK_CHARACTERS = 6000


class NotMeasurableError(Exception):
    """This machine, or what is installed on it, cannot give the figures; the text says why."""


class LoggedError(logging.Handler):
    """Keeps the last exception that was logged: a core logs what a step raised, and tells its callers only that."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        if record.exc_info:
            self._last = f"logged before: {logging.Formatter().formatException(record.exc_info)}"

    def taken(self) -> str:
        """The text of it, once; empty where nothing was logged."""
        last, self._last = self._last, ""
        return last[-MOST_TRACEBACK_CHARACTERS:]


@dataclass(slots=True)
class Workbench:
    """What a section measures with, and where it puts its figures."""

    name: str
    results: Results
    device: str
    is_tiny: bool
    seconds: float
    logged: LoggedError = field(default_factory=LoggedError)
    _begun: float = field(default_factory=time.monotonic)

    @property
    def out(self) -> Path:
        """The directory of all results."""
        return self.results.file.parent

    @property
    def seconds_left(self) -> float:
        """Until this process will be ended."""
        return self.seconds - (time.monotonic() - self._begun)

    def record(self, **facts: Any) -> None:
        """Put figures into the results file, and say them in the log."""
        known = self.results.section(self.name).get("figures", {})
        self.results.set_section(self.name, figures=known | facts)
        print(f"{self.name}: {facts}", flush=True)

    def record_comparison(self, facts: dict[str, Any]) -> None:
        """Add the facts of one Comparison."""
        known = self.results.section(self.name).get("comparisons", [])
        self.results.set_section(self.name, comparisons=[*known, facts])
        print(f"{self.name}: {facts}", flush=True)

    def note(self, text: str) -> None:
        """Add a line that a reader of the figures must know."""
        known = self.results.section(self.name).get("notes", [])
        self.results.set_section(self.name, notes=[*known, text])
        print(f"{self.name}: {text}", flush=True)

    def note_failure(self, what: str) -> None:
        """Inside an except block: note what failed, with the traceback. The section goes on with its other figures."""
        self.note(f"{what} failed: {traceback_text()}{self.logged.taken()}")
        self.results.set_section(self.name, failed_parts=self.results.section(self.name).get("failed_parts", 0) + 1)

    @contextmanager
    def going_on(self, part: str, unless: type[Exception] | tuple[()] = ()) -> Iterator[None]:
        """What fails within it is noted as a failure of that part, and goes no further; `unless` does."""
        try:
            yield
        except unless:
            raise
        except Exception:  # foreign code on a device; a section's other parts must still be measured
            self.note_failure(part)


def traceback_text() -> str:
    """The end of the traceback of the exception that is being handled."""
    return traceback.format_exc()[-MOST_TRACEBACK_CHARACTERS:]
