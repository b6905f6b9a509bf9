"""How much memory a device has for us, as the machine says it. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

_MEMORY_INFORMATION = Path("/proc/meminfo")
_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def available_bytes(device: torch.device) -> int | None:
    """Bytes that can be taken on `device` without pushing others out; None where the machine does not say."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    if device.type != "cpu":
        return None
    known = [one for one in (_of_machine(_MEMORY_INFORMATION), *_of_groups(_OWN_GROUPS, _GROUPS)) if one is not None]
    return min(known, default=None)


def _of_machine(information: Path) -> int | None:
    """MemAvailable: free memory, and what the kernel can take back from its file cache."""
    try:
        for line in information.read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == "MemAvailable":
                return int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _of_groups(own_groups: Path, root: Path) -> Iterator[int]:
    """What each control group that limits us has left (a container's, say); a limit holds for all groups below it."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, controllers_and_path = line.partition(":")
        controllers, _, path = controllers_and_path.partition(":")
        if controllers == "":
            directory, limit, used, cache = root, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            directory = root / "memory"
            limit, used, cache = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        for group in _from_root(directory, path):
            left = _left_in(group, limit, used, cache)
            if left is not None:
                yield left


def _from_root(directory: Path, path: str) -> Iterator[Path]:
    """The group and all above it; inside a container the path may be one of the host's, and only the root is there."""
    yield directory
    for part in Path(path.lstrip("/")).parts:
        directory = directory / part
        yield directory


def _left_in(group: Path, limit: str, used: str, cache: str) -> int | None:
    try:
        most = (group / limit).read_text().strip()
        if most == "max":
            return None
        taken = int((group / used).read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(0, int(most) - taken + int(statistics.get(cache, 0)))
    except (OSError, ValueError):
        return None
