"""Puts embeddings of pictures and clips where the image mask says, through a buffer and a mask at fixed addresses.

Both are allocated once for the largest step and cleared per step, and the choice between text and medium is one
unconditional `where`: what a captured prefill needs. Steps without media never come here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fanlight_engine.core.scheduler import Chunk
from fanlight_engine.model.adapter import ModelAdapter
from fanlight_engine.model.vision_cache import VisionCache


class ImageInjector:
    """Injection for the packed steps of one runner."""

    def __init__(self, adapter: ModelAdapter, cache: VisionCache[torch.Tensor], max_step_tokens: int) -> None:
        self._cache = cache
        shape = (max_step_tokens, adapter.hidden_size)
        self._buffer = torch.zeros(shape, dtype=adapter.dtype, device=adapter.device)
        self._mask = torch.zeros(max_step_tokens, dtype=torch.bool, device=adapter.device)

    def inject(self, embeddings: torch.Tensor, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Text embeddings [T, hidden] of packed chunks -> the same with the media's rows in place."""
        tokens = embeddings.shape[0]
        self._mask[:tokens] = False
        first_row = 0
        for chunk in chunks:
            self._place(chunk, first_row - chunk.start)
            first_row += chunk.length
        return torch.where(self._mask[:tokens, None], self._buffer[:tokens], embeddings)

    def _place(self, chunk: Chunk, offset: int) -> None:
        """`offset` turns a position of the chunk's request into a row of the step."""
        for piece in chunk.sequence.mask.pieces(chunk.start, chunk.end):
            embedding = self._cache.get(chunk.sequence.request.media[piece.medium].digest)
            rows = slice(piece.position + offset, piece.position + offset + piece.length)
            self._buffer[rows] = embedding[piece.row : piece.row + piece.length]
            self._mask[rows] = True
