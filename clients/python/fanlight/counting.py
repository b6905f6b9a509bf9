"""What a prompt becomes, as plain frozen data: its length, what each picture and clip takes, and the tokens of a text.

Knows no call: it reads messages that someone else received.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fanlight.v1 import model_pb2
from fanlight.values import Grid, Modality, Size, optional, optional_grid, optional_size, read_modality


class TileGrid(NamedTuple):
    """How a picture was cut into tiles, and whether the whole picture, scaled down, follows as one more."""

    columns: int
    rows: int
    has_thumbnail: bool


class TextToken(NamedTuple):
    """A token of a text: its id, its bytes (not always whole characters), and where they begin in the UTF-8 text."""

    id: int
    data: bytes
    offset: int


@dataclass(frozen=True)
class MediaCount:
    """What becomes of one picture or clip.

    field          path of its field in the request
    modality       image or video
    tokens         positions that it takes in the prompt, separators included
    embeddings     how many of them take an embedding
    mask_ranges    which prompt positions these are, in order
    original_size  of the picture, upright, or of the clip's frames; None where only the caller knows
    resized_size   of the whole after resizing, or of one tile; None where only the caller knows
    grid           counts of patches before merging; None for models without a grid
    tiles          how it was cut; None for models that do not tile
    frames         frames that are shown of a clip; None for pictures
    frame_times    when these are shown, in seconds from the clip's beginning; empty where that is not known
    """

    field: str
    modality: Modality
    tokens: int
    embeddings: int
    mask_ranges: tuple[range, ...] = ()
    original_size: Size | None = None
    resized_size: Size | None = None
    grid: Grid | None = None
    tiles: TileGrid | None = None
    frames: int | None = None
    frame_times: tuple[float, ...] = ()


@dataclass(frozen=True)
class TokenCount:
    """A prompt, counted: equal to what a generation of the same prompt then uses.

    prompt_tokens   length after pictures and clips were expanded
    image_tokens    how many of them are filled by embeddings
    media           the pictures and clips, in the order of the prompt
    kv_blocks       blocks of the KV cache that the prompt takes, of kv_block_size tokens each
    context_length  longest prompt and answer together
    max_new_tokens  longest answer: the one asked for, or what is left of the context; 0 when nothing is left
    fits            whether the prompt and at least one new token fit
    """

    prompt_tokens: int
    image_tokens: int
    media: tuple[MediaCount, ...]
    kv_blocks: int
    kv_block_size: int
    context_length: int
    max_new_tokens: int
    fits: bool


def read_token_count(message: model_pb2.CountTokensResponse) -> TokenCount:
    """Reads the answer of CountTokens."""
    return TokenCount(
        prompt_tokens=message.prompt_tokens,
        image_tokens=message.image_tokens,
        media=tuple(read_media_count(each) for each in message.media),
        kv_blocks=message.kv_blocks,
        kv_block_size=message.kv_block_size,
        context_length=message.context_length,
        max_new_tokens=message.max_new_tokens,
        fits=message.fits,
    )


def read_media_count(message: model_pb2.MediaCount) -> MediaCount:
    """Reads the message of the same name."""
    tiles = optional(message, "tiles")
    return MediaCount(
        field=message.field,
        modality=read_modality(message.modality),
        tokens=message.tokens,
        embeddings=message.embeddings,
        mask_ranges=tuple(range(each.start, each.start + each.length) for each in message.mask_ranges),
        original_size=optional_size(message, "original_size"),
        resized_size=optional_size(message, "resized_size"),
        grid=optional_grid(message, "grid"),
        tiles=None if tiles is None else TileGrid(tiles.columns, tiles.rows, tiles.has_thumbnail),
        frames=optional(message, "frames"),
        frame_times=tuple(message.frame_times),
    )


def read_text_tokens(message: model_pb2.TokenizeResponse) -> list[TextToken]:
    """Reads the answer of Tokenize."""
    return [TextToken(token.id, token.data, token.offset) for token in message.tokens]
