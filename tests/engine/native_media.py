"""Pictures, clips and tensors for native processors, and what their towers make of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import MediaInput
from fanlight_engine.inputs.media.native.image_processing_config import (
    find_image_processing_config,
    image_processing_config_from,
)
from fanlight_engine.inputs.media.native.pixel_statistics import find_pixel_statistics
from fanlight_engine.inputs.media.native.processor import NativeProcessor
from fanlight_engine.inputs.media.processing import Clip, ClipFacts, MediaError, ProcessedMedia
from fanlight_engine.model.loading.loader import load_model
from fanlight_engine.model.vision_tower import VisionTower
from fanlight_engine.request import Modality, Patches, PatchLayout, PixelOptions, Tiles
from fanlight_engine.tensor_data import tensor_data_of
from tests.engine.native_checkpoints import PATCH

CELL = (2 * PATCH) ** 2
TILE = 4 * PATCH
TILE_ROWS = 16
PLAIN = PixelOptions()


def native(checkpoint: Checkpoint, described: dict[str, Any] | None = None, **settings: Any) -> NativeProcessor:
    """As the checkpoint's own file describes it, or in other words."""
    if described is None:
        processing = find_image_processing_config(checkpoint.path, "")
        assert processing is not None
    else:
        processing = image_processing_config_from(described)
    statistics = find_pixel_statistics(processing, checkpoint.path)
    return NativeProcessor(EngineConfig(**settings), checkpoint, processing, statistics)


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def clip(frames: int, width: int = 160, height: int = 120, fps: float = 4.0, times_are_known: bool = True) -> Clip:
    pictures = [np.asarray(picture(width, height, seed)) for seed in range(frames)]
    facts = ClipFacts(tuple(index / fps for index in range(frames)), fps)
    return Clip(pictures, tuple(range(frames)), facts, times_are_known)


def facts(frames: int, fps: float = 10.0) -> ClipFacts:
    return ClipFacts(tuple(index / fps for index in range(frames)), fps)


def refusal(call: Any) -> MediaError:
    with pytest.raises(MediaError) as caught:
        call()
    return caught.value


def encoded(checkpoint: Checkpoint, *media: tuple[ProcessedMedia, Modality]) -> list[torch.Tensor]:
    """What the checkpoint's own tower makes of them; it refuses any other number of rows than were promised."""
    tower = VisionTower(load_model(checkpoint, torch.device("cpu"), torch.float32), checkpoint)
    inputs = [MediaInput(b"", one.replacement.rows, one.tensors, modality) for one, modality in media]
    with torch.inference_mode():
        return tower.encode(inputs)


def patches(rows: int, columns: int, grid: tuple[int, int, int], layout: PatchLayout = PatchLayout.TOWER) -> Patches:
    return Patches(tensor_data_of(np.zeros((rows, columns), np.float32)), grid, layout)


TOWER_COLUMNS, ROW_COLUMNS = 3 * 2 * PATCH**2, 3 * PATCH**2


def tiles(*shape: int, original_size: tuple[int, int] | None = None) -> Tiles:
    return Tiles(tensor_data_of(np.zeros(shape, np.float32)), original_size)
