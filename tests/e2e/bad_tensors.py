"""Tensors that must be refused: in the message, and in safetensors files that are broken or hide something.

Rows are for a checkpoint that takes patches with a grid, as the embedded model does; `TowerFacts` are its own.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fanlight.v1 import generation_pb2, media_pb2
from fanlight_engine.checkpoints.checkpoint import Checkpoint

INVALID = "TENSOR_INVALID"
MISMATCH = "EMBEDDINGS_MISMATCH"
FLOAT32 = media_pb2.DATA_TYPE_FLOAT32
_GRID = media_pb2.Grid(t=1, h=4, w=6)
_PATCHES = 24


@dataclass(frozen=True, slots=True)
class TowerFacts:
    """What fits the model: numbers of one patch, numbers of one embedding, and its fingerprint."""

    patch_numbers: int
    hidden_size: int
    fingerprint: str

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> TowerFacts:
        """Those of a checkpoint of the Qwen-VL families."""
        vision = checkpoint.config.vision_config
        patch_numbers = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        return cls(patch_numbers, checkpoint.hidden_size, f"sha256:{checkpoint.fingerprint}")


def bad_patches(facts: TowerFacts) -> Iterator[tuple[str, generation_pb2.Part, str]]:
    """What is wrong, a part with patches or tiles, and the reason that it is refused for."""
    fine = np.zeros((_PATCHES, facts.patch_numbers), np.float32)
    short = media_pb2.Tensor(dtype=FLOAT32, shape=fine.shape, data=fine.tobytes()[:-4])
    overflowing = media_pb2.Tensor(dtype=FLOAT32, shape=[0xFFFF_FFFF] * 8, data=bytes(16))
    many = media_pb2.Tensor(dtype=FLOAT32, shape=[1] * 9, data=bytes(4))
    no_rows = media_pb2.Tensor(dtype=FLOAT32, shape=[0, facts.patch_numbers], data=b"")
    scalar = media_pb2.Tensor(dtype=FLOAT32, shape=[], data=bytes(4))
    narrow = np.zeros((_PATCHES, facts.patch_numbers - 1), np.float32)
    huge_grid, odd_grid = media_pb2.Grid(t=1, h=1 << 31, w=1 << 31), media_pb2.Grid(t=1, h=3, w=8)
    two_steps = media_pb2.Grid(t=2, h=4, w=3)
    square_tile = np.zeros((1, 3, 64, 64), np.float32)
    yield "patches with a byte count below their shape's", _patches(short), INVALID
    yield "patches of 8 dimensions of 2^32 - 1", _patches(overflowing), INVALID
    yield "patches of 9 dimensions", _patches(many), "FIELD_INVALID"
    yield "patches without rows", _patches(no_rows), INVALID
    yield "patches without a shape", _patches(scalar), "FIELD_REQUIRED"
    yield "patches with a NaN", _patches(_tensor(_with(fine, np.nan))), INVALID
    yield "patches with an infinity", _patches(_tensor(_with(fine, -np.inf))), INVALID
    yield "patches of the wrong width", _patches(_tensor(narrow)), INVALID
    yield "patches fewer than their grid says", _patches(_tensor(fine[:-1])), INVALID
    yield "patches with a grid of 2^62", _patches(_tensor(fine), huge_grid), INVALID
    yield "patches with a grid that does not merge", _patches(_tensor(fine), odd_grid), INVALID
    yield "patches of an image with two steps in time", _patches(_tensor(fine), two_steps), INVALID
    tiles = media_pb2.Image(tiles=media_pb2.Tiles(pixels=_tensor(square_tile)))
    yield "tiles for a model that takes patches", generation_pb2.Part(image=tiles), INVALID


def bad_embeddings(facts: TowerFacts) -> Iterator[tuple[str, generation_pb2.Part, str]]:
    """What is wrong, a part with embeddings, and the reason that it is refused for."""
    fine = np.zeros((6, facts.hidden_size), np.float32)
    half_infinite = media_pb2.Tensor(
        dtype=media_pb2.DATA_TYPE_FLOAT16, shape=fine.shape, data=_with(fine, np.inf).astype("<f2").tobytes()
    )

    def part(tensor: media_pb2.Tensor, **changes: Any) -> generation_pb2.Part:
        named = changes.pop("name", "embeddings")
        settings = {"grid": _GRID, "model_fingerprint": facts.fingerprint, **changes}
        embeddings = media_pb2.Embeddings(tensors=[media_pb2.NamedTensor(name=named, tensor=tensor)], **settings)
        return generation_pb2.Part(image=media_pb2.Image(embeddings=embeddings))

    yield "embeddings with a NaN", part(_tensor(_with(fine, np.nan))), INVALID
    yield "embeddings with an infinity in 16 bits", part(half_infinite), INVALID
    yield "embeddings of another hidden size", part(_tensor(fine[:, :-1])), MISMATCH
    yield "embeddings of another model", part(_tensor(fine), model_fingerprint="sha256:" + "0" * 64), MISMATCH
    yield "embeddings under another name", part(_tensor(fine), name="pixel_values"), INVALID
    yield "embeddings without a grid", part(_tensor(fine), grid=None), MISMATCH
    yield "embeddings with more rows than their grid says", part(_tensor(np.repeat(fine, 2, 0))), MISMATCH
    yield "embeddings with a grid of zeros", part(_tensor(fine), grid=media_pb2.Grid()), "FIELD_REQUIRED"


def bad_safetensors() -> dict[str, bytes]:
    """Files to upload, of which no tensor named "pixels" can be read."""
    fine: dict[str, Any] = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    other = {"dtype": "F32", "shape": [1], "data_offsets": [16, 20]}
    numbers = bytes(16)
    return {
        "a header longer than its file": struct.pack("<Q", 1 << 16) + b"{}",
        "a header of 2^64 - 1 bytes": struct.pack("<Q", (1 << 64) - 1) + b"{}",
        "a header of 2 MiB": _file(b"{" + b" " * (2 << 20) + b"}", b""),
        "a header that is no JSON": _file(b"{pixels}", numbers),
        "a header of nested lists": _file(b'{"pixels":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b""),
        "a header with a number of 100,000 digits": _file(b'{"pixels":' + b"9" * 100_000 + b"}", b""),
        "a header that names a tensor twice": _file(
            b'{"pixels":' + json.dumps(fine).encode() + b',"pixels":' + json.dumps(fine).encode() + b"}", numbers
        ),
        "a header of 5,000 tensors": _described({f"t{number}": fine for number in range(5000)}, numbers),
        "a file without the tensor": _described({"other": fine}, numbers),
        "a file cut short": _described({"pixels": fine}, numbers[:-1]),
        "a tail that no tensor names": _described({"pixels": fine}, numbers + b"hidden"),
        "tensors that overlap": _described({"pixels": fine, "other": {**fine, "data_offsets": [8, 24]}}, bytes(24)),
        "a gap between tensors": _described({"pixels": fine, "other": {**other, "data_offsets": [20, 24]}}, bytes(24)),
        "a shape that overflows": _described({"pixels": {**fine, "shape": [1 << 40, 1 << 40]}}, numbers),
        "a shape below zero": _described({"pixels": {**fine, "shape": [-2, -2]}}, numbers),
        "a type that nobody knows": _described({"pixels": {**fine, "dtype": "F31"}}, numbers),
        "a type that no tower takes": _described(
            {"pixels": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}}, numbers
        ),
        "offsets that end before they begin": _described({"pixels": {**fine, "data_offsets": [16, 0]}}, numbers),
    }


def _patches(tensor: media_pb2.Tensor, grid: media_pb2.Grid = _GRID) -> generation_pb2.Part:
    return generation_pb2.Part(image=media_pb2.Image(patches=media_pb2.Patches(pixels=tensor, grid=grid)))


def _tensor(array: np.ndarray) -> media_pb2.Tensor:
    return media_pb2.Tensor(dtype=FLOAT32, shape=array.shape, data=array.astype("<f4").tobytes())


def _with(array: np.ndarray, number: float) -> np.ndarray:
    """The same with one other number, in the middle."""
    changed = array.copy()
    changed[len(changed) // 2, array.shape[1] // 2] = number
    return changed


def _described(header: dict[str, Any], numbers: bytes) -> bytes:
    return _file(json.dumps(header).encode(), numbers)


def _file(header: bytes, numbers: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + numbers
