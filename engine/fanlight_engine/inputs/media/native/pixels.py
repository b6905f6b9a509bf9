"""Pixels on their way from a picture to a tower: resized, padded, normalised.

Pictures are [height, width, 3] uint8 with the channels last, because that is how they come from decoders, and how the
resize of torch is fastest: with AVX2 it takes about a tenth of Pillow's time. It differs from it by one grey level, and
by more where colours saturate: torch resizes rows before columns, Pillow from version 13 on whichever is cheaper.
(Channels first, as transformers' processors hold pictures, costs two copies more.) Knows no budgets and no towers.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from fanlight_engine.inputs.media.native.pixel_statistics import PixelStatistics
from fanlight_engine.tensor_data import TensorData

_WHITE = 255.0


def pixels_of(picture: Image.Image) -> np.ndarray:
    """The pixels of an RGB picture, not to be written to."""
    return np.asarray(picture)


def resized(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bicubic, smoothed where it shrinks: what Pillow's default filter does."""
    if pixels.shape[:2] == (height, width):
        return pixels
    batch = _shared(pixels).permute(2, 0, 1)[None]
    scaled = F.interpolate(batch, size=(height, width), mode="bicubic", antialias=True)
    return scaled[0].permute(1, 2, 0).contiguous().numpy()


def _shared(pixels: np.ndarray) -> torch.Tensor:
    """The same memory for torch, which by this way does not ask that it may be written to."""
    try:
        return torch.from_dlpack(pixels)
    except BufferError:  # numpy before 2.1 hands out nothing that is read-only
        return torch.from_numpy(pixels.copy())


def padded(pixels: np.ndarray, height: int, width: int, top: int, left: int) -> np.ndarray:
    """On a black canvas of `height` x `width`."""
    canvas = np.zeros((height, width, 3), np.uint8)
    canvas[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return canvas


class Normalizer:
    """(value / 255 - mean) / std, per channel, with the very operations of transformers' processors: bit for bit."""

    def __init__(self, statistics: PixelStatistics) -> None:
        self._mean = torch.tensor(statistics.mean)[:, None] * _WHITE
        self._std = torch.tensor(statistics.std)[:, None] * _WHITE

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """[N, 3, K] uint8 -> the same shape in float32."""
        return torch.from_numpy(pixels).float().sub_(self._mean).div_(self._std).numpy()


def float_tensor(array: np.ndarray, shape: tuple[int, ...]) -> TensorData:
    """The float32 numbers of an array, which may be broadcast, as a tensor of this shape; one copy."""
    little = array.astype("<f4", copy=False)
    return TensorData("float32", shape, little.tobytes())
