"""Short ways to say what a test needs: requests, media and sequences made by hand. Knows no checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np

from fanlight_engine.checkpoints.families import Bidirectional
from fanlight_engine.core.image_mask import ImageMask
from fanlight_engine.core.messages import EMBEDDINGS, AddRequest, MaskRun, MediaInput, SamplingParams
from fanlight_engine.core.sequence import Sequence
from fanlight_engine.core.spans import spans_of
from fanlight_engine.request import Modality
from fanlight_engine.tensor_data import TensorData, tensor_data_of

IMAGE_TOKEN = 7
"""What stands at media's positions in prompts made here; the mask says where they are, not this id."""

Part = SequenceOf[int] | MediaInput


def picture(name: str, rows: int, **tensors: np.ndarray) -> MediaInput:
    """A picture whose digest is a function of its name alone."""
    return MediaInput(digest_of(name), rows, {key: data(one) for key, one in tensors.items()})


def llava_picture(name: str, tiles: int = 1) -> MediaInput:
    """A picture for the LLaVA checkpoint, 16 rows per tile, its pixels drawn from its name."""
    return picture(name, 16 * tiles, pixel_values=_pixels(name, (tiles, 3, 56, 56)))


def qwen_picture(name: str, height: int = 4, width: int = 4) -> MediaInput:
    """A picture of height x width patches (both even) for a Qwen-VL checkpoint, a row per four patches."""
    pixels, grid = _patches(name, (1, height, width))
    tensors = {"pixel_values": data(pixels), "image_grid_thw": data(np.array([grid]))}
    return MediaInput(digest_of(name), height * width // 4, tensors, grid=grid)


def qwen_clip(name: str, steps: int = 2, height: int = 4, width: int = 4, seconds_per_grid: float = 1.0) -> MediaInput:
    """A clip of steps x height x width patches, each of two frames, for a Qwen-VL checkpoint."""
    pixels, grid = _patches(name, (steps, height, width))
    return MediaInput(
        digest=digest_of(f"clip {name}"),
        embedding_rows=steps * height * width // 4,
        tensors={"pixel_values_videos": data(pixels), "video_grid_thw": data(np.array([grid]))},
        modality=Modality.VIDEO,
        grid=grid,
        seconds_per_grid=seconds_per_grid,
    )


def embedded(
    name: str, embeddings: TensorData, grid: tuple[int, int, int] | None = None, modality: Modality = Modality.IMAGE
) -> MediaInput:
    """A medium that comes as its embeddings [rows, hidden]."""
    return MediaInput(
        digest=digest_of(f"embedded {name}"),
        embedding_rows=embeddings.shape[0],
        tensors={EMBEDDINGS: embeddings},
        modality=modality,
        is_embedded=True,
        grid=grid,
    )


def digest_of(name: str) -> bytes:
    """A digest that is a function of the name; clips and embeddings put their kind before it, as the front does."""
    return hashlib.sha256(name.encode()).digest()


def data(array: np.ndarray) -> TensorData:
    """The array as it crosses the seam."""
    return tensor_data_of(array)


def request(request_id: str, *parts: Part, cache_salt: bytes = b"", **sampling: Any) -> AddRequest:
    """A greedy request for up to 4 tokens unless said otherwise: token ids and media in order."""
    ids: list[int] = []
    runs: list[MaskRun] = []
    rows = 0
    for part in parts:
        if isinstance(part, MediaInput):
            runs.append(MaskRun(len(ids), rows, part.embedding_rows))
            ids.extend([IMAGE_TOKEN] * part.embedding_rows)
            rows += part.embedding_rows
        else:
            ids.extend(part)
    media = tuple(part for part in parts if isinstance(part, MediaInput))
    params = SamplingParams(**{"max_new_tokens": 4, **sampling})
    return AddRequest(request_id, tuple(ids), params, media, tuple(runs), cache_salt)


def sequence(
    request_id: str, *parts: Part, bidirectional: Bidirectional = Bidirectional.NONE, **sampling: Any
) -> Sequence:
    """A sequence as the core of such a family makes it of such a request."""
    made = request(request_id, *parts, **sampling)
    mask = ImageMask(made.media, made.mask_runs, len(made.prompt_ids))
    return Sequence(made, mask, spans_of(bidirectional, mask, len(made.prompt_ids)))


def words(count: int, seed: int = 0, vocabulary: int = 250) -> list[int]:
    """Token ids that look like text; equal seeds give equal beginnings."""
    return (np.random.default_rng(seed).integers(10, vocabulary, size=4096)[:count]).tolist()


def _patches(name: str, grid: tuple[int, int, int]) -> tuple[np.ndarray, tuple[int, int, int]]:
    steps, height, width = grid
    return _pixels(name, (steps * height * width, 3 * 2 * 14 * 14)), grid


def _pixels(name: str, shape: tuple[int, ...]) -> np.ndarray:
    seed = int.from_bytes(digest_of(name)[:4], "little")
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
