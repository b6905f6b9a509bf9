"""Position ids of prompts that show media, for families whose positions are not simply 0, 1, 2, ... (M-RoPE).

The model's own `get_rope_index` makes them; here are its arguments, exactly as transformers' `generate` passes them,
and the refusal of what it would misread. Knows no weights and no requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch

from fanlight_engine.core.image_mask import ImageMask, MaskMismatchError
from fanlight_engine.core.messages import MediaInput
from fanlight_engine.request import Modality

_TOKEN_TYPES = {Modality.IMAGE: 1, Modality.VIDEO: 2}


def rope_arguments(
    prompt_ids: Sequence[int],
    mask: ImageMask,
    media: Sequence[MediaInput],
    merge_size: int,
    reads_seconds_per_grid: bool,
) -> dict[str, torch.Tensor]:
    """Keyword arguments of `get_rope_index` for one prompt; a row of patches has `merge_size` of them per embedding.

    Raises ValueError for media that it could not tell apart or has no grid of.
    """
    for number, medium in enumerate(media):
        _refuse_other_grid(number, medium, merge_size)
    _refuse_inseparable(mask, media)
    arguments = {
        "input_ids": torch.tensor([list(prompt_ids)]),
        "mm_token_type_ids": torch.from_numpy(token_types(mask, media, len(prompt_ids)))[None],
    }
    grids = {kind: [medium.grid for medium in media if medium.modality is kind] for kind in Modality}
    for name, kind in (("image_grid_thw", Modality.IMAGE), ("video_grid_thw", Modality.VIDEO)):
        if grids[kind]:
            arguments[name] = torch.tensor(grids[kind])
    if grids[Modality.VIDEO] and reads_seconds_per_grid:
        seconds = [medium.seconds_per_grid for medium in media if medium.modality is Modality.VIDEO]
        arguments["second_per_grid_ts"] = torch.tensor(seconds, dtype=torch.float32)
    return arguments


def rope_positions(
    get_rope_index: Callable[..., tuple[torch.Tensor, torch.Tensor]], arguments: dict[str, torch.Tensor]
) -> np.ndarray:
    """Positions [3, prompt] int64.

    The delta that comes along is left alone: it counts from the greatest position, `generate` from the last token's.
    """
    positions, _ = get_rope_index(**arguments)
    return positions[:, 0].numpy()


def token_types(mask: ImageMask, media: Sequence[MediaInput], length: int) -> np.ndarray:
    """[prompt] int32: 0 where text stands, 1 where a picture's embedding goes, 2 where a clip's does."""
    types = np.zeros(length, dtype=np.int32)
    for piece in mask.pieces_in_order:
        types[piece.position : piece.position + piece.length] = _TOKEN_TYPES[media[piece.medium].modality]
    return types


def _refuse_other_grid(number: int, medium: MediaInput, merge_size: int) -> None:
    if medium.grid is None:
        raise ValueError(
            f"{medium.noun} {number} comes without its grid (t, h, w) of patches, which this model makes positions "
            "from; send it along"
        )
    t, h, w = medium.grid
    described = f"{medium.noun} {number} has a grid of {t} x {h} x {w} patches"
    if min(medium.grid) < 1 or h % merge_size or w % merge_size:
        raise ValueError(f"{described}; all must be at least 1, height and width multiples of {merge_size}")
    rows = t * h * w // merge_size**2
    if rows != medium.embedding_rows:
        raise MaskMismatchError(
            f"{described}, which make {rows} embeddings, and takes {medium.embedding_rows} positions"
        )


def _refuse_inseparable(mask: ImageMask, media: Sequence[MediaInput]) -> None:
    """`get_rope_index` takes every unbroken run of one type for one medium."""
    for piece, following in pairwise(mask.pieces_in_order):
        touch = piece.position + piece.length == following.position
        if piece.medium == following.medium and not touch:
            raise ValueError(f"medium {piece.medium} stands in more than one place, where this model needs it in one")
        before, after = media[piece.medium], media[following.medium]
        if touch and piece.medium != following.medium and before.modality is after.modality:
            raise ValueError(
                f"media {piece.medium} and {following.medium} are both a {before.noun} and touch, so that their "
                "positions could not be told apart; put a token between them"
            )
