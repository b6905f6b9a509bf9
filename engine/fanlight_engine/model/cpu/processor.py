"""What this processor can do, and how the kernels are compiled for it. Knows no files and no tensors."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

NUMBER_TYPES = (torch.float32, torch.bfloat16)
"""Number types of weights that there are kernels for."""

_AVX2 = ("avx2", "fma")
_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq")
_TILES = ("amx_tile", "amx_bf16")


@dataclass(frozen=True, slots=True)
class Target:
    """One way to compile the kernels."""

    name: str
    features: tuple[str, ...]
    """What the processor must have, as the kernel of the operating system names it."""
    flags: tuple[str, ...]
    """What the compiler is told."""


_TILE_FLAGS = ("-mamx-tile", "-mamx-bf16", "-DFANLIGHT_HAS_TILES")
_AVX512_FLAGS = tuple(f"-m{feature}" for feature in (*_AVX2, *_AVX512))
_AVX2_FLAGS = tuple(f"-m{feature}" for feature in _AVX2)
_TARGETS = (
    Target("AMX", (*_AVX2, *_AVX512, *_TILES), (*_AVX512_FLAGS, *_TILE_FLAGS)),
    Target("AVX-512", (*_AVX2, *_AVX512), _AVX512_FLAGS),
    Target("AVX2", _AVX2, _AVX2_FLAGS),
)


@cache
def processor_features() -> frozenset[str]:
    """Features of an x86 processor under Linux; empty elsewhere."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), frozenset())


def targets_of(features: frozenset[str], dtype: torch.dtype) -> tuple[Target, ...]:
    """Targets that a processor with these features runs, the fastest first; a compiler may know only the later ones."""
    able = tuple(target for target in _TARGETS if features.issuperset(target.features))
    return able if dtype is torch.bfloat16 else tuple(target for target in able if not set(_TILES) & {*target.features})
