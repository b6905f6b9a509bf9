"""Position ids of prompts that show media, for families whose positions are not simply 0, 1, 2, ... (M-RoPE).

The model's own `get_rope_index` makes them; here are its arguments, exactly as transformers' `generate` passes them,
and the refusal of what it would misread. Knows no weights and no requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from fanlight_engine.checkpoints.families import Family
from fanlight_engine.core.image_mask import ImageMask, MaskMismatchError, Piece
from fanlight_engine.core.messages import MediaInput
from fanlight_engine.request import Modality

_TOKEN_TYPES = {Modality.IMAGE: 1, Modality.VIDEO: 2}


def rope_arguments(
    prompt_ids: Sequence[int],
    mask: ImageMask,
    media: Sequence[MediaInput],
    merge_size: int,
    family: Family,
) -> dict[str, torch.Tensor]:
    """Keyword arguments of `get_rope_index` for one prompt; a row of patches has `merge_size` of them per embedding.

    Raises ValueError for media that it could not tell apart or has no grid of.
    """
    for number, medium in enumerate(media):
        _refuse_other_grid(number, medium, merge_size)
    stretches = _stretches(mask)
    _refuse_other_stretches(stretches, media, family.clip_in_pieces)
    _refuse_inseparable(stretches, media)
    arguments = {
        "input_ids": torch.tensor([list(prompt_ids)]),
        "mm_token_type_ids": torch.from_numpy(token_types(mask, media, len(prompt_ids)))[None],
    }
    grids = {kind: [medium.grid for medium in media if medium.modality is kind] for kind in Modality}
    for name, kind in (("image_grid_thw", Modality.IMAGE), ("video_grid_thw", Modality.VIDEO)):
        if grids[kind]:
            arguments[name] = torch.tensor(grids[kind])
    if grids[Modality.VIDEO] and family.reads_seconds_per_grid:
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


def _stretches(mask: ImageMask) -> list[Piece]:
    """The unbroken runs of positions that take rows of one medium, in the prompt's order."""
    stretches: list[Piece] = []
    for piece in mask.pieces_in_order:
        last = stretches[-1] if stretches else None
        if last and last.medium == piece.medium and last.position + last.length == piece.position:
            stretches[-1] = replace(last, length=last.length + piece.length)
        else:
            stretches.append(piece)
    return stretches


def _needed_lengths(medium: MediaInput, clip_in_pieces: bool) -> list[int]:
    """Rows of each stretch that `get_rope_index` takes the medium's grid for."""
    is_in_pieces = clip_in_pieces and medium.modality is Modality.VIDEO
    pieces = medium.grid[0] if is_in_pieces and medium.grid else 1
    return [medium.embedding_rows // pieces] * pieces


def _refuse_other_stretches(stretches: Sequence[Piece], media: Sequence[MediaInput], clip_in_pieces: bool) -> None:
    """A medium whose rows stand in other stretches than its grid says would get the positions of another."""
    lengths_of: list[list[int]] = [[] for _ in media]
    for stretch in stretches:
        lengths_of[stretch.medium].append(stretch.length)
    for number, (medium, lengths) in enumerate(zip(media, lengths_of, strict=True)):
        needed = _needed_lengths(medium, clip_in_pieces)
        if lengths == needed:
            continue
        if len(needed) == 1:
            raise ValueError(f"medium {number} stands in more than one place, where this model needs it in one")
        raise ValueError(
            f"clip {number} stands in stretches of {lengths} positions, where this model needs {len(needed)} of "
            f"{needed[0]}, one for each step of its grid, with a token between them"
        )


def _refuse_inseparable(stretches: Sequence[Piece], media: Sequence[MediaInput]) -> None:
    """`get_rope_index` takes every unbroken run of one type for one medium, or for one step of a clip."""
    for stretch, following in pairwise(stretches):
        before, after = media[stretch.medium], media[following.medium]
        if stretch.position + stretch.length == following.position and before.modality is after.modality:
            raise ValueError(
                f"media {stretch.medium} and {following.medium} are both a {before.noun} and touch, so that their "
                "positions could not be told apart; put a token between them"
            )
