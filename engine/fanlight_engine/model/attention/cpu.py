"""Attention on a CPU by our own kernels: decode rows read their pages where they lie, without gathering them.

Prefill chunks of many queries go the way of the reference: its matrix products outweigh what gathering costs. A chunk
of few queries does not, and where answers must not depend on how a prompt was cut none does: each query is computed by
itself then.
"""

from __future__ import annotations

import torch

from fanlight_engine.model.attention.interface import LayerAttention, PagedBatch
from fanlight_engine.model.attention.reference import ReferenceAttention
from fanlight_engine.model.cpu.library import Kernels, Sight

_FEW_QUERIES = 8
"""A chunk of no more than these is cheaper query by query; measured."""


class CpuAttention:
    """Our kernels for decode rows and small chunks, the reference for the others."""

    name = "cpu"
    gathers_tables = False

    def __init__(self, kernels: Kernels, each_query_alone: bool = False) -> None:
        """With `each_query_alone` a query's output depends on nothing but itself and the keys that it sees."""
        self._kernels = kernels
        self._each_query_alone = each_query_alone
        self._reference = ReferenceAttention()

    def write(self, batch: PagedBatch, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """See AttentionBackend.write."""
        batch.cache.write(layer, batch.slots, keys, values)

    def attend(self, queries: torch.Tensor, batch: PagedBatch, layer: LayerAttention) -> torch.Tensor:
        """See AttentionBackend.attend."""
        if type(queries) is not torch.Tensor:  # one that only pretends to have data
            return self._reference.attend(queries, batch, layer)
        if not batch.prefill_segments:
            return self._attend_decodes(queries, batch, layer)
        outputs = torch.empty_like(queries)
        decodes = slice(batch.decode_rows)
        if batch.decode_rows:
            outputs[decodes] = self._attend_decodes(queries[decodes], batch, layer)
        for index, segment in enumerate(batch.prefill_segments, start=batch.decode_rows):
            rows = slice(segment.query_start, segment.query_start + segment.query_length)
            if self._each_query_alone or segment.query_length <= _FEW_QUERIES:
                outputs[rows] = self._attend_alone(queries[rows], batch, index, rows.start - batch.decode_rows, layer)
            else:
                outputs[rows] = self._reference.attend_chunk(queries[rows], batch, index, segment, layer)
        return outputs

    def _attend_decodes(self, queries: torch.Tensor, batch: PagedBatch, layer: LayerAttention) -> torch.Tensor:
        lengths, window = batch.context_lengths[: len(queries)].contiguous(), layer.sliding_window
        first_keys = None if window is None else (lengths - window).clamp_(min=0)
        sight = Sight(batch.page_tables, lengths, first_keys)
        return self._kernels.attend(queries, batch.cache.layer(layer.layer), sight, layer)

    def _attend_alone(
        self, queries: torch.Tensor, batch: PagedBatch, index: int, first: int, layer: LayerAttention
    ) -> torch.Tensor:
        """A chunk of sequence `index`, whose queries begin at `first` among those of all chunks."""
        assert batch.prefill_queries is not None, "a batch with segments has their queries"
        chunk = slice(first, first + len(queries))
        sight = Sight(
            page_tables=batch.page_tables,
            limits=batch.prefill_queries.limits[chunk].contiguous(),
            first_keys=batch.prefill_queries.first_keys(layer.sliding_window)[chunk].contiguous(),
            table_rows=torch.full((len(queries),), index, dtype=torch.int32),
        )
        return self._kernels.attend(queries, batch.cache.layer(layer.layer), sight, layer)
