"""Pixels and embeddings that the caller computed, as messages. Imports no array library.

An array is anything with the buffer protocol (numpy's arrays, memoryview) or with `__array_interface__` or `__array__`,
or a torch tensor on any device. Numbers are float32, float16 or bfloat16 and are sent as they are. numpy is imported
only for arrays that cannot be read without it.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from fanlight.errors import invalid_field
from fanlight.v1 import media_pb2
from fanlight.v1.media_pb2 import Embeddings, Patches, Tensor, Tiles

Array: TypeAlias = Any
"""An array of any library; see the module's docstring."""
GridSource: TypeAlias = Sequence[int] | media_pb2.Grid

FLOAT32 = media_pb2.DATA_TYPE_FLOAT32
FLOAT16 = media_pb2.DATA_TYPE_FLOAT16
BFLOAT16 = media_pb2.DATA_TYPE_BFLOAT16
DTYPE_OF_FORMAT = {"f": FLOAT32, "e": FLOAT16}
SAFETENSORS_DTYPE: dict[int, str] = {FLOAT32: "F32", FLOAT16: "F16", BFLOAT16: "BF16"}
SAFETENSORS_ALIGNMENT = 8
LAYOUTS = {"tower": media_pb2.PATCH_LAYOUT_TOWER, "row_major": media_pb2.PATCH_LAYOUT_ROW_MAJOR}
EMBEDDINGS_NAME = "embeddings"


def patches(pixels: Array, grid: GridSource, layout: str = "tower", seconds_per_step: float | None = None) -> Patches:
    """Pixels of an image or a clip that were resized, normalised and cut into patches.

    pixels            [t * h * w, numbers of a patch]
    grid              (t, h, w) or (h, w): how many patches there are in each direction
    layout            order of the rows. "tower": as the model's vision tower takes them, the pixel_values of the
                      checkpoint's own processor; "row_major": from the top left, frame after frame, each patch
                      flattened as (channel, y, x)
    seconds_per_step  of a clip, the time between two steps of t; for models that read times
    """
    if layout not in LAYOUTS:
        raise invalid_field("patches.layout", f"got {layout!r}; one of {', '.join(LAYOUTS)}")
    return Patches(
        pixels=build_tensor(pixels), grid=build_grid(grid), layout=LAYOUTS[layout], seconds_per_step=seconds_per_step
    )


def tiles(pixels: Array, original_size: tuple[int, int] | None = None) -> Tiles:
    """Pixels of an image that were resized, normalised and cut into square tiles.

    pixels         [tiles, 3, side, side]
    original_size  (width, height) before that, in pixels; required by models that cut padding off (LLaVA-NeXT)
    """
    if original_size is None:
        return Tiles(pixels=build_tensor(pixels))
    width, height = original_size
    return Tiles(pixels=build_tensor(pixels), original_size=media_pb2.Size(width=width, height=height))


def embeddings(
    tensors: Array | Mapping[str, Array],
    model_fingerprint: str,
    grid: GridSource | None = None,
    seconds_per_step: float | None = None,
) -> Embeddings:
    """What the model's vision tower would give for an image or a clip.

    tensors            [rows, hidden size]; for models with features of several layers (Qwen3-VL), a mapping of names to
                       such: "embeddings", "layer_0", "layer_1", ...
    model_fingerprint  fingerprint of the model that they belong to, from `Client.model()`
    grid               (t, h, w) or (h, w): patches before merging; required by models that make positions from it
    seconds_per_step   of a clip, the time between two steps of t; for models that read times
    """
    named: Mapping[str, Array] = tensors if isinstance(tensors, Mapping) else {EMBEDDINGS_NAME: tensors}
    return Embeddings(
        tensors=[media_pb2.NamedTensor(name=name, tensor=build_tensor(each)) for name, each in named.items()],
        grid=None if grid is None else build_grid(grid),
        model_fingerprint=model_fingerprint,
        seconds_per_step=seconds_per_step,
    )


def build_grid(grid: GridSource) -> media_pb2.Grid:
    """The message for (t, h, w), or for (h, w) with one step in time."""
    if isinstance(grid, media_pb2.Grid):
        return grid
    counts = [int(count) for count in grid]
    if len(counts) not in (2, 3) or min(counts) < 1:
        raise invalid_field("grid", f"got {tuple(counts)}; it is (t, h, w) or (h, w), each 1 or more")
    t, h, w = counts if len(counts) == 3 else (1, *counts)
    return media_pb2.Grid(t=t, h=h, w=w)


def build_tensor(numbers: Array) -> Tensor:
    """The message for an array; a Tensor stays as it is, for one that names an uploaded file.

    Raises InvalidRequest for numbers of another type and TypeError for what is no array.
    """
    if isinstance(numbers, Tensor):
        return numbers
    dtype, view = view_numbers(numbers)
    return Tensor(dtype=dtype, shape=view.shape, data=little_endian(view.tobytes(), view.itemsize))


def view_numbers(numbers: Array) -> tuple[media_pb2.DataType, memoryview]:
    """The type of an array's numbers, and the numbers. bfloat16, which Python has no name for, is viewed as int16."""
    kind = str(getattr(numbers, "dtype", "")).rpartition(".")[2]
    if hasattr(numbers, "detach"):  # a torch tensor: wherever it is, its numbers must come to where Python is
        numbers = numbers.detach().cpu()
        numbers = (numbers.view(sys.modules["torch"].int16) if kind == "bfloat16" else numbers).numpy()
    elif kind == "bfloat16":
        numbers = as_numpy(numbers).view("int16")
    try:
        view = memoryview(numbers)
    except (TypeError, ValueError, BufferError):
        view = memoryview(as_numpy(numbers))
    if kind == "bfloat16":
        return BFLOAT16, view
    if view.format not in DTYPE_OF_FORMAT:
        got = kind or repr(view.format)
        raise invalid_field("tensor.dtype", f"got {got}; float32, float16 and bfloat16 are taken{picture_hint(view)}")
    return DTYPE_OF_FORMAT[view.format], view


def picture_hint(numbers: memoryview) -> str:
    """What to do with numbers that look like a picture which nobody has preprocessed: bytes."""
    return "; for an ordinary picture: PIL.Image.fromarray(array)" if numbers.format == "B" else ""


def as_numpy(numbers: Array) -> Any:
    """The array as one of numpy's. Raises TypeError for what is no array."""
    if not hasattr(numbers, "__array_interface__") and not hasattr(numbers, "__array__"):
        raise TypeError(f"pixels and embeddings are arrays or torch tensors, not a {type(numbers).__name__}")
    import numpy  # only here: the client does not depend on it, and whoever has such an array has it

    return numpy.asarray(numbers)


def little_endian(numbers: bytes, width: int, byteorder: str = sys.byteorder) -> bytes:
    """Numbers of `width` bytes each, in the byte order of the contract."""
    if byteorder == "little":
        return numbers
    swapped = array("I" if width == 4 else "H", numbers)
    swapped.byteswap()
    return swapped.tobytes()


def safetensors_file(tensor: Tensor, name: str) -> bytes:
    """A safetensors file that holds one tensor: length of the header, header, numbers."""
    entry = {
        "dtype": SAFETENSORS_DTYPE[tensor.dtype],
        "shape": list(tensor.shape),
        "data_offsets": [0, len(tensor.data)],
    }
    header = json.dumps({name: entry}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % SAFETENSORS_ALIGNMENT)
    return struct.pack("<Q", len(header)) + header + tensor.data
