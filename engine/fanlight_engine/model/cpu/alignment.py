"""Weights moved to where the kernels read them fastest: at whole cache lines, in pages of two megabytes.

Weights of a checkpoint lie wherever its file has them, mapped into memory in small pages, and a cache line of weights
may begin inside one of memory: then every line is read twice, and the processor looks up hundreds of times as many
pages. Moving them takes no more memory than reading the file into memory would: the pages of the file are given back to
the system once nobody looks into them any more.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from ctypes import c_int, c_size_t, c_void_p

import torch

_LINE = 64
_LARGE_PAGE = 2 << 20
_USE_LARGE_PAGES = 14
"""MADV_HUGEPAGE of Linux."""


def align_weights(parameters: Iterable[torch.nn.Parameter]) -> int:
    """Move those that do not begin at a whole cache line, in place, and return how many bytes were moved.

    Views of what lay there before go on looking at the old place.
    """
    moved = [one for one in {id(one): one for one in parameters}.values() if one.data_ptr() % _LINE]
    if not moved:
        return 0
    sizes = [-(-one.nbytes // _LINE) * _LINE for one in moved]
    memory = _large_pages(sum(sizes))
    for parameter, size, place in zip(moved, sizes, memory.split(sizes), strict=True):
        assert len(place) == size
        new = place[: parameter.nbytes].view(parameter.dtype).view(parameter.shape)
        parameter.data = new.copy_(parameter.data)
    return sum(sizes)


def _large_pages(count: int) -> torch.Tensor:
    """`count` bytes that begin at a large page; the system decides whether it has such pages."""
    rounded = -(-count // _LARGE_PAGE) * _LARGE_PAGE
    memory = torch.empty(rounded + _LARGE_PAGE, dtype=torch.uint8)
    first = -memory.data_ptr() % _LARGE_PAGE
    memory = memory[first : first + rounded]
    advise = ctypes.CDLL(None).madvise
    advise.argtypes, advise.restype = (c_void_p, c_size_t, c_int), c_int
    advise(memory.data_ptr(), rounded, _USE_LARGE_PAGES)
    return memory[:count]
