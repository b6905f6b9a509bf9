"""Processes that handle what nobody vouches for: how one is started, and what it forbids itself before it begins.

A limit that the system keeps cannot be argued with, whatever the work inside is made of. Knows no work.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Sequence

_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "TZ")


def start_confined(module: str, arguments: Sequence[str], descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """Run a module of ours in a process that inherits these descriptors and nothing else of this one."""
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        # An interrupt typed at the server's terminal is the server's to handle: work that was begun is still finished.
        start_new_session=True,
    )


def forbid_files() -> None:
    """Nothing can be opened, written to or dumped from here on."""
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))


def limit_processor_seconds(seconds: int) -> None:
    """The process ends when it has used so much, counted from its start."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def limit_memory(address_space: int) -> None:
    """Make every allocation above so many bytes of address space fail; may be called again with more or less."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = address_space if hard == resource.RLIM_INFINITY else min(address_space, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def mapped_bytes() -> int:
    """Bytes of address space that this process has now."""
    with open("/proc/self/statm", "rb") as status:
        return int(status.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
