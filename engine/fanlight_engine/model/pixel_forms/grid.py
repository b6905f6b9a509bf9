"""GRID: rows of patches and a grid (t, h, w), of pictures or of clips, through `get_image_features` or
`get_video_features`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fanlight_engine.model.pixel_forms.interface import TowerBatch, refuse_other_count
from fanlight_engine.request import Modality


def encode_grids(batch: TowerBatch) -> Sequence[torch.Tensor]:
    """See FormEncoder."""
    pixels_name, grid_name = batch.names
    pixels, grids = batch.tensors(pixels_name), batch.tensors(grid_name)
    for medium, one, grid in zip(batch.media, pixels, grids, strict=True):
        refuse_other_count(medium, "patches", one.shape[0], int(grid.prod()), f"a grid of {grid.tolist()}")
    arguments = {pixels_name: batch.on_device(pixels), grid_name: batch.on_device(grids)}
    model = batch.model.model
    encode = model.get_video_features if batch.modality is Modality.VIDEO else model.get_image_features
    output = encode(**arguments)
    return _wide_rows(output) if batch.family.adds_features_to_layers else output.pooler_output


def _wide_rows(output: Any) -> Sequence[torch.Tensor]:
    """Each row of a medium, with its features of the first decoder layers behind it."""
    return [torch.cat(parts, dim=-1) for parts in zip(output.pooler_output, *output.deepstack_features, strict=True)]
