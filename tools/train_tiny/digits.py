"""Handwritten digits of scikit-learn's `load_digits`, split once into training and held-out ones.

The 8 by 8 originals come with scikit-learn itself; nothing is downloaded.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image

HELD_OUT_FRACTION = 0.2
_SPLIT_SEED = 20240229


@lru_cache(maxsize=1)
def _digit_splits() -> dict[bool, list[tuple[np.ndarray, int]]]:
    """Keyed by `held_out`: pairs of an 8 by 8 array of uint8 ink (0 to 255) and the digit it shows."""
    from sklearn.datasets import load_digits  # a second of imports that scenes without digits do not need

    digits: Any = load_digits()
    order = list(range(len(digits.target)))
    random.Random(_SPLIT_SEED).shuffle(order)
    held_out_count = int(HELD_OUT_FRACTION * len(order))
    pairs = [((digits.images[index] * (255 / 16)).astype(np.uint8), int(digits.target[index])) for index in order]
    return {True: pairs[:held_out_count], False: pairs[held_out_count:]}


def digit_picture(rng: random.Random, side: int, *, held_out: bool) -> tuple[Image.Image, int]:
    """A digit as a greyscale mask of `side` by `side` pixels (255 is ink), and its value.

    Training digits are turned, sheared and shifted a little, because 1,400 of them are soon known by heart;
    held-out ones stay as they were written. One empty
    pixel around the original keeps the turned strokes whole.
    """
    ink, digit = rng.choice(_digit_splits()[held_out])
    mask = Image.fromarray(np.pad(ink, 1)).resize((side, side), Image.Resampling.BICUBIC)
    if held_out:
        return mask, digit
    turn, shear = rng.uniform(-0.16, 0.16), rng.uniform(-0.15, 0.15)
    stretch_x, stretch_y = rng.uniform(0.92, 1.15), rng.uniform(0.92, 1.1)
    middle = side / 2
    a, b, d, e = stretch_x, shear + turn, -turn, stretch_y
    c = middle - a * middle - b * middle + rng.uniform(-0.05, 0.05) * side
    f = middle - d * middle - e * middle + rng.uniform(-0.04, 0.04) * side
    return mask.transform((side, side), Image.Transform.AFFINE, (a, b, c, d, e, f), Image.Resampling.BILINEAR), digit
