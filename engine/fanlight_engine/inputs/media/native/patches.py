"""Pixels -> rows of patches, in either of two orders, and the fold that merges 2 x 2 patches.

    row major   rows of patches from the top left, frame after frame; each patch flattened as (channel, y, x)
    tower       as towers of the Qwen2-VL kind take them: T frames make one temporal patch, flattened as (channel,
                frame, y, x), and the m x m patches that become one embedding stand together, row after row

Everything here is one strided copy. Grids are (t, h, w) in patches, before they are merged. Knows no sizes and no
statistics.
"""

from __future__ import annotations

import numpy as np
import torch

CHANNELS = 3


def row_major_patches(pixels: np.ndarray, patch_dim: int) -> np.ndarray:
    """One picture [H, W, 3] -> [h * w, 3, p * p]."""
    height, width, _ = pixels.shape
    blocks = pixels.reshape(height // patch_dim, patch_dim, width // patch_dim, patch_dim, CHANNELS)
    return np.ascontiguousarray(blocks.transpose(0, 2, 4, 1, 3)).reshape(-1, CHANNELS, patch_dim**2)


def tower_patches(frames: np.ndarray, patch_dim: int, merge: int) -> np.ndarray:
    """The frames of one temporal patch [T, H, W, 3] -> [h * w, 3, T * p * p]."""
    count, height, width, _ = frames.shape
    blocks = frames.reshape(
        count,
        *(height // patch_dim // merge, merge, patch_dim),
        *(width // patch_dim // merge, merge, patch_dim),
        CHANNELS,
    )
    # (T, h, mh, y, w, mw, x, C) -> (h, w, mh, mw, C, T, y, x)
    order = blocks.transpose(1, 4, 2, 5, 7, 0, 3, 6)
    return np.ascontiguousarray(order).reshape(-1, CHANNELS, count * patch_dim**2)


def row_major_to_tower(
    patches: np.ndarray, grid: tuple[int, int, int], merge: int, temporal_patch_size: int
) -> np.ndarray:
    """Row-major patches -> the tower's pixel_values [t * h * w, C * T * p * p], where `grid` (t, h, w) is the tower's.

    `patches` is [t * h * w, C * p * p], each frame standing for a whole temporal patch as a still picture does, or
    [t * T * h * w, C * p * p] with all frames. Raises ValueError for shapes that do not belong together.
    """
    t, h, w = grid
    frames, remainder = divmod(len(patches), t * h * w)
    if remainder or frames not in (1, temporal_patch_size) or h % merge or w % merge or patches.shape[1] % CHANNELS:
        raise ValueError(
            f"{list(patches.shape)} row-major patches do not make a grid of {t} x {h} x {w}, merged {merge} x {merge}, "
            f"of {temporal_patch_size} frames each"
        )
    blocks = patches.reshape(t, frames, h // merge, merge, w // merge, merge, CHANNELS, -1)
    # (t, T, h, mh, w, mw, C, yx) -> (t, h, w, mh, mw, C, T, yx)
    order = blocks.transpose(0, 2, 4, 3, 5, 6, 1, 7)
    repeated = np.broadcast_to(order, (*order.shape[:6], temporal_patch_size, order.shape[7]))
    return repeated.reshape(t * h * w, -1)


def square_tiles(pixels: np.ndarray, tile_size: int) -> np.ndarray:
    """A picture [S * rows, S * columns, 3] -> its tiles row by row, [rows * columns, 3, S * S]."""
    return row_major_patches(pixels, tile_size)


def pixel_shuffle(features: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Fold every square of 2 x 2 features into one: [..., height * width, C] -> [..., height * width / 4, 4 * C].

    `height` and `width` count features, and any even pair is fine. The four parts of a fold are its top left, top
    right, bottom left and bottom right feature. Raises ValueError for sides that do not fit. Towers of
    transformers fold by themselves; this is for callers that compute embeddings on their own.
    """
    *lead, count, channels = features.shape
    if height % 2 or width % 2 or height * width != count:
        raise ValueError(f"{count} features are no grid of {height} x {width} with even sides")
    squares = features.reshape(*lead, height // 2, 2, width // 2, 2, channels)
    return squares.transpose(-4, -3).reshape(*lead, count // 4, 4 * channels)
