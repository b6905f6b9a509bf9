"""torch's flash attention is called as it is documented, and what it cannot do goes elsewhere, over the same pages.

Its kernels need a GPU. Here a plain function stands in their place that does what the documentation says, and fake
tensors on a device that is not there go through the real operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fanlight_engine.model.attention.choice import torch_knows_pages
from fanlight_engine.model.attention.interface import LayerAttention, PagedBatch, Segment
from fanlight_engine.model.attention.reference import ReferenceAttention
from fanlight_engine.model.kv_cache import KeyValueShape, PagedKeyValueCache
from tests.engine.test_attention import SCALE, Ragged, ragged
from tests.engine.test_attention_spans import with_spans

if not torch_knows_pages():
    pytest.skip("torch has no flash attention over pages", allow_module_level=True)

from fanlight_engine.model.attention import flash
from fanlight_engine.model.attention.flash import FlashAttention

CPU = torch.device("cpu")


class Counted(ReferenceAttention):
    """What stands beside flash attention, and how often it was asked."""

    def __init__(self) -> None:
        self.calls = 0

    def attend(self, queries: torch.Tensor, batch: PagedBatch, layer: LayerAttention) -> torch.Tensor:
        self.calls += 1
        return super().attend(queries, batch, layer)


def documented(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_seq_q: torch.Tensor, cu_seq_k: torch.Tensor,
    max_q: int, max_k: int, *, scale: float, window_size: tuple[int, int], enable_gqa: bool, seqused_k: torch.Tensor,
    block_table: torch.Tensor, num_splits: int | None,
) -> torch.Tensor:  # fmt: skip
    """One query at a time, as varlen_attn describes its arguments; windows count from the end of the keys."""
    assert cu_seq_q.shape == cu_seq_k.shape == (len(seqused_k) + 1,)
    assert {one.dtype for one in (cu_seq_q, cu_seq_k, seqused_k, block_table)} == {torch.int32}
    assert len(block_table) == len(seqused_k)
    assert seqused_k.is_contiguous()
    assert enable_gqa == (query.shape[1] != key.shape[2])
    outputs = torch.full_like(query, float("nan"))
    for sequence, context in enumerate(seqused_k.tolist()):
        start, end = cu_seq_q[sequence : sequence + 2].tolist()
        assert end - start <= max_q
        assert context <= max_k
        pages = block_table[sequence].long()
        keys, values = (side[pages].flatten(0, 1)[:context] for side in (key, value))
        keys, values = (side.repeat_interleave(query.shape[1] // key.shape[2], 1) for side in (keys, values))
        for row in range(start, end):
            position = context - (end - row)
            left, right = window_size
            first = 0 if left < 0 else max(0, position - left)
            last = context if right < 0 else position + right + 1
            scores = torch.einsum("hd,khd->hk", query[row], keys[first:last]) * scale
            outputs[row] = torch.einsum("hk,khd->hd", scores.softmax(-1), values[first:last])
    return outputs


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of every call, with the documented function in the place of the kernels."""
    found: list[dict[str, Any]] = []

    def recorded(*tensors: Any, **options: Any) -> torch.Tensor:
        found.append(options)
        return documented(*tensors, **options)

    monkeypatch.setattr(flash, "varlen_attn", recorded)
    return found


def attend(backend: FlashAttention, step: Ragged, layer: LayerAttention) -> torch.Tensor:
    return backend.attend(step.queries, step.batch, layer)


@pytest.mark.parametrize("sliding_window", [None, 1, 9, 1000])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize(("decodes", "prefills", "padding"), [(3, 0, 2), (0, 3, 0), (2, 2, 0)])
def test_flash_attention_equals_the_reference(
    calls: list[dict[str, Any]], decodes: int, prefills: int, padding: int, groups: int, sliding_window: int | None
) -> None:
    step = ragged(decodes + groups, groups, 256, decodes, prefills, padding)
    layer = LayerAttention(1, SCALE, sliding_window)
    others = Counted()
    outputs = attend(FlashAttention(others, CPU), step, layer)
    assert torch.allclose(outputs, ReferenceAttention().attend(step.queries, step.batch, layer), atol=1e-5)
    assert len(calls) == bool(decodes) + bool(prefills)
    assert not others.calls


