"""LLaVA-NeXT's layout of a picture: the best of a list of resolutions, the padding in it, and the features it yields.

    picture -> resized into the resolution, aspect ratio kept -> padded evenly -> tiles, row by row
            -> resized to one tile, aspect ratio not kept: the first of all tiles

The tower's features of the tiles are laid out as the picture, their padding is cut off, and every row gets a newline.
The model computes the same layout from the picture's size, so each number here must be the model's to the last digit.
Knows no pixels. Sizes are (height, width), as in transformers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Size = tuple[int, int]
"""(height, width) in pixels."""
_DECIMALS = 7
"""To which the model rounds a side before it cuts off fractions, so that 335.9999999 counts as 336."""


@dataclass(frozen=True, slots=True)
class AnyresLayout:
    """Where one picture lies. `padding` is (top, left); what is left over at the bottom and right is padding too."""

    resolution: Size
    resized: Size
    padding: Size


def anyres_layout(size: Size, pinpoints: Sequence[Size]) -> AnyresLayout:
    """The layout of a picture of `size`."""
    resolution = best_resolution(size, pinpoints)
    resized = _fitted(size, resolution)
    padding = (resolution[0] - resized[0]) // 2, (resolution[1] - resized[1]) // 2
    return AnyresLayout(resolution, resized, padding)


def best_resolution(size: Size, pinpoints: Sequence[Size]) -> Size:
    """The resolution that keeps most of the picture's pixels; of equals the one that wastes least, then the first."""
    height, width = size

    def kept(resolution: Size) -> int:
        scale = min(resolution[1] / width, resolution[0] / height)
        return min(int(width * scale) * int(height * scale), width * height)

    return max(pinpoints, key=lambda resolution: (kept(resolution), kept(resolution) - resolution[0] * resolution[1]))


def anyres_features(size: Size, pinpoints: Sequence[Size], tile_size: int, patches_per_side: int) -> int:
    """Features of a picture of `size`: those of the whole picture, of its tiles without padding, and the newlines."""
    resolution = best_resolution(size, pinpoints)
    height, width = size
    rows, columns = (side // tile_size * patches_per_side for side in resolution)
    if width / height > columns / rows:
        rows -= (rows - _unpadded(height, columns / width)) // 2 * 2
    else:
        columns -= (columns - _unpadded(width, rows / height)) // 2 * 2
    return patches_per_side**2 + rows * columns + rows


def _fitted(size: Size, resolution: Size) -> Size:
    """The largest size within the resolution that keeps the aspect ratio."""
    (height, width), (most_height, most_width) = size, resolution
    scale_height, scale_width = most_height / height, most_width / width
    if scale_width < scale_height:
        return min(math.ceil(height * scale_width), most_height), most_width
    return most_height, min(math.ceil(width * scale_height), most_width)


def _unpadded(side: int, scale: float) -> int:
    return int(round(side * scale, _DECIMALS))
