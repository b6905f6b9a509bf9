"""Tensors that a caller sends instead of a picture: checked before anything is computed from them.

Knows types, shapes and numbers; which shape a tower wants is the processor's business. Every refusal is a MediaError.
"""

from __future__ import annotations

import numpy as np

from fanlight_engine.core.messages import EMBEDDINGS
from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.processing import MediaError
from fanlight_engine.model.checkpoint import Checkpoint
from fanlight_engine.model.families import Positions
from fanlight_engine.request import Embeddings, Tensor
from fanlight_engine.tensor_data import TensorData, array_of, tensor_data_of

FLOAT_TYPES = ("float32", "float16", "bfloat16")
_MOST_DIMENSIONS = 8


def checked_floats(tensor: Tensor, name: str) -> np.ndarray:
    """The tensor as float32, all of it finite. `name` is what messages call it."""
    assert isinstance(tensor, TensorData), "tensors of uploaded files are resolved before"
    if tensor.dtype not in FLOAT_TYPES:
        raise _invalid(f"{name} has numbers of type {tensor.dtype}, one of {', '.join(FLOAT_TYPES)} is needed")
    if not 1 <= len(tensor.shape) <= _MOST_DIMENSIONS or min(tensor.shape) < 1:
        raise _invalid(
            f"{name} has shape {list(tensor.shape)}, 1 to {_MOST_DIMENSIONS} dimensions of at least 1 are needed"
        )
    if tensor.expected_bytes != len(tensor.data):
        raise _invalid(
            f"{name} has {len(tensor.data)} bytes, shape {list(tensor.shape)} of {tensor.dtype} needs "
            f"{tensor.expected_bytes}; send all numbers, C-contiguous and little-endian"
        )
    array = array_of(tensor).astype(np.float32, copy=False)
    if not np.isfinite(array).all():
        raise _invalid(f"{name} holds a number that is not finite (NaN or infinite); all must be finite")
    return array


def refuse_shape(array: np.ndarray, wanted: tuple[int, ...], name: str, why: str) -> None:
    """Raise MediaError unless the array has this very shape; `why` says where the wanted one comes from."""
    if array.shape != wanted:
        raise _invalid(f"{name} has shape {list(array.shape)}, {list(wanted)} is needed: {why}")


def embeddings_tensor(embeddings: Embeddings, checkpoint: Checkpoint) -> TensorData:
    """The one tensor [rows, hidden] float32 of embeddings that fit the checkpoint."""
    fingerprint = f"sha256:{checkpoint.fingerprint}"
    if embeddings.model_fingerprint != fingerprint:
        raise MediaError(
            Reason.EMBEDDINGS_MISMATCH,
            f"its model_fingerprint is {embeddings.model_fingerprint[:80]!r}, model {checkpoint.name!r} has "
            f"{fingerprint!r}; encode the image with this model",
        )
    if set(embeddings.tensors) != {EMBEDDINGS}:
        names = ", ".join(sorted(embeddings.tensors))[:200] or "none"
        raise _invalid(f"its tensors are named {names}, exactly one named {EMBEDDINGS!r} is needed")
    array = checked_floats(embeddings.tensors[EMBEDDINGS], EMBEDDINGS)
    hidden = checkpoint.hidden_size
    if array.ndim != 2 or array.shape[1] != hidden:
        raise MediaError(
            Reason.EMBEDDINGS_MISMATCH,
            f"{EMBEDDINGS} has shape {list(array.shape)}, [rows, {hidden}] is needed, as the model's hidden "
            f"size is {hidden}",
        )
    _check_grid(embeddings, array.shape[0], checkpoint)
    return tensor_data_of(array)


def _check_grid(embeddings: Embeddings, rows: int, checkpoint: Checkpoint) -> None:
    """Families whose positions come from the grid need one that fits; others ignore what is sent."""
    if checkpoint.family.positions is not Positions.MROPE:
        return
    merge = int(checkpoint.config.vision_config.spatial_merge_size)
    if embeddings.grid is None:
        raise MediaError(
            Reason.EMBEDDINGS_MISMATCH,
            "it has no grid, which this model's positions are made from; set embeddings.grid to (t, h, w), or the "
            "file's metadata grid to 't,h,w'",
        )
    t, h, w = embeddings.grid
    if min(t, h, w) < 1 or h % merge or w % merge or t * (h // merge) * (w // merge) != rows:
        raise MediaError(
            Reason.EMBEDDINGS_MISMATCH,
            f"its grid is {t} x {h} x {w} patches for {rows} embeddings; t x (h / {merge}) x (w / {merge}) must be "
            "equal to them",
        )


def _invalid(description: str) -> MediaError:
    return MediaError(Reason.TENSOR_INVALID, description)
