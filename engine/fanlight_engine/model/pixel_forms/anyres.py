"""ANYRES: a picture as a whole and in tiles, whose padding the model cuts off by the picture's size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

from fanlight_engine.model.pixel_forms.interface import TowerBatch, refuse_other_count


def encode_anyres(batch: TowerBatch) -> Sequence[torch.Tensor]:
    """See FormEncoder. Pictures of fewer tiles than others are filled up with zeros, which the model skips."""
    pixels_name, sizes_name = batch.names
    pixels, sizes = batch.tensors(pixels_name), batch.tensors(sizes_name)
    pinpoints, side = batch.config.image_grid_pinpoints, batch.config.vision_config.image_size
    for medium, one, size in zip(batch.media, pixels, sizes, strict=True):
        needed = image_size_to_num_patches(size[0], pinpoints, side)
        refuse_other_count(medium, "tiles", one.shape[1], needed, f"(height, width) {size[0].tolist()}")
    most = max(one.shape[1] for one in pixels)
    filled = [torch.nn.functional.pad(one, (0, 0) * 3 + (0, most - one.shape[1])) for one in pixels]
    arguments = {pixels_name: batch.on_device(filled), sizes_name: batch.on_device(sizes)}
    return batch.model.model.get_image_features(**arguments).pooler_output