def test_decodes_without_a_window_name_none_so_that_heads_of_a_group_share_their_keys(
    calls: list[dict[str, Any]],
) -> None:
    step = ragged(1, 4, 256, 3, 0)
    attend(FlashAttention(Counted(), CPU), step, LayerAttention(1, SCALE, None))
    assert [one["window_size"] for one in calls] == [(-1, -1)]


@pytest.mark.parametrize(("deterministic", "splits"), [(True, 1), (False, None)])
def test_where_answers_must_not_depend_on_the_batch_nothing_is_split(
    calls: list[dict[str, Any]], deterministic: bool, splits: int | None
) -> None:
    step = ragged(1, 2, 256, 2, 2)
    attend(FlashAttention(Counted(), CPU, deterministic), step, LayerAttention(1, SCALE, None))
    assert {one["num_splits"] for one in calls} == {splits}


def capped(step: Ragged) -> tuple[Ragged, LayerAttention]:
    return step, LayerAttention(1, SCALE, None, soft_cap=3.0)


def spanned(step: Ragged) -> tuple[Ragged, LayerAttention]:
    return with_spans(step, seed=2)[0], LayerAttention(1, SCALE, 4)


@pytest.mark.parametrize("change", [capped, spanned])
def test_soft_caps_and_spans_are_left_to_the_other_backend(
    calls: list[dict[str, Any]], change: Callable[[Ragged], tuple[Ragged, LayerAttention]]
) -> None:
    step, layer = change(ragged(6, 2, 256, 2, 4))
    others = Counted()
    outputs = attend(FlashAttention(others, CPU), step, layer)
    assert torch.equal(outputs, ReferenceAttention().attend(step.queries, step.batch, layer))
    assert (others.calls, len(calls)) == (1, 0)


def test_keys_and_values_are_written_by_the_other_backend() -> None:
    step = ragged(2, 2, 256, 2, 0)
    batch = replace(step.batch, slots=torch.tensor([300, 301]))
    new = torch.ones(2, 2, 8)
    FlashAttention(Counted(), CPU).write(batch, 1, new, new * 2)
    keys, values = batch.cache.layer(1)
    assert torch.equal(keys.flatten(0, 1)[300:302], new)
    assert torch.equal(values.flatten(0, 1)[300:302], new * 2)


@pytest.mark.parametrize("sliding_window", [None, 128])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("segments", [(), (Segment(4, 20, 300), Segment(24, 7, 7))], ids=["decodes", "mixed"])
def test_the_real_operator_takes_our_tensors_on_a_device_that_is_not_there(
    dtype: torch.dtype, segments: tuple[Segment, ...], sliding_window: int | None
) -> None:
    """Shapes, devices and host reads: a fake tensor has no data, and an operator that asks for some raises."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        device = torch.device("cuda", 0)
        backend = FlashAttention(Counted(), device)
        tokens, sequences = 4 + sum(one.query_length for one in segments), 4 + len(segments)
        batch = PagedBatch(
            cache=PagedKeyValueCache(KeyValueShape(1, 2, 64, dtype), 9, 256, device),
            backend=backend,
            slots=torch.zeros(tokens, dtype=torch.int64, device=device),
            page_tables=torch.zeros(sequences, 4, dtype=torch.int32, device=device),
            context_lengths=torch.ones(sequences, dtype=torch.int32, device=device),
            decode_rows=4,
            prefill_segments=segments,
        )
        queries = torch.empty(tokens, 8, 64, dtype=dtype, device=device)
        outputs = backend.attend(queries, batch, LayerAttention(0, 0.125, sliding_window))
        assert (outputs.shape, outputs.dtype, outputs.device) == (queries.shape, dtype, device)
