"""What a caller can learn of a prompt without generating: the answers of the front's side doors, as frozen plain data.

All counts are of the expanded prompt, and equal to what a generation of the same prompt then uses.
"""

from __future__ import annotations

from dataclasses import dataclass

from fanlight_engine.inputs.media.processing import MediaDecision
from fanlight_engine.request import Modality


@dataclass(frozen=True, slots=True)
class MediaCount:
    """One picture or clip of a prompt; `field` is its path below the Generation.

    `mask_ranges` are (start, length) of the prompt positions that take its embeddings, `embeddings` of them in all;
    `tokens` also counts separators and tags that its placeholder was replaced by.
    """

    field: str
    modality: Modality
    decision: MediaDecision
    tokens: int
    embeddings: int
    mask_ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TokenCount:
    """A prompt, counted. `media` are in the request's order. `kv_pages` of `page_size` tokens hold the prompt.

    `fits` says whether prompt and at least one new token fit into `context_length`; `max_new_tokens` is what an answer
    may then take at most (as asked for, or the rest of the context), 0 where nothing fits.
    """

    prompt_tokens: int
    image_tokens: int
    media: tuple[MediaCount, ...]
    kv_pages: int
    page_size: int
    context_length: int
    max_new_tokens: int
    fits: bool


@dataclass(frozen=True, slots=True)
class TextToken:
    """One token of a text: its id, its bytes, and where these begin in the UTF-8 text (for special tokens added by
    the tokenizer: where the next text begins)."""

    id: int
    data: bytes
    offset: int


@dataclass(frozen=True, slots=True)
class EncodedMedia:
    """A picture or clip whose embeddings are held under `id`, for requests of the same principal and model."""

    id: str
    modality: Modality
    embeddings: int
    hidden_size: int
    grid: tuple[int, int, int] | None
    model_fingerprint: str
    stored_bytes: int
    was_cached: bool
