"""Tensors of uploaded safetensors files: real ones are read exactly, made-up ones are refused in a sentence."""

from __future__ import annotations

import json
import struct
import tracemalloc
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.processing import MediaError
from fanlight_engine.inputs.media.sources.safetensors_file import (
    MAX_TENSORS,
    looks_like_safetensors,
    read_all,
    read_tensor,
    write_embeddings,
)
from fanlight_engine.tensor_data import TensorData, array_of, tensor_data_of


def file_of(header: Any, numbers: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + numbers


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def refusal(data: bytes) -> str:
    with pytest.raises(MediaError) as caught:
        read_all(data)
    assert caught.value.reason is Reason.TENSOR_INVALID
    return caught.value.description


# Real files


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8])
def test_every_number_type_of_a_library_s_file_is_read_exactly(dtype: torch.dtype) -> None:
    tensor = torch.arange(24).reshape(2, 3, 4).to(dtype)
    data = safetensors.torch.save({"a": tensor, "b": torch.ones(3)}, {"made by": "a test"})
    read = read_tensor(data, "a")
    assert (read.dtype, read.shape) == (str(dtype).removeprefix("torch."), (2, 3, 4))
    assert np.array_equal(array_of(read), tensor.float().numpy())
    tensors, metadata = read_all(data)
    assert tensors.keys() == {"a", "b"}
    assert tensors["a"] == read
    assert metadata == {"made by": "a test"}


def test_empty_and_scalar_tensors_are_read() -> None:
    data = safetensors.numpy.save({"none": np.zeros((0, 3), np.float32), "one": np.array(5, np.int64)})
    tensors, _ = read_all(data)
    assert tensors == {"none": TensorData("float32", (0, 3), b""), "one": TensorData("int64", (), struct.pack("<q", 5))}


def test_what_is_written_is_read_by_the_library() -> None:
    half = TensorData(
        "bfloat16", (2, 2), torch.tensor([[1.0, -2.0], [0.5, 3.0]]).bfloat16().view(torch.uint8).numpy().tobytes()
    )
    tensors = {
        "odd": tensor_data_of(np.arange(3, dtype=np.uint8)),
        "half": half,
        "full": tensor_data_of(np.ones((1, 5)).astype("f4")),
    }
    data = write_embeddings(tensors, {"grid": "1,2,3"})
    by_library = safetensors.torch.load(data)
    assert by_library["half"].tolist() == [[1.0, -2.0], [0.5, 3.0]]
    assert by_library["odd"].tolist() == [0, 1, 2]
    assert by_library["full"].tolist() == [[1.0] * 5]
    assert read_all(data) == (tensors, {"grid": "1,2,3"})
    assert looks_like_safetensors(data[:64], len(data))


def test_equal_embeddings_make_equal_files_in_whatever_order_they_come() -> None:
    one, two = (tensor_data_of(np.full((2, 2), value, np.float32)) for value in (1, 2))
    first = write_embeddings({"a": one, "b": two}, {"x": "1", "y": "2"})
    assert write_embeddings({"b": two, "a": one}, {"y": "2", "x": "1"}) == first
    assert write_embeddings({"a": two, "b": one}, {"x": "1", "y": "2"}) != first


def test_a_file_without_metadata_is_written_without() -> None:
    assert read_all(write_embeddings({"a": tensor_data_of(np.ones(2, np.float32))}, {}))[1] == {}


def test_a_name_that_is_not_there_is_answered_with_those_that_are() -> None:
    data = write_embeddings({"embeddings": tensor_data_of(np.ones(2, np.float32))}, {})
    with pytest.raises(MediaError, match=r"no tensor 'other'; it holds 'embeddings'"):
        read_tensor(data, "other")


def test_other_number_types_may_lie_beside_and_are_refused_when_named() -> None:
    data = safetensors.numpy.save({"wide": np.zeros(2), "single": np.ones(2, np.float32)})
    assert read_tensor(data, "single").shape == (2,)
    with pytest.raises(MediaError, match="dtype F64; convert it"):
        read_tensor(data, "wide")


# Made-up files

NUMBERS = b"\0" * 8

