"""The safetensors files of a checkpoint, judged by their headers: all there, whole, and how large. Reads no weights.

What is broken is told here, by the name of the file; a loader would tell it late, or in the words of a library.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanlight_engine.checkpoints.json_files import JsonFileError, read_json_object
from fanlight_engine.errors import CheckpointError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_MOST_HEADER_BYTES = 100_000_000
"""As in the safetensors library."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """One tensor as it lies in a file, and what it is called there."""

    name: str
    file: Path
    shape: tuple[int, ...]
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """`files` in the order of the index; `weights` by the names that they have in the files."""

    files: tuple[Path, ...]
    weights: dict[str, StoredWeight]

    @property
    def stored_bytes(self) -> int:
        """Bytes of all weights as they are stored."""
        return sum(weight.stored_bytes for weight in self.weights.values())

    def of_parameter(self, name: str) -> StoredWeight | None:
        """The weight that became a model's parameter; a checkpoint's own name may have another beginning."""
        if name in self.weights:
            return self.weights[name]
        parts = name.split(".")
        for length in range(len(parts) - 1, 1, -1):
            ending = "." + ".".join(parts[-length:])
            for stored, weight in self.weights.items():
                if stored.endswith(ending):
                    return weight
        return None


def find_weight_files(directory: Path) -> WeightFiles:
    """Raises CheckpointError naming the file that is missing or broken, and the fix."""
    single, index = directory / _SINGLE, directory / _INDEX
    if single.is_file():
        files = (single,)
    elif index.is_file():
        files = _shards(directory, index)
    else:
        raise CheckpointError(_none_found(directory))
    weights: dict[str, StoredWeight] = {}
    for file in files:
        weights.update(_weights_in(file))
    return WeightFiles(files, weights)


def _none_found(directory: Path) -> str:
    pickles = sorted(file.name for pattern in _PICKLES for file in directory.glob(pattern))
    if pickles:
        return (
            f"{directory.name} has only pickled weights ({pickles[0]}), which may run code when they are read and "
            "never are: save the checkpoint as safetensors (save_pretrained of transformers does), or fetch it so"
        )
    return f"{directory.name} has neither {_SINGLE} nor {_INDEX}: fetch the checkpoint's weights"


def _shards(directory: Path, index: Path) -> tuple[Path, ...]:
    try:
        weight_map = read_json_object(index)["weight_map"]
        names = list(dict.fromkeys(weight_map.values()))
    except (JsonFileError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{directory.name}/{_INDEX} is no index of weights (an object with a weight_map): {error}; fetch it again"
        ) from error
    for name in names:
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise CheckpointError(
                f"{directory.name}/{_INDEX} names {name!r}, which is no file beside it; fetch it again"
            )
        if not (directory / name).is_file():
            raise CheckpointError(
                f"{directory.name}/{_INDEX} names {name}, which is not there: fetch that file, {len(names)} belong "
                "together"
            )
    if not names:
        raise CheckpointError(f"{directory.name}/{_INDEX} names no file; fetch it again")
    return tuple(directory / name for name in names)


def _weights_in(file: Path) -> dict[str, StoredWeight]:
    """From the header: eight bytes of length, then JSON, then the numbers that it places."""
    shown = f"{file.parent.name}/{file.name}"
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(_MOST_HEADER_BYTES, size - 8):
                raise ValueError(f"its header would have {length} bytes")
            header: dict[str, Any] = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        weights = {name: _stored_weight(name, file, entry) for name, entry in header.items()}
        end = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except OSError as error:
        raise CheckpointError(f"{shown} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, struct.error, RecursionError) as error:
        raise CheckpointError(f"{shown} is no safetensors file: {error}; fetch it again") from error
    if end != size:
        what = "is cut off" if size < end else "has bytes behind its end"
        raise CheckpointError(f"{shown} {what}: it has {size} bytes, by its header {end}; fetch it again")
    return weights


def _stored_weight(name: str, file: Path, entry: dict[str, Any]) -> StoredWeight:
    shape = tuple(int(one) for one in entry["shape"])
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end or math.prod(shape) < 0:
        raise ValueError(f"a weight lies from {begin} to {end}")
    return StoredWeight(name, file, shape, end - begin)
