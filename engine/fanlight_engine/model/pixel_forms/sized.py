"""SIZED: pictures at their own resolution, each with its (height, width)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from fanlight_engine.model.pixel_forms.interface import TowerBatch, refuse_other_count

_MOST_PIXELS_TOGETHER = 1 << 20
"""Towers of this form lay the patches of all pictures in one row and mask each from the others, which costs the square
of them all; beyond this many pixels a picture is better off in a run of its own."""


def encode_sized(batch: TowerBatch) -> Sequence[torch.Tensor]:
    """See FormEncoder. Smaller pictures are filled up with zeros, which the model cuts off by their size."""
    pixels_name, sizes_name = batch.names
    pixels, sizes = batch.tensors(pixels_name), batch.tensors(sizes_name)
    for medium, one, size in zip(batch.media, pixels, sizes, strict=True):
        why = f"(height, width) {size[0].tolist()}"
        for axis, side in enumerate(("height", "width")):
            refuse_other_count(medium, f"pixels of {side}", one.shape[2 + axis], int(size[0, axis]), why)
    features: list[torch.Tensor] = []
    for run in _runs([one[0, 0].numel() for one in pixels]):
        most = [max(one.shape[axis] for one in pixels[run]) for axis in (2, 3)]
        filled, shown = [_filled(one, *most) for one in pixels[run]], sizes[run]
        pictures = len(filled)
        if pictures == 1 and _takes_one_row(batch, shown[0]):
            filled, shown = filled * 2, shown * 2
        arguments = {pixels_name: batch.on_device(filled), sizes_name: batch.on_device(shown)}
        features.extend(batch.model.model.get_image_features(**arguments).pooler_output[:pictures])
    return features


def _takes_one_row(batch: TowerBatch, size: torch.Tensor) -> bool:
    """Whether a picture of this [1, (height, width)] is a single embedding. Some models drop the axis of rows where all
    that they were shown is one row; such a picture goes in beside itself."""
    cell = int(batch.config.vision_config.patch_size) * int(getattr(batch.config, "spatial_merge_size", 1))
    return bool((size // cell).prod() == 1)


def _runs(areas: Sequence[int]) -> Iterator[slice]:
    """Neighbouring pictures of these areas that go through the tower together."""
    start = 0
    for end in range(1, len(areas) + 1):
        if end == len(areas) or sum(areas[start : end + 1]) > _MOST_PIXELS_TOGETHER:
            yield slice(start, end)
            start = end


def _filled(pixels: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """[1, 3, height, width] with the picture at the top left."""
    return torch.nn.functional.pad(pixels, (0, width - pixels.shape[3], 0, height - pixels.shape[2]))
