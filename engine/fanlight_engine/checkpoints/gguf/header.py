"""The header of a GGUF file: what it says of its model, and which tensors it holds. Reads no weights.

Only what is asked before weights are read; transformers reads the file itself when it is converted. Arrays are left as
their lengths: vocabularies are long, and nobody here needs them.
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fanlight_engine.errors import CheckpointError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_ENTRIES = 1 << 24
_MOST_TEXT_BYTES = 1 << 26
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT = 8
_ARRAY = 9
FLOAT_TYPES = {0: "float32", 1: "float16", 30: "bfloat16"}
"""Tensor types that hold plain numbers; every other holds quantised blocks."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor: its shape in torch's order, its type as GGUF numbers them, and where in the file it begins."""

    shape: tuple[int, ...]
    type_number: int
    offset: int

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """`values` are the file's key-value pairs (of an array its length); `tensors` are by their names in the file."""

    file: Path
    values: dict[str, Any]
    tensors: dict[str, StoredTensor]

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture."""
        return str(self.values["general.architecture"])

    @property
    def elements(self) -> int:
        """How many weights the model has."""
        return sum(tensor.elements for tensor in self.tensors.values())

    @property
    def plain_type(self) -> str | None:
        """The number type that the file was written in; None where it holds quantised weights."""
        types = {FLOAT_TYPES.get(tensor.type_number) for tensor in self.tensors.values()}
        if None in types:
            return None
        halves = types - {"float32"}  # norms are float32 beside weights of a half type
        return "bfloat16" if "bfloat16" in halves else "float16" if halves else "float32"

    def of_model(self, key: str) -> Any:
        """The value of `key` below the architecture's name; None where the file does not say."""
        return self.values.get(f"{self.architecture}.{key}")


def read_header(file: Path) -> GgufHeader:
    """Raises CheckpointError saying what of the file is no GGUF."""
    try:
        with file.open("rb") as stream:
            return _read(file, stream)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    except (struct.error, UnicodeDecodeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{file} is no complete GGUF file ({error}); fetch or convert it again") from error


def _read(file: Path, stream: BinaryIO) -> GgufHeader:
    if stream.read(4) != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    (version,) = _numbers(stream, "I")
    if version not in _VERSIONS:
        raise ValueError(f"its version is {version}, {' and '.join(map(str, _VERSIONS))} are read")
    tensor_count, value_count = _numbers(stream, "QQ")
    _check_count(tensor_count, _MOST_ENTRIES)
    _check_count(value_count, _MOST_ENTRIES)
    values: dict[str, Any] = {}
    for _ in range(value_count):
        key = _text(stream)
        values[key] = _value(stream, _numbers(stream, "I")[0])
    if "general.architecture" not in values:
        raise ValueError("it names no general.architecture")
    tensors = dict(_tensor(stream) for _ in range(tensor_count))
    return GgufHeader(file, values, _from_start(tensors, stream.tell(), int(values.get("general.alignment", 32))))


def _from_start(tensors: dict[str, StoredTensor], header_end: int, alignment: int) -> dict[str, StoredTensor]:
    """The tensors with offsets from the file's beginning instead of from where the data begins."""
    if alignment < 1:
        raise ValueError(f"its alignment is {alignment}")
    data_start = -(-header_end // alignment) * alignment
    return {
        name: StoredTensor(tensor.shape, tensor.type_number, data_start + tensor.offset)
        for name, tensor in tensors.items()
    }


def _tensor(stream: BinaryIO) -> tuple[str, StoredTensor]:
    name = _text(stream)
    (dimensions,) = _numbers(stream, "I")
    _check_count(dimensions, 8)
    shape = _numbers(stream, f"{dimensions}Q")
    type_number, offset = _numbers(stream, "IQ")
    return name, StoredTensor(tuple(reversed(shape)), type_number, offset)


def _value(stream: BinaryIO, kind: int) -> Any:
    if kind in _FORMATS:
        return _numbers(stream, _FORMATS[kind])[0]
    if kind == _TEXT:
        return _text(stream)
    if kind == _ARRAY:
        return _skip_array(stream)
    raise ValueError(f"a value has type {kind}")


def _skip_array(stream: BinaryIO) -> int:
    """The array's length."""
    kind, count = _numbers(stream, "IQ")
    _check_count(count, _MOST_ENTRIES)
    if kind in _FORMATS:
        stream.seek(count * struct.calcsize(_FORMATS[kind]), os.SEEK_CUR)
    elif kind == _TEXT:
        for _ in range(count):
            stream.seek(_numbers(stream, "Q")[0], os.SEEK_CUR)
    else:
        raise ValueError(f"an array has elements of type {kind}")
    return count


def _text(stream: BinaryIO) -> str:
    (length,) = _numbers(stream, "Q")
    _check_count(length, _MOST_TEXT_BYTES)
    content = stream.read(length)
    if len(content) != length:
        raise ValueError("it ends inside its header")
    return content.decode("utf-8")


def _numbers(stream: BinaryIO, kinds: str) -> tuple[Any, ...]:
    layout = struct.Struct(f"<{kinds}")
    content = stream.read(layout.size)
    if len(content) != layout.size:
        raise ValueError("it ends inside its header")
    return layout.unpack(content)


def _check_count(count: int, most: int) -> None:
    """Before anything of that size is read: a damaged file may say anything."""
    if count > most:
        raise ValueError(f"it announces {count} entries or bytes where at most {most} are read")
