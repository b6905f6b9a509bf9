"""Attention by our own Triton kernels: every family, every page size, on NVIDIA and AMD. Launches, and their sizes.

Launches depend on shapes and on facts of the host alone, and the kernels read lengths and pages on the device: a decode
step reads nothing on the host and can be captured as a CUDA graph. They stand behind operators of torch's, which have
an implementation for fake tensors; tensors on a CPU work where TRITON_INTERPRET=1 was set before triton was imported.

Speed on a chip is unmeasured so far.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton

from fanlight_engine.model.attention import triton_kernels
from fanlight_engine.model.attention.interface import LayerAttention, PagedBatch
from fanlight_engine.model.attention.triton_sizes import Heads, Launch, Processors, decode_launch, prefill_launch

_JOINED_AT_ONCE = 16
_kernels: Any = triton_kernels  # what a launch takes is not in a kernel's signature
_LOG2_E = 1.4426950408889634


class TritonAttention:
    """One kernel for decode rows and chunks over the pages, split over the keys where the device would stand idle."""

    name = "triton"
    gathers_tables = False

    def __init__(self, processors: Processors) -> None:
        """With fixed splits, a row's answer is the same beside any neighbours, bit for bit."""
        self._processors = processors

    def write(self, batch: PagedBatch, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """See AttentionBackend.write."""
        key_pages, value_pages = batch.cache.layer(layer)
        torch.ops.fanlight.write_pages(key_pages, value_pages, batch.slots, keys, values)

    def attend(self, queries: torch.Tensor, batch: PagedBatch, layer: LayerAttention) -> torch.Tensor:
        """See AttentionBackend.attend."""
        keys, values = batch.cache.layer(layer.layer)
        prefill = batch.prefill_queries
        return torch.ops.fanlight.paged_attention(
            queries,
            keys,
            values,
            batch.page_tables,
            batch.context_lengths,
            None if prefill is None else prefill.starts,
            None if prefill is None else prefill.intervals,
            batch.decode_rows,
            layer.scale,
            layer.sliding_window,
            layer.soft_cap,
            self._processors.count,
            self._processors.fixed_split,
        )


def _paged_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    page_tables: torch.Tensor,
    context_lengths: torch.Tensor,
    starts: torch.Tensor | None,
    intervals: torch.Tensor | None,
    decode_rows: int,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    processor_count: int,
    fixed_split: int,
) -> torch.Tensor:
    queries = queries.contiguous()
    outputs = torch.empty_like(queries)
    _, page_size, kv_heads, head_dim = keys.shape
    heads = Heads(queries.shape[1], kv_heads, head_dim, queries.element_size())
    processors = Processors(processor_count, fixed_split)
    longest = page_tables.shape[1] * page_size
    tensors = (queries, keys, values, outputs, page_tables, context_lengths, starts, intervals)
    with _on_device_of(queries):
        if decode_rows:
            seen = longest if window is None else min(longest, window + heads.block_n)
            launch = decode_launch(heads, decode_rows, seen, processors)
            _attend(launch, heads, *tensors, decode_rows, scale, window, soft_cap)
        if starts is not None:
            chunks = (len(queries) - decode_rows, len(starts) - 1)
            launch = prefill_launch(heads, *chunks, longest, processors)
            _attend(launch, heads, *tensors, decode_rows, scale, window, soft_cap)
    return outputs


