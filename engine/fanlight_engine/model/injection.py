"""Puts embeddings of pictures and clips where the image mask says, through buffers and a mask at fixed addresses.

All are allocated once for the largest step and cleared per step, and the choice between text and medium is one
unconditional `where`: what a captured prefill needs. A row of an embedding is the hidden state, and behind it what the
first decoder layers get besides (DeepStack), which is zero for text. Steps without media never come here.
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
        self._hidden_size = adapter.hidden_size
        layers = adapter.embedding_width // adapter.hidden_size - 1
        shape = (max_step_tokens, adapter.hidden_size)
        self._buffer, *self._layer_buffers = (
            torch.zeros(shape, dtype=adapter.dtype, device=adapter.device) for _ in range(1 + layers)
        )
        self._mask = torch.zeros(max_step_tokens, dtype=torch.bool, device=adapter.device)

    def inject(
        self, embeddings: torch.Tensor, chunks: Sequence[Chunk]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Text embeddings [T, hidden] of packed chunks -> the same with the media's rows in place, and layer features.

        These are [T, hidden] for each of the first decoder layers that get any, zero where text stands.
        """
        tokens = embeddings.shape[0]
        self._mask[:tokens] = False
        for buffer in self._layer_buffers:
            buffer[:tokens] = 0
        first_row = 0
        for chunk in chunks:
            self._place(chunk, first_row - chunk.start)
            first_row += chunk.length
        inputs = torch.where(self._mask[:tokens, None], self._buffer[:tokens], embeddings)
        return inputs, tuple(buffer[:tokens] for buffer in self._layer_buffers)

    def _place(self, chunk: Chunk, offset: int) -> None:
        """`offset` turns a position of the chunk's request into a row of the step."""
        for piece in chunk.sequence.mask.pieces(chunk.start, chunk.end):
            embedding = self._cache.get(chunk.sequence.request.media[piece.medium].digest)
            rows = slice(piece.position + offset, piece.position + offset + piece.length)
            taken = embedding[piece.row : piece.row + piece.length].split(self._hidden_size, dim=1)
            for buffer, part in zip((self._buffer, *self._layer_buffers), taken, strict=True):
                buffer[rows] = part
            self._mask[rows] = True
