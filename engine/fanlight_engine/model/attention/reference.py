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

    def attend(self, queries: torch.Tensor, batch: PagedBatch, layer: LayerAttention) -> torch.Tensor:
        """See AttentionBackend.attend."""
        if not batch.prefill_segments:
            return _attend_decodes(queries, batch, layer)
        outputs = torch.empty_like(queries)
        if batch.decode_rows:
            outputs[: batch.decode_rows] = _attend_decodes(queries[: batch.decode_rows], batch, layer)
        for index, segment in enumerate(batch.prefill_segments, start=batch.decode_rows):
            rows = slice(segment.query_start, segment.query_start + segment.query_length)
            outputs[rows] = _attend_chunk(queries[rows], batch, index, segment, layer)
        return outputs


def _attend_decodes(queries: torch.Tensor, batch: PagedBatch, layer: LayerAttention) -> torch.Tensor:
    """One query per sequence, [D, heads, head_dim]; the query heads of a K/V head stand where SDPA has positions."""
    keys, values = batch.cache.layer(layer.layer)
    page_tables = batch.page_tables[: batch.decode_rows]
    rows, heads, head_dim = queries.shape
    kv_heads = keys.shape[2]
    gathered_keys = keys[page_tables].flatten(1, 2).transpose(1, 2)  # [D, kv_heads, W * page_size, head_dim]
    gathered_values = values[page_tables].flatten(1, 2).transpose(1, 2)
    positions = torch.arange(gathered_keys.shape[2], device=queries.device)
    lengths = batch.context_lengths[: batch.decode_rows, None]
    visible = positions < lengths
    if layer.sliding_window is not None:
        visible = visible & (positions >= lengths - layer.sliding_window)
    outputs = _attention(
        queries.reshape(rows, kv_heads, heads // kv_heads, head_dim),
        gathered_keys,
        gathered_values,
        visible[:, None, None, :],
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
    outputs = _attention(
        queries.transpose(0, 1).reshape(kv_heads, groups, length, head_dim),
        context_keys.unsqueeze(1).expand(-1, groups, -1, -1),
        context_values.unsqueeze(1).expand(-1, groups, -1, -1),
        _visible_keys(segment, layer, batch.window_bounds_spans, queries.device),
        layer,
    )
    return outputs.reshape(heads, length, head_dim).transpose(0, 1)


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


def _visible_keys(
    segment: Segment, layer: LayerAttention, window_bounds_spans: bool, device: torch.device
) -> torch.Tensor:
    """[n, context] bool: which keys each query of the chunk sees."""
    first_query = segment.context_length - segment.query_length
    query_positions = torch.arange(first_query, segment.context_length, device=device)[:, None]
    key_positions = torch.arange(segment.context_length, device=device)[None, :]
    visible = key_positions <= query_positions
    in_span = torch.zeros_like(visible)
    for start, end in segment.spans:
        queries_inside = (query_positions >= start) & (query_positions < end)
        in_span |= queries_inside & (key_positions >= start) & (key_positions < end)
    if layer.sliding_window is None:
        return visible | in_span
    in_window = key_positions > query_positions - layer.sliding_window
    return (visible | in_span) & in_window if window_bounds_spans else (visible & in_window) | in_span
