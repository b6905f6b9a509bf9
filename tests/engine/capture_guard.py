"""Guards that fail on what no CUDA graph can capture, for steps that run on a CPU or on tensors without data."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

HOST_READS = {"_local_scalar_dense", "item", "equal", "is_nonzero", "_unique2", "unique_dim", "unique_consecutive"}
DATA_DEPENDENT_SHAPES = {"nonzero", "nonzero_static", "masked_select", "bincount"}


class CaptureGuard(TorchDispatchMode):
    """Fails on operators that read on the host or whose shapes depend on data, and remembers what they allocate."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: list[StorageWeakRef] = []
        self.operators = 0

    @property
    def outliving(self) -> int:
        """Allocations of operators so far that are still alive."""
        return len({one.cdata for one in self._storages if not one.expired()})

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if _is_beyond_capture(func, args):
            raise RuntimeError(f"{func} cannot be captured")
        self.operators += 1
        outputs = func(*args, **(kwargs or {}))
        given = {storage.data_ptr() for storage in _storages_in((args, kwargs))}
        self._storages += [StorageWeakRef(one) for one in _storages_in(outputs) if one.data_ptr() not in given]
        return outputs


class OneDeviceGuard(TorchDispatchMode):
    """Fails on operators that touch a tensor of the host: a graph has no host to copy from."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if _is_beyond_capture(func, args):
            raise RuntimeError(f"{func} cannot be captured")
        outputs = func(*args, **(kwargs or {}))
        if any(isinstance(one, torch.Tensor) and one.device.type == "cpu" for one in tree_leaves((args, outputs))):
            raise RuntimeError(f"{func} touches the host")
        return outputs


def _is_beyond_capture(func: Any, args: tuple[Any, ...]) -> bool:
    name = func.__name__.split(".")[0]
    if name == "repeat_interleave":  # with a number it has the shape that the number says; with a tensor it reads it
        return func.__name__.endswith("Tensor")
    return name in HOST_READS | DATA_DEPENDENT_SHAPES or (name == "index" and _indexes_by_boolean(args[1]))


def _indexes_by_boolean(indices: list[torch.Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _storages_in(values: Any) -> list[torch.UntypedStorage]:
    return [one.untyped_storage() for one in tree_leaves(values) if isinstance(one, torch.Tensor)]
