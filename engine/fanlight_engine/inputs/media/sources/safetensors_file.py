"""Tensors of a safetensors file as TensorData, and files of embeddings; every length is checked before it is believed.

    8 bytes: length of the header, little-endian | header, JSON: name -> dtype, shape, data_offsets | the numbers

Read by hand, because the library hands bfloat16 only to torch, and because a stranger's file must be refused with a
text that helps. Knows no models: what a tensor is for is decided elsewhere. Imports no torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.processing import MediaError
from fanlight_engine.tensor_data import ITEM_BYTES, TensorData

MAX_HEADER_BYTES = 1 << 20
MAX_TENSORS = 1024
MAX_DIMENSIONS = 8

_LENGTH_BYTES = 8
_ALIGNMENT = 8
_METADATA = "__metadata__"
_FIELDS = frozenset(("dtype", "shape", "data_offsets"))
_NAMES = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "U8": "uint8",
}
"""Number types that are read, by their names in files."""
_CODES = {name: code for code, name in _NAMES.items()}
_OTHER_ITEM_BYTES = {"BOOL": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "U32": 4, "F64": 8, "U64": 8}
"""Number types that may lie in a file beside those, and are not read."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One tensor of the header; `begin` and `end` count from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def looks_like_safetensors(beginning: bytes, size: int) -> bool:
    """Whether a file of `size` bytes that begins like this can be one; says nothing about what it holds."""
    header_bytes = int.from_bytes(beginning[:_LENGTH_BYTES], "little")
    return beginning[_LENGTH_BYTES : _LENGTH_BYTES + 1] == b"{" and 2 <= header_bytes <= size - _LENGTH_BYTES


def read_tensor(data: bytes, name: str) -> TensorData:
    """The tensor of this name. Raises MediaError."""
    entries, _, start = _parse(data)
    if name not in entries:
        held = ", ".join(repr(one[:64]) for one in list(entries)[:8]) or "none"
        _refuse(f"the safetensors file holds no tensor {name[:64]!r}; it holds {held}")
    return _tensor(data, entries[name], start)


def read_all(data: bytes) -> tuple[dict[str, TensorData], dict[str, str]]:
    """All tensors by name, and the file's metadata. Raises MediaError."""
    entries, metadata, start = _parse(data)
    return {name: _tensor(data, entry, start) for name, entry in entries.items()}, metadata


def write_embeddings(tensors: Mapping[str, TensorData], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file; equal content gives equal bytes, whatever the order of the mappings."""
    header: dict[str, Any] = {_METADATA: dict(sorted(metadata.items()))} if metadata else {}
    # Wider numbers first, so that each tensor begins at a multiple of its item size.
    ordered = sorted(tensors.items(), key=lambda item: (-ITEM_BYTES[item[1].dtype], item[0]))
    end = 0
    for name, tensor in ordered:
        assert len(tensor.data) == tensor.expected_bytes
        assert name != _METADATA
        begin, end = end, end + len(tensor.data)
        header[name] = {"dtype": _CODES[tensor.dtype], "shape": tensor.shape, "data_offsets": (begin, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return b"".join((len(text).to_bytes(_LENGTH_BYTES, "little"), text, *(tensor.data for _, tensor in ordered)))


def _parse(data: bytes) -> tuple[dict[str, _Entry], dict[str, str], int]:
    """Entries by name, metadata, and where the numbers begin."""
    start, header = _header(data)
    metadata = _metadata(header.pop(_METADATA, {}))
    if len(header) > MAX_TENSORS:
        _refuse(f"the safetensors file holds {len(header)} tensors, {MAX_TENSORS} are allowed; split it")
    entries = {name: _entry(name, described) for name, described in header.items()}
    _check_layout(list(entries.values()), len(data) - start)
    return entries, metadata, start


def _header(data: bytes) -> tuple[int, dict[str, Any]]:
    if len(data) < _LENGTH_BYTES:
        _refuse(f"a safetensors file has a header, this one has {len(data)} bytes in all; write it again")
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if length > MAX_HEADER_BYTES:
        _refuse(f"the safetensors header says it has {length} bytes, {MAX_HEADER_BYTES} are allowed; is it one?")
    if start > len(data):
        _refuse(f"the safetensors header says it has {length} bytes, the file has {len(data)} in all; it was cut short")
    try:
        text = data[_LENGTH_BYTES:start].decode("utf-8")
        header = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        _refuse("the safetensors header is no JSON object; write the file with a safetensors library")
    return start, header


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON objects as dicts; one name said twice could be read as either."""
    names = dict(pairs)
    if len(names) != len(pairs):
        _refuse("the safetensors header names something twice; every tensor needs a name of its own")
    return names


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _metadata(metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        _refuse(f"{_METADATA} of the safetensors header must map text to text")
    return metadata


def _entry(name: str, described: Any) -> _Entry:
    label = f"tensor {name[:64]!r} of the safetensors file"
    if not isinstance(described, dict) or described.keys() != _FIELDS:
        _refuse(f"{label} must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = described["dtype"], described["shape"], described["data_offsets"]
    if not isinstance(dtype, str) or (dtype not in _NAMES and dtype not in _OTHER_ITEM_BYTES):
        _refuse(f"{label} has the unknown dtype {str(dtype)[:32]!r}; known: {', '.join((*_NAMES, *_OTHER_ITEM_BYTES))}")
    if not _are_counts(shape) or len(shape) > MAX_DIMENSIONS:
        _refuse(f"the shape of {label} must be at most {MAX_DIMENSIONS} whole numbers, none below 0")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse(f"data_offsets of {label} must be two whole numbers in ascending order")
    entry = _Entry(name, dtype, tuple(shape), offsets[0], offsets[1])
    item_bytes = ITEM_BYTES[_NAMES[dtype]] if dtype in _NAMES else _OTHER_ITEM_BYTES[dtype]
    if math.prod(entry.shape) * item_bytes != entry.end - entry.begin:
        _refuse(
            f"{label} has dtype {dtype} and shape {list(shape)}, which do not make the "
            f"{entry.end - entry.begin} bytes that data_offsets say"
        )
    return entry


def _are_counts(numbers: Any) -> bool:
    """A list of whole numbers that a file can have; larger ones would make sums and texts of any length."""
    return isinstance(numbers, list) and all(type(number) is int and 0 <= number < 1 << 48 for number in numbers)


def _check_layout(entries: list[_Entry], size: int) -> None:
    """Tensors lie one after the other, without gaps or overlaps, to the last byte: what a file hides nobody checks."""
    end = 0
    for entry in sorted(entries, key=lambda one: (one.begin, one.end)):
        if entry.begin != end:
            what = "overlaps another" if entry.begin < end else "begins after a gap"
            _refuse(f"tensor {entry.name[:64]!r} of the safetensors file {what}; write the file again")
        end = entry.end
    if end != size:
        _refuse(f"the tensors of the safetensors file have {end} bytes, {size} follow its header; write the file again")


def _tensor(data: bytes, entry: _Entry, start: int) -> TensorData:
    if entry.dtype not in _NAMES:
        _refuse(
            f"tensor {entry.name[:64]!r} of the safetensors file has dtype {entry.dtype}; convert it to one of "
            f"{', '.join(_NAMES)}"
        )
    return TensorData(_NAMES[entry.dtype], entry.shape, data[start + entry.begin : start + entry.end])


def _refuse(description: str) -> NoReturn:
    raise MediaError(Reason.TENSOR_INVALID, description)
