"""MASKED_TILES: tiles of one size with a mask of what is picture in them, any number to a picture, or frames of a clip.

Towers of this form leave out tiles of nothing but zeros, which fill up a batch. A medium may well have such a tile of
its own, and its rows must stay its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch

from fanlight_engine.core.image_mask import MaskMismatchError
from fanlight_engine.core.messages import MediaInput
from fanlight_engine.model.pixel_forms.interface import TowerBatch


def encode_masked_tiles(batch: TowerBatch) -> Sequence[torch.Tensor]:
    """See FormEncoder. Every tile goes in as a picture of its own, so nothing is filled up; a run per size of tiles."""
    pixels, masks = (batch.tensors(name) for name in batch.names)
    for medium, one, mask in zip(batch.media, pixels, masks, strict=True):
        _refuse_other_mask(medium, one, mask)
    embeddings: dict[int, torch.Tensor] = {}
    for size in dict.fromkeys(one.shape[-2:] for one in pixels):
        numbers = [number for number, one in enumerate(pixels) if one.shape[-2:] == size]
        tiles = batch.on_device([pixels[number][0] for number in numbers])
        shown = batch.on_device([masks[number][0] for number in numbers])
        features = iter(_features_of_tiles(batch, tiles, shown))
        for number in numbers:
            embeddings[number] = torch.cat(list(islice(features, pixels[number].shape[1])))
    return [embeddings[number] for number in range(len(pixels))]


def _refuse_other_mask(medium: MediaInput, pixels: torch.Tensor, mask: torch.Tensor) -> None:
    needed = (*pixels.shape[:2], *pixels.shape[3:])
    if mask.shape != needed:
        raise MaskMismatchError(
            f"a {medium.noun} has a pixel mask of shape {tuple(mask.shape)} where its pixels of shape "
            f"{tuple(pixels.shape)} need {needed}; send them together"
        )


def _features_of_tiles(batch: TowerBatch, tiles: torch.Tensor, shown: torch.Tensor) -> Sequence[torch.Tensor]:
    """[rows, embedding width] of each of `tiles` [tiles, 3, H, W], of which `shown` [tiles, H, W] is not padding."""
    pixels_name, mask_name = batch.names
    arguments = {pixels_name: _never_all_zero(tiles.to(batch.model.dtype))[:, None], mask_name: shown[:, None]}
    return batch.model.model.get_image_features(**arguments).pooler_output


def _never_all_zero(tiles: torch.Tensor) -> torch.Tensor:
    """The tiles; one number of each that has nothing but zeros becomes the least there is, which changes no feature."""
    corners = tiles[:, 0, 0, 0]
    corners[(tiles == 0).flatten(1).all(1)] = torch.finfo(tiles.dtype).smallest_normal
    return tiles
