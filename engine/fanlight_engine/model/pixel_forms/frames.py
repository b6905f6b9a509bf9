"""FRAMES: clips whose frames are square pictures of one size, through `get_video_features`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fanlight_engine.model.pixel_forms.interface import TowerBatch


def encode_frames(batch: TowerBatch) -> Sequence[torch.Tensor]:
    """See FormEncoder; but the tower runs once for each length of clips, of which the model takes one at a time."""
    (pixels_name,) = batch.names
    pixels = batch.tensors(pixels_name)
    features: dict[int, torch.Tensor] = {}
    for frames in dict.fromkeys(one.shape[1] for one in pixels):
        numbers = [number for number, one in enumerate(pixels) if one.shape[1] == frames]
        clips = batch.on_device([pixels[number] for number in numbers])
        encoded = batch.model.model.get_video_features(**{pixels_name: clips}).pooler_output
        features.update(zip(numbers, encoded, strict=True))
    return [features[number] for number in range(len(pixels))]
