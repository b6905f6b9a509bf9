"""The kernels that this machine can run, for tests of them: each way to compile them, and each kind of products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from fanlight_engine.model.cpu.build import CannotBuild, built_library
from fanlight_engine.model.cpu.library import Kernels, Kind
from fanlight_engine.model.cpu.processor import NUMBER_TYPES, processor_features, targets_of

WAYS = [
    (target.name, dtype, kind)
    for dtype in NUMBER_TYPES
    for target in targets_of(processor_features(), dtype)
    for kind in Kind
    if kind is Kind.VECTOR or target.name == "AMX"
] or [("none", torch.float32, Kind.VECTOR)]
"""Targets, number types and kinds of products."""
IDS = [f"{target}-{dtype}-{kind.name}".replace("torch.", "") for target, dtype, kind in WAYS]


def kernels_of(target: str, dtype: torch.dtype, kind: Kind | None = None) -> Kernels:
    """Kernels compiled so, which keep to one kind where it is named; skips where this machine has none."""
    features = {one.name: frozenset(one.features) for one in targets_of(processor_features(), dtype)}
    try:
        path, _ = built_library(dtype, features.get(target, frozenset()))
    except CannotBuild as reason:
        pytest.skip(f"no kernels on this machine: {reason}")
    kernels = Kernels(path, dtype, target)
    if kind is Kind.TILE and not kernels.has_tiles:
        pytest.skip("the operating system keeps AMX to itself")
    kernels.only_kind = kind
    return kernels


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """So many threads within."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