HOSTILE = {
    "nothing": b"",
    "half a length": b"\0\0\0",
    "no header": struct.pack("<Q", 0),
    "a header longer than the file": file_of({"a": entry()}, NUMBERS, length=10_000),
    "a header longer than memory": file_of({"a": entry()}, NUMBERS, length=(1 << 64) - 1),
    "a header of 2 MiB": file_of(b" " * (2 << 20), NUMBERS),
    "no JSON": file_of(b"{]", NUMBERS),
    "no UTF-8": file_of(b'{"\xff": 1}', NUMBERS),
    "deep JSON": file_of(b"[" * 500_000, NUMBERS),
    "a number of 100,000 digits": file_of(b'{"a": ' + b"9" * 100_000 + b"}", NUMBERS),
    "NaN": file_of(b'{"a": NaN}', NUMBERS),
    "a list": file_of([], NUMBERS),
    "a number": file_of(1, NUMBERS),
    "null": file_of(b"null", NUMBERS),
    "a name twice": file_of(b'{"a": %b, "a": %b}' % ((json.dumps(entry()).encode(),) * 2), NUMBERS),
    "a field twice": file_of(b'{"a": {"dtype": "F32", "dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}', NUMBERS),
    "too many tensors": file_of({str(n): entry("U8", [1], [n, n + 1]) for n in range(10_000)}, b"\0" * 10_000),
    "one tensor too many": file_of({str(n): entry("U8", [0], [0, 0]) for n in range(MAX_TENSORS + 1)}),
    "metadata of numbers": file_of({"__metadata__": {"a": 1}, "a": entry()}, NUMBERS),
    "metadata that is a list": file_of({"__metadata__": [], "a": entry()}, NUMBERS),
    "an entry that is a text": file_of({"a": "F32"}, NUMBERS),
    "an entry without dtype": file_of({"a": {"shape": [2], "data_offsets": [0, 8]}}, NUMBERS),
    "an entry with more": file_of({"a": entry(more=1)}, NUMBERS),
    "an unknown dtype": file_of({"a": entry("F13")}, NUMBERS),
    "a dtype of another kind": file_of({"a": entry(["F32"])}, NUMBERS),
    "a dtype in lower case": file_of({"a": entry("f32")}, NUMBERS),
    "a negative side": file_of({"a": entry(shape=[-2])}, NUMBERS),
    "two negative sides": file_of({"a": entry(shape=[-1, -2])}, NUMBERS),
    "a broken side": file_of({"a": entry(shape=[2.0])}, NUMBERS),
    "a side that is true": file_of({"a": entry(shape=[True, 2])}, NUMBERS),
    "a shape that is a number": file_of({"a": entry(shape=2)}, NUMBERS),
    "nine sides": file_of({"a": entry(shape=[1] * 8 + [2])}, NUMBERS),
    "sides whose product wraps to 2": file_of({"a": entry(shape=[1 << 32, 1 << 32, 2])}, NUMBERS),
    "a side beyond 64 bits": file_of({"a": entry(shape=[(1 << 64) + 2])}, NUMBERS),
    "a shape smaller than its bytes": file_of({"a": entry(shape=[1])}, NUMBERS),
    "a shape larger than its bytes": file_of({"a": entry(shape=[3])}, NUMBERS),
    "offsets beyond the file": file_of({"a": entry(shape=[4], offsets=[0, 16])}, NUMBERS),
    "offsets far beyond": file_of({"a": entry("U8", [1 << 40], [0, 1 << 40])}, NUMBERS),
    "negative offsets": file_of({"a": entry(offsets=[-8, 0])}, NUMBERS),
    "offsets in descending order": file_of({"a": entry(offsets=[8, 0])}, NUMBERS),
    "one offset": file_of({"a": entry(offsets=[8])}, NUMBERS),
    "three offsets": file_of({"a": entry(offsets=[0, 8, 8])}, NUMBERS),
    "offsets of another kind": file_of({"a": entry(offsets="08")}, NUMBERS),
    "two tensors in the same place": file_of({"a": entry(), "b": entry()}, NUMBERS),
    "tensors that overlap": file_of({"a": entry(shape=[1], offsets=[0, 4]), "b": entry("F16", [3], [2, 8])}, NUMBERS),
    "a gap between tensors": file_of({"a": entry("U8", [1], [0, 1]), "b": entry("U8", [2], [2, 4])}, b"\0" * 4),
    "a gap at the beginning": file_of({"a": entry("U8", [7], [1, 8])}, NUMBERS),
    "bytes after the last tensor": file_of({"a": entry()}, NUMBERS + b"hidden"),
    "numbers cut short": file_of({"a": entry()}, NUMBERS[:-1]),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_in_a_sentence_without_taking_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        text = refusal(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 20 < len(text) < 400
    assert "object at" not in text
    assert peak < 32 << 20


def test_names_are_quoted_short() -> None:
    assert len(refusal(file_of({"a" * 100_000: entry("F13")}, NUMBERS))) < 400
    assert len(refusal(file_of({"a": entry("b" * 100_000)}, NUMBERS))) < 400
    data = file_of({"\ud800" * 100: entry()}, NUMBERS)
    with pytest.raises(MediaError) as caught:
        read_tensor(data, "\n" * 100_000)
    caught.value.description.encode("utf-8")
    assert len(caught.value.description) < 1000


@given(st.binary(max_size=300), st.integers(0, 300))
def test_no_bytes_do_anything_but_be_read_or_refused(noise: bytes, where: int) -> None:
    good = write_embeddings({"a": tensor_data_of(np.arange(6, dtype=np.float32))}, {"k": "v"})
    for data in (noise, good[:where] + noise + good[where + len(noise) :], file_of(noise, NUMBERS)):
        with suppress(MediaError):
            tensors, _ = read_all(data)
            assert all(len(tensor.data) == tensor.expected_bytes for tensor in tensors.values())


def test_what_does_not_begin_like_such_a_file_is_none() -> None:
    for beginning in (b"", b"\0" * 9, b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", b"\x02\0\0\0\0\0\0\0[]", b"\xff" * 8 + b"{"):
        assert not looks_like_safetensors(beginning, 1000)
