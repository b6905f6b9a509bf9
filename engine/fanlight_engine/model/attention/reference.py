"""Attention by gathering pages and calling SDPA: correct on every device, the measure for the fast backends.

SDPA has no soft cap; layers with one are computed step by step.

Decode rows are one padded batch of fixed shape, so that the decode step has no data-dependent shape and reads nothing
on the host. Prefill chunks go sequence by sequence.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from fanlight_engine.model.attention.interface import LayerAttention, PagedBatch, Segment


class ReferenceAttention:
    """SDPA over gathered pages."""

    name = "reference"
    gathers_tables = True

    def write(self, batch: PagedBatch, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """See AttentionBackend.write."""
        batch.cache.write(layer, batch.slots, keys, values)

    def attend(self, queries: torch.Tensor, batch: PagedBatch, layer: LayerAttention) -> torch.Tensor:
        """See AttentionBackend.attend."""
        if not batch.prefill_segments:
            return _attend_decodes(queries, batch, layer)
        outputs = torch.empty_like(queries)
        if batch.decode_rows:
            outputs[: batch.decode_rows] = _attend_decodes(queries[: batch.decode_rows], batch, layer)
        for index, segment in enumerate(batch.prefill_segments, start=batch.decode_rows):
            rows = slice(segment.query_start, segment.query_start + segment.query_length)
            outputs[rows] = self.attend_chunk(queries[rows], batch, index, segment, layer)
        return outputs

    def attend_chunk(
        self, queries: torch.Tensor, batch: PagedBatch, index: int, segment: Segment, layer: LayerAttention
    ) -> torch.Tensor:
        """The chunk of the batch's sequence `index`, [n, heads, head_dim]."""
        return _attend_chunk(queries, batch, index, segment, layer)


def _attend_decodes(queries: torch.Tensor, batch: PagedBatch, layer: LayerAttention) -> torch.Tensor:
    """One query per sequence, [D, heads, head_dim]; the query heads of a K/V head stand where SDPA has positions."""
    keys, values = batch.cache.layer(layer.layer)
    page_tables = batch.page_tables[: batch.decode_rows]
    rows, heads, head_dim = queries.shape
    kv_heads = keys.shape[2]
    gathered_keys = keys[page_tables].flatten(1, 2).transpose(1, 2)  # [D, kv_heads, W * page_size, head_dim]
    gathered_values = values[page_tables].flatten(1, 2).transpose(1, 2)
    limits = batch.context_lengths[: batch.decode_rows]
    first_keys = torch.zeros_like(limits) if layer.sliding_window is None else limits - layer.sliding_window
    outputs = _attention(
        queries.reshape(rows, kv_heads, heads // kv_heads, head_dim),
        gathered_keys,
        gathered_values,
        _visible(first_keys, limits, gathered_keys.shape[2])[:, None, None, :],
        layer,
    )
    return outputs.reshape(rows, heads, head_dim)


def _attend_chunk(
    queries: torch.Tensor, batch: PagedBatch, index: int, segment: Segment, layer: LayerAttention
) -> torch.Tensor:
    """One sequence's chunk, [n, heads, head_dim], over its context."""
    keys, values = batch.cache.layer(layer.layer)
    pages = batch.page_tables[index, : -(-segment.context_length // batch.cache.page_size)]
    context_keys = keys[pages].flatten(0, 1)[: segment.context_length].transpose(0, 1)  # [kv_heads, context, head_dim]
    context_values = values[pages].flatten(0, 1)[: segment.context_length].transpose(0, 1)
    length, heads, head_dim = queries.shape
    kv_heads = context_keys.shape[0]
    groups = heads // kv_heads
    assert batch.prefill_queries is not None, "a batch with segments has their queries"
    first = segment.query_start - batch.decode_rows
    first_keys = batch.prefill_queries.first_keys(layer.sliding_window)[first : first + length]
    limits = batch.prefill_queries.limits[first : first + length]
    outputs = _attention(
        queries.transpose(0, 1).reshape(kv_heads, groups, length, head_dim),
        context_keys.unsqueeze(1).expand(-1, groups, -1, -1),
        context_values.unsqueeze(1).expand(-1, groups, -1, -1),
        _visible(first_keys, limits, segment.context_length),
        layer,
    )
    return outputs.reshape(heads, length, head_dim).transpose(0, 1)


def _visible(first_keys: torch.Tensor, limits: torch.Tensor, context: int) -> torch.Tensor:
    """[n, context] bool: whether a key is in the interval [first, limit) of each of n queries."""
    keys = torch.arange(context, device=limits.device)
    return (keys >= first_keys[:, None]) & (keys < limits[:, None])


def _attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor, layer: LayerAttention
) -> torch.Tensor:
    """Queries [..., n, head_dim] over keys and values [..., context, head_dim]; `visible` [..., n, context] bool."""
    if layer.soft_cap is None:
        return scaled_dot_product_attention(queries, keys, values, attn_mask=visible, scale=layer.scale)
    scores = queries @ keys.transpose(-1, -2) * layer.scale
    scores = torch.tanh(scores / layer.soft_cap) * layer.soft_cap
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1, dtype=torch.float32)
    return weights.to(queries.dtype) @ values
