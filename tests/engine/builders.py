"""Short ways to say what a test needs: requests, pictures and sequences made by hand. Knows no checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np

from fanlight_engine.core.image_mask import ImageMask
from fanlight_engine.core.messages import AddRequest, ImageInput, MaskRun, SamplingParams, TensorData
from fanlight_engine.core.sequence import Sequence

IMAGE_TOKEN = 7
"""What stands at image positions in prompts made here; the mask says where they are, not this id."""

Part = SequenceOf[int] | ImageInput


def picture(name: str, rows: int, **tensors: np.ndarray) -> ImageInput:
    """An image whose digest is a function of its name alone."""
    return ImageInput(hashlib.sha256(name.encode()).digest(), rows, {key: data(one) for key, one in tensors.items()})


def llava_picture(name: str) -> ImageInput:
    """An image for the LLaVA checkpoint, 16 rows, its pixels drawn from its name."""
    return picture(name, 16, pixel_values=_pixels(name, (1, 3, 56, 56)))


def qwen_picture(name: str, height: int = 4, width: int = 4) -> ImageInput:
    """An image of height x width patches (both even) for the Qwen2.5-VL checkpoint, a row per four patches."""
    pixels = _pixels(name, (height * width, 3 * 2 * 14 * 14))
    return picture(name, height * width // 4, pixel_values=pixels, image_grid_thw=np.array([[1, height, width]]))


def data(array: np.ndarray) -> TensorData:
    """The array as it crosses the seam."""
    return TensorData(array.dtype.str, array.shape, array.tobytes())


def request(request_id: str, *parts: Part, cache_salt: bytes = b"", **sampling: Any) -> AddRequest:
    """A greedy request for up to 4 tokens unless said otherwise: token ids and images in order."""
    ids: list[int] = []
    runs: list[MaskRun] = []
    rows = 0
    for part in parts:
        if isinstance(part, ImageInput):
            runs.append(MaskRun(len(ids), rows, part.embedding_rows))
            ids.extend([IMAGE_TOKEN] * part.embedding_rows)
            rows += part.embedding_rows
        else:
            ids.extend(part)
    images = tuple(part for part in parts if isinstance(part, ImageInput))
    params = SamplingParams(**{"max_new_tokens": 4, **sampling})
    return AddRequest(request_id, tuple(ids), params, images, tuple(runs), cache_salt)


def sequence(request_id: str, *parts: Part, **sampling: Any) -> Sequence:
    """A sequence as the core makes it of such a request."""
    made = request(request_id, *parts, **sampling)
    return Sequence(made, ImageMask(made.images, made.mask_runs, len(made.prompt_ids)))


def words(count: int, seed: int = 0, vocabulary: int = 250) -> list[int]:
    """Token ids that look like text; equal seeds give equal beginnings."""
    return (np.random.default_rng(seed).integers(10, vocabulary, size=4096)[:count]).tolist()


def _pixels(name: str, shape: tuple[int, ...]) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
