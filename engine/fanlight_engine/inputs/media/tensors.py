"""Tensors that a caller sends instead of a picture: checked before anything is computed from them.

Knows types, shapes and numbers; which shape a tower wants is the processor's business. Every refusal is a MediaError.
"""

from __future__ import annotations

import numpy as np

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.checkpoints.families import Positions
from fanlight_engine.core.messages import EMBEDDINGS
from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.processing import MediaError
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


def embedding_names(checkpoint: Checkpoint) -> tuple[str, ...]:
    """What the tensors [rows, hidden] of embeddings are called.

    One, "embeddings", and where media add features to the first decoder layers one more for each: "layer_0", ...
    """
    layers = checkpoint.embedding_width // checkpoint.hidden_size - 1
    return (EMBEDDINGS, *(f"layer_{layer}" for layer in range(layers)))


def embeddings_by_name(wide: TensorData, checkpoint: Checkpoint) -> dict[str, TensorData]:
    """What the core gives, [rows, embedding width], as the named tensors that callers keep and send back."""
    names = embedding_names(checkpoint)
    rows = wide.shape[0]
    parts = np.frombuffer(wide.data, np.uint8).reshape(rows, len(names), -1)
    shape = (rows, checkpoint.hidden_size)
    return {name: TensorData(wide.dtype, shape, parts[:, number].tobytes()) for number, name in enumerate(names)}


def embeddings_tensor(embeddings: Embeddings, checkpoint: Checkpoint) -> TensorData:
    """The one tensor [rows, embedding width] float32 of embeddings that fit the checkpoint."""
    fingerprint = f"sha256:{checkpoint.fingerprint}"
    if embeddings.model_fingerprint != fingerprint:
        raise MediaError(
            Reason.EMBEDDINGS_MISMATCH,
            f"its model_fingerprint is {embeddings.model_fingerprint[:80]!r}, model {checkpoint.name!r} has "
            f"{fingerprint!r}; encode the image with this model",
        )
    names = embedding_names(checkpoint)
    if embeddings.tensors.keys() != set(names):
        brought = ", ".join(sorted(embeddings.tensors))[:200] or "none"
        needed = f"one named {EMBEDDINGS!r} is" if len(names) == 1 else f"{', '.join(map(repr, names))} are"
        raise _invalid(f"its tensors are named {brought}, exactly {needed} needed")
    parts = [checked_floats(embeddings.tensors[name], name) for name in names]
    for name, part in zip(names, parts, strict=True):
        _refuse_other_rows(name, part, parts[0].shape[0], checkpoint.hidden_size)
    _check_grid(embeddings, parts[0].shape[0], checkpoint)
    return tensor_data_of(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1))


def _refuse_other_rows(name: str, array: np.ndarray, rows: int, hidden: int) -> None:
    if array.ndim != 2 or array.shape[1] != hidden:
        raise MediaError(
            Reason.EMBEDDINGS_MISMATCH,
            f"{name} has shape {list(array.shape)}, [rows, {hidden}] is needed, as the model's hidden size is {hidden}",
        )
    if array.shape[0] != rows:
        raise _invalid(f"{name} has {array.shape[0]} rows where {EMBEDDINGS} has {rows}; send as many of each")


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
