"""How much memory a process takes at most while something happens, the processes that it starts included.

Reads what Linux tells in /proc; elsewhere nothing can be said.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import TracebackType

_SECONDS_BETWEEN_LOOKS = 0.005
_FORGET_THE_PEAK = "5"


class MemoryWatch:
    """A context; `extra_bytes` after it is the peak inside, beyond what the process had when it began.

    The process's own peak is kept by the kernel and is exact. Those of its children are looked at every few
    milliseconds, because they may be gone at any moment; all that they have counts, libraries included.
    """

    def __init__(self, pid: int) -> None:
        self.extra_bytes: int | None = None
        """None where the system does not tell."""
        self._folder = Path(f"/proc/{pid}")
        self._at_start = 0
        self._most_of_children = 0
        self._most_seen = 0
        self._peak_is_kept = True
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-watch", daemon=True)

    def __enter__(self) -> MemoryWatch:
        if self._folder.is_dir():
            self._forget_peak()
            self._at_start = self._most_seen = _bytes_of(self._folder, "VmRSS")
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._folder.is_dir():
            self._thread.join()
            own = _bytes_of(self._folder, "VmHWM") if self._peak_is_kept else self._most_seen
            self.extra_bytes = max(0, own - self._at_start) + self._most_of_children

    def _forget_peak(self) -> None:
        try:
            (self._folder / "clear_refs").write_text(_FORGET_THE_PEAK)
        except OSError:
            self._peak_is_kept = False

    def _watch(self) -> None:
        while not self._ended.wait(_SECONDS_BETWEEN_LOOKS):
            children = sum(_bytes_of(child, "VmHWM") for child in self._children())
            self._most_of_children = max(self._most_of_children, children)
            if not self._peak_is_kept:
                self._most_seen = max(self._most_seen, _bytes_of(self._folder, "VmRSS"))

    def _children(self) -> list[Path]:
        """The children of all of its threads that run now, but for those that have yet to leave its own memory."""
        found: list[Path] = []
        for listing in self._folder.glob("task/*/children"):
            found += [Path(f"/proc/{pid}") for pid in _text_of(listing).split()]
        own = _text_of(self._folder / "cmdline")
        return [child for child in found if _text_of(child / "cmdline") not in ("", own)]


def _bytes_of(folder: Path, name: str) -> int:
    """One of the amounts in a process's status; 0 for a process that is gone."""
    told = re.search(rf"^{name}:\s+(\d+) kB$", _text_of(folder / "status"), re.M)
    return int(told[1]) << 10 if told else 0


def _text_of(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
