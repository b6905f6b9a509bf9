"""TensorData: a tensor as plain bytes, which crosses the wire, the seam to the core, and caches alike.

numpy knows all of its number types but bfloat16, which only torch reads (model/adapter.py). Imports no torch.
"""

from __future__ import annotations

import math
from typing import cast

import msgspec
import numpy as np

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "uint8": 1}
"""Number types by name, and bytes of one number."""


class TensorData(msgspec.Struct, frozen=True):
    """A C-contiguous little-endian tensor: `dtype` (a key of ITEM_BYTES), `shape`, and the bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def expected_bytes(self) -> int:
        """Length that `data` must have; shape and dtype can come from a stranger, and so can their product."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def tensor_data_of(array: np.ndarray) -> TensorData:
    """The array as plain bytes: a view of its memory where that lies in order, so it must not be changed afterwards.

    A picture's pixels are tens of megabytes, and copying them is a tenth of preparing a small one.
    """
    contiguous = np.ascontiguousarray(array)
    little = contiguous.astype(contiguous.dtype.newbyteorder("<"), copy=False)
    view = little.reshape(-1).view(np.uint8).data.toreadonly()
    # A read-only view of bytes does all that bytes do here: it is compared, hashed, measured, joined and encoded alike.
    return TensorData(little.dtype.name, tuple(array.shape), cast(bytes, view))


def array_of(tensor: TensorData) -> np.ndarray:
    """A read-only view of the tensor's bytes. bfloat16 comes out as float32, exactly."""
    if tensor.dtype == "bfloat16":
        halves = np.frombuffer(tensor.data, dtype="<u2").astype(np.uint32)
        return (halves << 16).view(np.float32).reshape(tensor.shape)
    return np.frombuffer(tensor.data, dtype=np.dtype(tensor.dtype).newbyteorder("<")).reshape(tensor.shape)
