"""Sections that fail in every way a section can. Imports no torch: each runs in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from benchmarks.gpu.workbench import NotMeasurableError, Workbench


def good(workbench: Workbench) -> None:
    workbench.record(figure=1)


def raising(workbench: Workbench) -> None:
    workbench.record(figure=2)
    raise ValueError("the kernel is wrong")


def dying(workbench: Workbench) -> None:
    workbench.record(figure=3)
    print("an illegal memory access was encountered", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def hanging(workbench: Workbench) -> None:
    """Together with a child that would outlive it."""
    child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
    workbench.record(figure=4, child=child.pid)
    threading.Event().wait()


def not_measurable(workbench: Workbench) -> None:
    raise NotMeasurableError("there is no such device here")


def failing_in_parts(workbench: Workbench) -> None:
    try:
        raise ValueError("one of two")
    except ValueError:
        workbench.note_failure("the first part")
    workbench.record(figure=5)
