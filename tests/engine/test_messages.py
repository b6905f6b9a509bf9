"""Everything that crosses the seam survives its bytes, and nothing malformed is taken for a message."""

from __future__ import annotations

import typing

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanlight_engine.core import messages
from fanlight_engine.core.messages import (
    EMBEDDINGS,
    AbortRequest,
    AddRequest,
    Admitted,
    Completed,
    CoreTimings,
    Encoded,
    EncodeRequest,
    FromCore,
    Generated,
    MaskRun,
    MediaInput,
    Prefilled,
    Progressed,
    Rejected,
    SamplingParams,
    ToCore,
    decode_from_core,
    decode_to_core,
    encode,
)
from fanlight_engine.errors import Reason
from fanlight_engine.model.tensors import tensor_of
from fanlight_engine.request import FinishReason, Modality
from fanlight_engine.tensor_data import ITEM_BYTES, TensorData
from tests.engine.builders import data, embedded, qwen_clip, qwen_picture, request

TO_CORE: list[ToCore] = [
    AbortRequest("gone"),
    EncodeRequest("encode", qwen_clip("a", seconds_per_grid=0.5)),
    EncodeRequest("embedded", embedded("b", data(np.ones((3, 4), dtype=np.float16)), grid=(1, 2, 6))),
    request("text", [1, 2, 3]),
    request(
        "all",
        [1, 2],
        qwen_picture("a"),
        [3],
        cache_salt=b"\x00salt\xff",
        min_new_tokens=1,
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        min_p=0.01,
        seed=2**64 - 1,
        end_ids=(2, 3),
        stop_token_ids=(4,),
        logprobs=True,
        context_limited=True,
        repetition_penalty=1.05,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
    ),
]
FROM_CORE: list[FromCore] = [
    Admitted("a", 16, 3),
    Rejected("a", Reason.OVERLOADED, "prompt", "füll it less", 1.5),
    Progressed("a", 0, 2, 512),
    Generated("a", (5,), (-0.25,)),
    Generated("a", (5, 6)),
    Prefilled("a", 16, (0, 2), CoreTimings(0.1, 0.2, 0.3)),
    Encoded("a", {EMBEDDINGS: data(np.ones((3, 4), dtype=np.float32))}, was_cached=True),
    *(Completed("a", reason, 2) for reason in FinishReason),
]


@pytest.mark.parametrize("message", TO_CORE, ids=lambda one: one.request_id)
def test_what_goes_to_the_core_arrives_as_it_was_sent(message: ToCore) -> None:
    assert decode_to_core(encode(message)) == message


@pytest.mark.parametrize("message", FROM_CORE, ids=lambda one: type(one).__name__)
def test_what_comes_from_the_core_arrives_as_it_was_sent(message: FromCore) -> None:
    received = decode_from_core(encode(message))
    assert received == message
    assert type(received) is type(message)


def test_these_tests_send_every_kind_of_message() -> None:
    assert {type(one) for one in TO_CORE} == set(typing.get_args(ToCore))
    assert {type(one) for one in FROM_CORE} == set(typing.get_args(FromCore))


integers = st.integers(-(2**63), 2**63 - 1)
media = st.builds(
    MediaInput,
    digest=st.binary(min_size=32, max_size=32),
    embedding_rows=st.integers(1, 9999),
    tensors=st.dictionaries(
        st.text(max_size=8),
        st.builds(
            TensorData, st.sampled_from(sorted(ITEM_BYTES)), st.tuples(st.integers(0, 9)), st.binary(max_size=40)
        ),
    ),
    modality=st.sampled_from(Modality),
    is_embedded=st.booleans(),
    grid=st.none() | st.tuples(*[st.integers(1, 999)] * 3),
    seconds_per_grid=st.floats(0, 100),
)
sampling = st.builds(
    SamplingParams,
    max_new_tokens=integers,
    temperature=st.floats(0, 100),
    top_p=st.floats(0, 1),
    seed=integers,
    end_ids=st.lists(integers).map(tuple),
)


@settings(max_examples=20, deadline=None)
@given(
    message=st.builds(
        AddRequest,
        request_id=st.text(max_size=20),
        prompt_ids=st.lists(integers, max_size=20).map(tuple),
        sampling=sampling,
        media=st.lists(media, max_size=2).map(tuple),
        mask_runs=st.lists(st.builds(MaskRun, integers, integers, integers), max_size=3).map(tuple),
        cache_salt=st.binary(max_size=40),
        arrival=st.floats(0, 1e9),
    )
)
def test_any_request_survives_its_bytes(message: AddRequest) -> None:
    assert decode_to_core(encode(message)) == message


@pytest.mark.parametrize("array", [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array([[1, 4, 6]], dtype=np.int64),
    np.zeros((0, 4), dtype=np.float16),
], ids=lambda one: one.dtype.name)  # fmt: skip
def test_a_tensor_comes_out_as_it_went_in_and_may_be_written_to(array: np.ndarray) -> None:
    tensor = tensor_of(data(array))
    assert tensor.numpy().dtype == array.dtype
    np.testing.assert_array_equal(tensor.numpy(), array)
    tensor.zero_()


@pytest.mark.parametrize("garbage", [b"", b"\xc1", b"hello", encode(FROM_CORE[0])])
def test_what_is_no_message_to_the_core_is_refused(garbage: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_to_core(garbage)


def test_messages_cannot_be_changed_after_they_were_made() -> None:
    structs = [one for one in vars(messages).values() if isinstance(one, type) and issubclass(one, msgspec.Struct)]
    assert len(structs) >= 11
    assert all(one.__struct_config__.frozen for one in structs if one is not msgspec.Struct)