def _attend(
    launch: Launch,
    heads: Heads,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    outputs: torch.Tensor,
    page_tables: torch.Tensor,
    context_lengths: torch.Tensor,
    starts: torch.Tensor | None,
    intervals: torch.Tensor | None,
    decode_rows: int,
    scale: float,
    window: int | None,
    soft_cap: float | None,
) -> None:
    """One launch of the attention kernel, and of the one that joins its splits."""
    prefill_queries = len(queries) - decode_rows
    launched = decode_rows if launch.is_decode else prefill_queries
    is_split = launch.splits > 1
    partial_sums, partial_scalars = outputs, outputs  # not looked at, where there are no splits
    if is_split:
        shape = (launch.splits, launched, heads.heads)
        partial_sums = torch.empty((*shape, heads.head_dim), dtype=torch.float32, device=queries.device)
        partial_scalars = torch.empty((2, *shape), dtype=torch.float32, device=queries.device)
    _kernels.attend_pages[(launch.tiles * heads.kv_heads, launch.splits)](
        queries, keys, values, outputs, partial_sums, partial_scalars, page_tables, context_lengths,
        context_lengths if starts is None else starts,
        context_lengths if intervals is None else intervals,
        _score_scale(scale, soft_cap),
        (soft_cap or 0.0) * _LOG2_E,
        page_tables.stride(0),
        decode_rows,
        prefill_queries,
        0 if starts is None else len(starts) - 1,
        launch.splits,
        launch.shortest_split,
        window or 0,
        HEADS=heads.heads,
        KV_HEADS=heads.kv_heads,
        HEAD_DIM=heads.head_dim,
        PAGE_SIZE=keys.shape[1],
        BLOCK_M=launch.block_m,
        BLOCK_N=heads.block_n,
        BLOCK_D=heads.block_d,
        IS_DECODE=launch.is_decode,
        HAS_WINDOW=window is not None,
        HAS_CAP=soft_cap is not None,
        IS_SPLIT=is_split,
        PRECISION="ieee",
        num_warps=launch.warps,
        num_stages=launch.stages,
    )  # fmt: skip
    if is_split:
        _kernels.join_splits[(launched * heads.heads,)](
            partial_sums,
            partial_scalars,
            outputs,
            launched * heads.heads,
            0 if launch.is_decode else decode_rows * heads.heads,
            launch.splits,
            HEAD_DIM=heads.head_dim,
            BLOCK_D=heads.block_d,
            BLOCK_S=_JOINED_AT_ONCE,
            num_warps=4,
        )


def _score_scale(scale: float, soft_cap: float | None) -> float:
    """What makes a score of a product of query and key: in base 2, and with a cap what its tanh wants."""
    return scale * _LOG2_E if soft_cap is None else 2 * scale / soft_cap * _LOG2_E


def _write_pages(
    key_pages: torch.Tensor, value_pages: torch.Tensor, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> None:
    tokens, kv_heads, head_dim = keys.shape
    keys, values = (side if side.stride(2) == 1 else side.contiguous() for side in (keys, values))
    with _on_device_of(keys):
        _kernels.write_pages[(tokens,)](
            keys,
            values,
            key_pages,
            value_pages,
            slots,
            *keys.stride()[:2],
            *values.stride()[:2],
            KV_HEADS=kv_heads,
            HEAD_DIM=head_dim,
            BLOCK=triton.next_power_of_2(kv_heads * head_dim),
            num_warps=4,
        )


def _on_device_of(tensor: torch.Tensor) -> AbstractContextManager[None]:
    """Triton launches on the current device."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()  # pyright: ignore[reportReturnType]


_LIBRARY = torch.library.Library("fanlight", "DEF")
_LIBRARY.define(
    "paged_attention(Tensor queries, Tensor keys, Tensor values, Tensor page_tables, Tensor context_lengths, "
    "Tensor? starts, Tensor? intervals, int decode_rows, float scale, int? window, float? soft_cap, "
    "int processor_count, int fixed_split) -> Tensor"
)
_LIBRARY.define(
    "write_pages(Tensor(a!) key_pages, Tensor(b!) value_pages, Tensor slots, Tensor keys, Tensor values) -> ()"
)
_LIBRARY.impl("paged_attention", _paged_attention, "CompositeExplicitAutograd")
_LIBRARY.impl("write_pages", _write_pages, "CompositeExplicitAutograd")
torch.library.register_fake(
    "fanlight::paged_attention", lambda queries, *others: torch.empty_like(queries.contiguous()), lib=_LIBRARY
)
torch.library.register_fake("fanlight::write_pages", lambda *tensors: None, lib=_LIBRARY)
