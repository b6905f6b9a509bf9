"""How much of the processor other processes take while something is measured, and other guests of a virtual machine.

Engines that compute with all cores wait for each other at every operator: one busy neighbour slows some of them down
ten times, and others hardly, so that no ratio says anything. Linux only; elsewhere nobody is seen.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_PROCESSES = Path("/proc")
_BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)
"""Of the line `cpu` in /proc/stat: user, nice, system, interrupts of both kinds, stolen."""
_PARENT, _TIMES = 1, slice(11, 15)
"""Of /proc/PID/stat behind the name: the parent, and ticks of the process and of its children that have ended."""


class Neighbours:
    """Watches from when it is made."""

    def __init__(self) -> None:
        self._before = self._reading()

    def cores_taken(self) -> float:
        """Cores that others kept busy since this was last asked; 0 where the system does not tell."""
        before, self._before = self._before, self._reading()
        seconds = self._before[0] - before[0]
        return max(0.0, self._before[1] - before[1]) / seconds if seconds else 0.0

    @staticmethod
    def _reading() -> tuple[float, float]:
        """Now, and processor seconds of everybody but this process and those it started."""
        if not (_PROCESSES / "stat").is_file():
            return time.perf_counter(), 0.0
        columns = (_PROCESSES / "stat").read_text().splitlines()[0].split()[1:]
        busy = sum(int(columns[one]) for one in _BUSY_COLUMNS)
        return time.perf_counter(), (busy - _ticks_of_family(os.getpid())) / os.sysconf("SC_CLK_TCK")


def _ticks_of_family(root: int) -> int:
    """Of a process and all that came from it."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in _PROCESSES.iterdir():
        if entry.name.isdecimal():
            try:
                behind_name = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            pid = int(entry.name)
            parents[pid] = int(behind_name[_PARENT])
            ticks[pid] = sum(map(int, behind_name[_TIMES]))
    return sum(ticks[pid] for pid in ticks if _descends(pid, root, parents))


def _descends(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid != root and pid in parents:
        pid = parents[pid]
    return pid == root
