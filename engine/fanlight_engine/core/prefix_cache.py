"""Finds pages that already hold the KV of a prompt's beginning. Knows no tensors.

Only full pages are shared. A page's key is a hash chain: SHA-256 over the key before it, the page's token ids, and for
each piece of a medium in it the digest, what positions are made from, the row and where it lies. Equal keys therefore
mean equal tokens, equal media and equal offsets all the way back to the first token; the same text around another
medium never matches. The chain starts from the request's cache salt and the digest of its LoRA adapter, so callers with
different salts never share, nor do requests whose keys and values come from different weights or rotary factors.

Where a span of positions sees the whole of itself, the key of the page that it begins in covers it up to its end, and
says where that is: equal keys mean equal spans, too. Later pages of the span get this from the chain.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from fanlight_engine.core.block_pool import BlockPool
from fanlight_engine.core.image_mask import ImageMask
from fanlight_engine.core.messages import MediaInput


def root_key(cache_salt: bytes, lora_digest: bytes = b"", long_factors: bool = False) -> bytes:
    """The key before the first page; `lora_digest` is empty for the checkpoint itself."""
    of_factors = b"long factors" if long_factors else b""
    return hashlib.sha256(hashlib.sha256(cache_salt).digest() + lora_digest + of_factors).digest()


def next_key(
    previous: bytes,
    tokens: Sequence[int],
    start: int,
    mask: ImageMask,
    media: Sequence[MediaInput],
    spans: Sequence[tuple[int, int]] = (),
) -> bytes:
    """The key of the page that holds `tokens`, the first of them at position `start`.

    `spans` are those that begin in the page; `tokens` go on beyond it, as far as the last of them does.
    """
    chain = hashlib.sha256(previous)
    chain.update(array("q", (len(spans), len(tokens), *tokens)).tobytes())
    for first, end in spans:
        chain.update(array("q", (first - start, end - start)).tobytes())
    for piece in mask.pieces(start, start + len(tokens)):
        medium = media[piece.medium]
        chain.update(medium.digest)
        chain.update(repr((medium.modality.value, medium.grid, medium.seconds_per_grid)).encode())
        chain.update(array("q", (piece.position - start, piece.row, piece.length)).tobytes())
    return chain.digest()


class PrefixCache:
    """Keys to pages, for the pages of one pool."""

    def __init__(self, pool: BlockPool, enabled: bool = True) -> None:
        self._pool = pool
        self._enabled = enabled
        self._page_by_key: dict[bytes, int] = {}
        self._key_by_page: dict[int, bytes] = {}
        pool.on_evict = self._forget

    def match(self, keys: Sequence[bytes]) -> list[int]:
        """Pages of the longest known run of leading keys. They are not retained yet."""
        pages: list[int] = []
        for key in keys:
            page = self._page_by_key.get(key)
            if page is None:
                break
            pages.append(page)
        return pages

    def register(self, key: bytes, page: int) -> None:
        """Say that a held page now holds the KV for `key`. The first page for a key stays."""
        if not self._enabled or key in self._page_by_key or page in self._key_by_page:
            return
        self._page_by_key[key] = page
        self._key_by_page[page] = key
        self._pool.remember(page)

    def _forget(self, page: int) -> None:
        del self._page_by_key[self._key_by_page.pop(page)]
