"""ANYRES: a picture as a whole and in tiles, whose padding the model cuts off by the picture's size.

Families that split only a lone picture bring nothing but the whole of each picture that stood beside others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

from fanlight_engine.model.pixel_forms.interface import TowerBatch, refuse_other_count


def encode_anyres(batch: TowerBatch) -> Sequence[torch.Tensor]:
    """See FormEncoder. Pictures of fewer tiles than others are filled up with zeros, which the model skips."""
    pixels_name, sizes_name = batch.names
    pixels, sizes = batch.tensors(pixels_name), batch.tensors(sizes_name)
    is_whole = [batch.family.splits_only_a_lone_picture and one.shape[1] == 1 for one in pixels]
    pinpoints, side = batch.config.image_grid_pinpoints, batch.config.vision_config.image_size
    for medium, one, size, whole in zip(batch.media, pixels, sizes, is_whole, strict=True):
        needed = 1 if whole else image_size_to_num_patches(size[0], pinpoints, side)
        refuse_other_count(medium, "tiles", one.shape[1], needed, f"(height, width) {size[0].tolist()}")
    most = max(one.shape[1] for one in pixels)
    filled = [torch.nn.functional.pad(one, (0, 0) * 3 + (0, most - one.shape[1])) for one in pixels]
    order = sorted(range(len(pixels)), key=is_whole.__getitem__)
    features = batch.model.model.get_image_features(
        **{
            pixels_name: batch.on_device([filled[number] for number in order]),
            sizes_name: batch.on_device([sizes[number] for number in order]),
        },
        **_prompts_of(sum(is_whole), len(pixels)),
    ).pooler_output
    return [features[place] for place in sorted(range(len(order)), key=order.__getitem__)]


def _prompts_of(wholes: int, pictures: int) -> dict[str, Any]:
    """How many pictures the model is told that each prompt has: split ones have one each, the wholes behind them share
    one. A single whole is said to be one of two, since a prompt of one picture would mean that it is split."""
    if not wholes:
        return {}
    return {"batch_num_images": [1] * (pictures - wholes) + [max(2, wholes)]}
