"""The paged K/V tensors, one pair per decoder layer. Knows no requests, only pages and slots.

Layout per layer and side: [pages, page_size, kv_heads, head_dim]; slot = page * page_size + offset.
Page 0 is the dummy that padding rows use.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PretrainedConfig


@dataclass(frozen=True, slots=True)
class KeyValueShape:
    """What one token's keys and values look like in every layer."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @classmethod
    def of(cls, config: PretrainedConfig, dtype: torch.dtype) -> KeyValueShape:
        """As the configuration of a decoder says it."""
        heads = config.num_attention_heads
        return cls(
            layers=config.num_hidden_layers,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=dtype,
        )

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


class PagedKeyValueCache:
    """Allocated once; written by slot, read by page table."""

    def __init__(self, shape: KeyValueShape, pages: int, page_size: int, device: torch.device) -> None:
        self.pages = pages
        self.page_size = page_size
        side = (shape.layers, pages, page_size, shape.kv_heads, shape.head_dim)
        # Zeros, not empty: a masked key's value is multiplied by 0, and 0 x NaN is NaN.
        self._keys = torch.zeros(side, dtype=shape.dtype, device=device)
        self._values = torch.zeros(side, dtype=shape.dtype, device=device)

    @property
    def sides(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all layers, each [layers, pages, page_size, kv_heads, head_dim]."""
        return self._keys, self._values

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, each [pages, page_size, kv_heads, head_dim]."""
        return self._keys[index], self._values[index]

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values [tokens, kv_heads, head_dim] at slots [tokens] of one layer."""
        self._keys[layer].flatten(0, 1).index_copy_(0, slots, keys)
        self._values[layer].flatten(0, 1).index_copy_(0, slots, values)
