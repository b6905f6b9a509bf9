"""Attention by torch's own flash kernels over the pages (torch.nn.attention.varlen), Triton where they cannot.

They know causal attention and sliding windows, but no soft cap and no spans that see the whole of themselves. What a
call takes was read in torch's sources:

    one query     with no window on either side they share keys and values among the heads of a group and split over the
                  keys; it sees all keys, so that causal says nothing more
    window        (left, right) are keys beside a query's own: W tokens are W - 1 to the left
    cu_seq_k      must have the right shape; with pages and lengths of sequences nobody looks at it

Speed on a chip is unmeasured so far.
"""

from __future__ import annotations

import torch
from torch.nn.attention.varlen import varlen_attn

from fanlight_engine.model.attention.interface import AttentionBackend, LayerAttention, PagedBatch

LARGEST_HEAD_DIM = 256
_MOST_SEQUENCES = 1 << 14


class FlashAttention:
    """torch's flash attention; layers with a soft cap and chunks with spans go to Triton, over the same pages."""

    name = "flash"
    gathers_tables = True
    """It cuts the keys into splits of equal length by how wide the tables are, so short sequences want narrow ones."""

    def __init__(self, others: AttentionBackend, device: torch.device, deterministic: bool = False) -> None:
        """`others` computes what this cannot; `deterministic`: never split over the keys, how depends on the batch."""
        self._others = others
        self._splits = 1 if deterministic else None
        # Made once, so that a captured step finds it at the same address.
        self._row_numbers = torch.arange(_MOST_SEQUENCES + 1, dtype=torch.int32, device=device)

    def write(self, batch: PagedBatch, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """See AttentionBackend.write."""
        self._others.write(batch, layer, keys, values)

    def attend(self, queries: torch.Tensor, batch: PagedBatch, layer: LayerAttention) -> torch.Tensor:
        """See AttentionBackend.attend."""
        if layer.soft_cap is not None or any(segment.spans for segment in batch.prefill_segments):
            return self._others.attend(queries, batch, layer)
        if not batch.prefill_segments:
            return self._attend_decodes(queries, batch, layer)
        outputs = torch.empty_like(queries)
        rows = batch.decode_rows
        if rows:
            outputs[:rows] = self._attend_decodes(queries[:rows], batch, layer)
        outputs[rows:] = self._attend_chunks(queries[rows:], batch, layer)
        return outputs

    def _attend_decodes(self, queries: torch.Tensor, batch: PagedBatch, layer: LayerAttention) -> torch.Tensor:
        rows = batch.decode_rows
        window = (-1, -1) if layer.sliding_window is None else (layer.sliding_window - 1, 0)
        return self._attend(queries, batch, layer, self._row_numbers[: rows + 1], 1, slice(0, rows), window)

    def _attend_chunks(self, queries: torch.Tensor, batch: PagedBatch, layer: LayerAttention) -> torch.Tensor:
        assert batch.prefill_queries is not None, "a batch with segments has their queries"
        longest = max(segment.query_length for segment in batch.prefill_segments)
        window = (-1 if layer.sliding_window is None else layer.sliding_window - 1, 0)
        sequences = slice(batch.decode_rows, None)
        return self._attend(queries, batch, layer, batch.prefill_queries.starts, longest, sequences, window)

    def _attend(
        self,
        queries: torch.Tensor,
        batch: PagedBatch,
        layer: LayerAttention,
        starts: torch.Tensor,
        most_queries: int,
        sequences: slice,
        window: tuple[int, int],
    ) -> torch.Tensor:
        keys, values = batch.cache.layer(layer.layer)
        page_tables = batch.page_tables[sequences]
        outputs = varlen_attn(
            queries,
            keys,
            values,
            starts,
            self._row_numbers[: len(starts)],
            most_queries,
            page_tables.shape[1] * batch.cache.page_size,
            scale=layer.scale,
            window_size=window,
            enable_gqa=queries.shape[1] != keys.shape[2],
            seqused_k=batch.context_lengths[sequences],
            block_table=page_tables,
            num_splits=self._splits,
        )
        assert isinstance(outputs, torch.Tensor), "nothing besides was asked for"
        return outputs
