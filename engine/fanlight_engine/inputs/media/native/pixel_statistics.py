"""Mean and standard deviation of the pixels that an encoder was trained on, and where they were found.

    explicit configuration > the checkpoint's own preprocessor configuration > table by encoder > error

A wrong pair degrades every answer and breaks none, so the source is kept beside the numbers. Knows no pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanlight_engine.checkpoints.json_files import JsonFileError, read_json_object
from fanlight_engine.errors import CheckpointError, ConfigError
from fanlight_engine.inputs.media.native.image_processing_config import ImageProcessingConfig, check_statistics

Channels = tuple[float, ...]

CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
RADIO_G = ((0.485, 0.456, 0.406), (0.223, 0.224, 0.225))
"""Like ImageNet's, but for the first standard deviation: the encoder was trained so."""

STATISTICS_BY_ENCODER: Mapping[str, tuple[Channels, Channels]] = {
    "clip": CLIP,
    "cradio-g": CLIP,
    "hf-siglip": HALF,
    "internvit": IMAGENET,
    "internvit300M": IMAGENET,
    "kimi-vit": HALF,
    "pixtral-vit": CLIP,
    "pixtral-vit-large": CLIP,
    "post-c-radio-omni": CLIP,
    "qwen-vl": HALF,
    "radio": CLIP,
    "radio-g": RADIO_G,
    "siglip": HALF,
}
"""What each encoder was trained with; elsewhere SigLIP and InternViT are served with CLIP's, which they never saw."""

_FILES = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True, slots=True)
class PixelStatistics:
    """Three numbers each, of pixels between 0 and 1; `source` says where they come from."""

    mean: Channels
    std: Channels
    source: str


def find_pixel_statistics(processing: ImageProcessingConfig, checkpoint_path: Path) -> PixelStatistics:
    """The first that is given, in the order above. Raises CheckpointError where none is, or one is half given."""
    if processing.pixel_mean is not None and processing.pixel_std is not None:
        return PixelStatistics(processing.pixel_mean, processing.pixel_std, "image processing configuration")
    for name in _FILES:
        found = _from_file(checkpoint_path / name)
        if found is not None:
            return PixelStatistics(*found, name)
    encoder = processing.vision_model_type
    if encoder in STATISTICS_BY_ENCODER:
        return PixelStatistics(*STATISTICS_BY_ENCODER[encoder], f"table, encoder {encoder}")
    raise CheckpointError(
        f"no pixel statistics are known for vision_model_type {encoder!r}; set pixel_mean and pixel_std, or one of "
        + ", ".join(sorted(STATISTICS_BY_ENCODER))
    )


def _from_file(file: Path) -> tuple[Channels, Channels] | None:
    if not file.is_file():
        return None
    where = f"{file.parent.name}/{file.name}"
    try:
        content = read_json_object(file)
        settings = content.get("image_processor", content)
        mean, std = _channels(settings, "image_mean"), _channels(settings, "image_std")
    except (JsonFileError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{where} is not the JSON of an image processor: {error}") from error
    try:
        check_statistics("image_mean", mean, "image_std", std)
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from error
    return None if mean is None or std is None else (mean, std)


def _channels(settings: Mapping[str, Any], name: str) -> Channels | None:
    """Processors also write one number for all three channels."""
    value = settings.get(name)
    if value is None:
        return None
    if isinstance(value, int | float):
        return (float(value),) * 3
    return tuple(float(one) for one in value)
