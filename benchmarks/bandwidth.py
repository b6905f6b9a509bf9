"""How fast this machine reads memory: what bounds a decode step, which reads all weights for a few tokens."""

from __future__ import annotations

import time

import torch

MEGABYTES = 512
ROW_NUMBERS = 4096
BUSY_BELOW = 20.0
"""Gigabytes per second below which a machine with two channels and more is at something else."""


class ReadBandwidth:
    """A block of memory too large for any cache, read by a matrix-vector product with torch's threads."""

    def __init__(self) -> None:
        self._block = torch.ones(MEGABYTES * 1_000_000 // 4 // ROW_NUMBERS, ROW_NUMBERS)
        self._vector = torch.ones(ROW_NUMBERS)

    def gigabytes_per_second(self, times: int = 5) -> float:
        """The best of several readings."""
        seconds = []
        for _ in range(times):
            begun = time.perf_counter()
            torch.mv(self._block, self._vector)
            seconds.append(time.perf_counter() - begun)
        return self._block.nbytes / min(seconds) / 1e9


def busy_notice(gigabytes_per_second: float) -> list[str]:
    """A line for a machine that reads too slowly to be idle; none for one that does not."""
    if gigabytes_per_second >= BUSY_BELOW:
        return []
    return [f"memory is read at {gigabytes_per_second:.1f} GB/s, under {BUSY_BELOW:.0f}: the machine is busy or small"]
