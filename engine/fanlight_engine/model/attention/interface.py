"""Paged attention behind one interface: what a backend receives, and how transformers' decoders reach it.

transformers lets one registered function replace attention in every decoder. Ours writes the step's keys and values
into the pages and hands the queries to the backend of the running step. A mask function is deliberately NOT registered
for the name: without one, transformers builds no dense mask and reads nothing on the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from fanlight_engine.model.attention.segments import PrefillQueries, Segment
from fanlight_engine.model.kv_cache import PagedKeyValueCache

__all__ = ["ATTENTION_NAME", "AttentionBackend", "LayerAttention", "PagedBatch", "PrefillQueries", "Segment"]

ATTENTION_NAME = "fanlight_paged"
_WITHOUT_EFFECT = frozenset({"dropout", "is_causal", "position_ids", "cache", "use_cache", "return_dict"})
"""What decoders pass to their attention besides, and what needs nothing done: pages and masks are ours."""


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """One packed step as attention sees it. S sequences, T tokens; decode rows come first, one query each."""

    cache: PagedKeyValueCache
    backend: AttentionBackend
    slots: torch.Tensor
    """[T] int64: where each token's keys and values go."""
    page_tables: torch.Tensor
    """[S, W] int32: pages of each sequence, padded with the dummy page."""
    context_lengths: torch.Tensor
    """[S] int32: keys that a sequence's last query sees, its own included."""
    decode_rows: int
    """How many leading sequences have exactly one query."""
    prefill_segments: tuple[Segment, ...] = ()
    """The other sequences, in order."""
    window_bounds_spans: bool = False
    """Whether a sliding window hides the far beginning of a span from its later positions; see Family."""
    prefill_queries: PrefillQueries | None = field(default=None, init=False)
    """What the device must know of `prefill_segments`, where there are any; made here, once for all layers."""

    def __post_init__(self) -> None:
        if self.prefill_segments:
            made = PrefillQueries.of(self.prefill_segments, self.window_bounds_spans, self.page_tables.device)
            object.__setattr__(self, "prefill_queries", made)


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """What one layer asks for: softmax scale, the sliding window in tokens (None = all), and the soft cap that scores
    are bent below before the softmax, cap * tanh(score / cap) (None = none)."""

    layer: int
    scale: float
    sliding_window: int | None
    soft_cap: float | None = None


class AttentionBackend(Protocol):
    """Computes attention of packed queries over paged keys and values."""

    name: str
    gathers_tables: bool
    """Whether decode rows cost as much as page tables are wide; else contexts alone say how far it reads."""

    def write(self, batch: PagedBatch, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Put the step's keys and values [T, kv_heads, head_dim] of one layer into their slots."""
        ...

    def attend(self, queries: torch.Tensor, batch: PagedBatch, layer: LayerAttention) -> torch.Tensor:
        """Queries [T, heads, head_dim] -> outputs of the same shape. The step's own K/V are in the pages already."""
        ...


def _paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    paged_batch: PagedBatch | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' signature: query [1, heads, T, head_dim], key and value [1, kv_heads, T, head_dim]."""
    assert paged_batch is not None, "the decoder was called without a paged batch"
    unknown = [name for name, value in others.items() if name not in _WITHOUT_EFFECT and value is not None]
    if unknown:  # not an assertion: the checkpoint is at fault, and leaving it out would change answers silently
        raise NotImplementedError(f"a decoder asks its attention for {unknown}, which no backend does")
    layer: int = module.layer_idx  # pyright: ignore[reportAssignmentType] set by every decoder attention
    paged_batch.backend.write(paged_batch, layer, key[0].transpose(0, 1), value[0].transpose(0, 1))
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    outputs = paged_batch.backend.attend(
        query[0].transpose(0, 1), paged_batch, LayerAttention(layer, scale, sliding_window, softcap)
    )
    return outputs.unsqueeze(0), None


AttentionInterface.register(ATTENTION_NAME, _paged_attention)
