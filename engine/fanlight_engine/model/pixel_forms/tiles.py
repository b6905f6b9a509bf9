"""TILES: square tiles of one size, any number of them to a picture, or the frames of a clip as such tiles."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch

from fanlight_engine.model.pixel_forms.interface import TowerBatch


def encode_tiles(batch: TowerBatch) -> Sequence[torch.Tensor]:
    """See FormEncoder."""
    (pixels_name,) = batch.names
    pixels = batch.tensors(pixels_name)
    features = iter(batch.model.model.get_image_features(pixel_values=batch.on_device(pixels)).pooler_output)
    return [torch.cat(list(islice(features, one.shape[0]))) for one in pixels]
