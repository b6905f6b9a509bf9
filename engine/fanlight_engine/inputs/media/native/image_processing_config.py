"""ImageProcessingConfig: how a checkpoint without a processor of its own wants its pictures, read from a JSON file.

Everything that can contradict itself is refused here, by the name of its key. Knows no model: whether a description
fits the vision tower is the processor's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from fanlight_engine.checkpoints.json_files import JsonFileError, read_json_object
from fanlight_engine.errors import CheckpointError, ConfigError

FILE_NAME = "image_processing_config.json"


class ResizeMode(StrEnum):
    """How pictures come to a size that the tower takes."""

    DYNAMIC = "dynamic_resolution"
    """To a grid of patches within a budget, the aspect ratio kept as far as whole patches allow."""
    TILING = "use_tiling"
    """To columns and rows of square tiles, the aspect ratio bent to the closest pair."""
    ANYRES = "grid_pinpoints"
    """Into the best of a list of resolutions, padded, cut into square tiles; the whole picture goes first."""


@dataclass(frozen=True, slots=True)
class ImageProcessingConfig:
    """One description; exactly one of dynamic_resolution, use_tiling and grid_pinpoints is set.

    Sides are pixels, `grid_pinpoints` are (height, width). None is "not said". Raises ConfigError.
    """

    patch_dim: int
    """Side of a patch."""
    dynamic_resolution: bool = False
    use_tiling: bool = False
    grid_pinpoints: tuple[tuple[int, int], ...] = ()
    min_patches: int = 1
    """Fewest patches of a picture, before they are merged."""
    max_patches: int = 128
    """Most patches of a picture or of a frame, before they are merged."""
    pixel_shuffle: bool = False
    """Whether 2 x 2 patches are folded into one embedding."""
    spatial_merge_size: int = 1
    """Side of the square of patches that becomes one embedding."""
    tile_size: int | None = None
    """Side of a tile."""
    min_num_tiles: int = 1
    max_num_tiles: int = 1
    """Tiles of a picture, the thumbnail not counted."""
    use_thumbnail: bool = False
    """Whether the whole picture follows as one more tile when it was cut into several."""
    use_area_weighted_aspect_ratio: bool = False
    """Whether columns and rows are chosen by area and aspect ratio together, instead of by aspect ratio."""
    vision_model_type: str = "radio"
    """The encoder, by which pixel statistics are looked up where nothing else gives them."""
    pixel_mean: tuple[float, ...] | None = None
    pixel_std: tuple[float, ...] | None = None
    """Statistics of the three channels, of pixels between 0 and 1; both or neither."""
    num_frames: int = 8
    """Frames that are shown of a clip when the request does not say."""
    temporal_patch_size: int = 1
    """Frames that make one temporal patch."""
    video_maintain_aspect_ratio: bool = True
    """Whether frames keep their aspect ratio, or become square."""

    def __post_init__(self) -> None:
        for name, low in _LOWEST.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(f"{name} is {value}, it must be at least {low}")
        self._check_mode()
        self._check_merging()
        self._check_statistics()
        if self.mode is ResizeMode.DYNAMIC:
            self._check_patches()
        else:
            self._check_tiles()

    @property
    def mode(self) -> ResizeMode:
        """How pictures are resized."""
        return next(mode for mode in ResizeMode if getattr(self, mode))

    @property
    def merge(self) -> int:
        """Side of the square of patches that becomes one embedding, however it is merged."""
        return max(2 if self.pixel_shuffle else 1, self.spatial_merge_size)

    def _check_mode(self) -> None:
        chosen = [mode for mode in ResizeMode if getattr(self, mode)]
        if len(chosen) != 1:
            raise ConfigError(
                f"{' and '.join(chosen) or 'none'} of {', '.join(ResizeMode)} is set; set exactly one: it says how "
                "pictures are resized"
            )
        for name, modes in _MODES_OF_KEY.items():
            default = next(field.default for field in fields(self) if field.name == name)
            if self.mode not in modes and getattr(self, name) != default:
                raise ConfigError(f"{name} is set, but it belongs to {' and '.join(modes)}; take it out")

    def _check_merging(self) -> None:
        if self.pixel_shuffle and self.spatial_merge_size > 2:
            raise ConfigError(
                f"spatial_merge_size is {self.spatial_merge_size} with pixel_shuffle, which folds 2 x 2 patches; leave "
                "one of the two out"
            )

    def _check_statistics(self) -> None:
        check_statistics("pixel_mean", self.pixel_mean, "pixel_std", self.pixel_std)

    def _check_patches(self) -> None:
        low, high, cell = self.min_patches, self.max_patches, self.merge**2
        if low > high:
            raise ConfigError(f"min_patches ({low}) is above max_patches ({high}); lower the first or raise the second")
        if high < cell:
            raise ConfigError(
                f"max_patches is {high}, one embedding alone is made of {cell} patches; raise max_patches to {cell}"
            )
        if not is_reachable(low, high, self.merge):
            raise ConfigError(
                f"no grid has between min_patches ({low}) and max_patches ({high}) patches, since their number is a "
                f"multiple of {cell}; lower min_patches to {high // cell * cell}"
            )

    def _check_tiles(self) -> None:
        if self.tile_size is None:
            raise ConfigError(f"tile_size is not set, {self.mode} needs it; set the side of the tower's pictures")
        if self.tile_size % (self.patch_dim * self.merge):
            raise ConfigError(
                f"tile_size is {self.tile_size}, it must be a multiple of {self.patch_dim * self.merge}, the side that "
                "one embedding covers"
            )
        if self.min_num_tiles > self.max_num_tiles:
            raise ConfigError(
                f"min_num_tiles ({self.min_num_tiles}) is above max_num_tiles ({self.max_num_tiles}); lower the first "
                "or raise the second"
            )
        for height, width in self.grid_pinpoints:
            if min(height, width) < 1 or height % self.tile_size or width % self.tile_size:
                raise ConfigError(
                    f"grid_pinpoints has [{height}, {width}], both must be multiples of tile_size ({self.tile_size})"
                )


_LOWEST = {
    "patch_dim": 1,
    "min_patches": 1,
    "max_patches": 1,
    "spatial_merge_size": 1,
    "tile_size": 1,
    "min_num_tiles": 1,
    "max_num_tiles": 1,
    "num_frames": 1,
    "temporal_patch_size": 1,
}
_MODES_OF_KEY = {
    "min_patches": (ResizeMode.DYNAMIC,),
    "max_patches": (ResizeMode.DYNAMIC,),
    "temporal_patch_size": (ResizeMode.DYNAMIC,),
    "video_maintain_aspect_ratio": (ResizeMode.DYNAMIC,),
    "num_frames": (ResizeMode.DYNAMIC, ResizeMode.TILING),
    "tile_size": (ResizeMode.TILING, ResizeMode.ANYRES),
    "min_num_tiles": (ResizeMode.TILING,),
    "max_num_tiles": (ResizeMode.TILING,),
    "use_thumbnail": (ResizeMode.TILING,),
    "use_area_weighted_aspect_ratio": (ResizeMode.TILING,),
}
"""Keys that mean something only in some modes; elsewhere they would be ignored, which nobody would notice."""


def is_reachable(min_patches: int, max_patches: int, merge: int) -> bool:
    """Whether a grid whose sides are multiples of `merge` can have so many patches."""
    return -(-min_patches // merge**2) <= max_patches // merge**2


def check_statistics(
    mean_name: str, mean: tuple[float, ...] | None, std_name: str, std: tuple[float, ...] | None
) -> None:
    """Refuse one without the other, and numbers that no picture has. Raises ConfigError."""
    if (mean is None) != (std is None):
        lone, other = (mean_name, std_name) if std is None else (std_name, mean_name)
        raise ConfigError(f"{lone} is set and {other} is not; set both, or neither")
    for name, values in ((mean_name, mean), (std_name, std)):
        if values is not None and (len(values) != 3 or not all(math.isfinite(value) for value in values)):
            raise ConfigError(f"{name} is {list(values)}, three finite numbers are needed, one for each channel")
    if std is not None and min(std) <= 0:
        raise ConfigError(f"{std_name} is {list(std)}, all three must be above 0")


def find_image_processing_config(checkpoint_path: Path, configured: str) -> ImageProcessingConfig | None:
    """The description at `configured`, or else the checkpoint's own, or None where there is none.

    Raises ConfigError for the first, CheckpointError for the second, naming file, key and fix.
    """
    if configured:
        return _read(Path(configured), f"image_processing_config {configured}")
    file = checkpoint_path / FILE_NAME
    if not file.is_file():
        return None
    try:
        return _read(file, f"{checkpoint_path.name}/{FILE_NAME}")
    except ConfigError as error:
        raise CheckpointError(str(error)) from error


def _read(file: Path, name: str) -> ImageProcessingConfig:
    try:
        return image_processing_config_from(read_json_object(file))
    except JsonFileError as error:
        raise ConfigError(f"{name} {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def image_processing_config_from(content: Mapping[str, Any]) -> ImageProcessingConfig:
    """A JSON object as a description. Raises ConfigError naming the key."""
    known = {field.name: str(field.type) for field in fields(ImageProcessingConfig)}
    for key in content:
        if key not in known:
            raise ConfigError(f"unknown key {key!r}; known: {', '.join(sorted(known))}")
    if "patch_dim" not in content:
        raise ConfigError("patch_dim is not set; set the side of a patch in pixels")
    return ImageProcessingConfig(**{key: _converted(key, known[key], value) for key, value in content.items()})


def _converted(key: str, kind: str, value: Any) -> Any:
    if value is None and kind.endswith("| None"):
        return None
    kind = kind.removesuffix(" | None")
    description, convert = _CONVERSIONS[kind]
    try:
        return convert(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{key} is {value!r}, {description} is needed") from None


def _exactly(kind: type) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError
        return value

    return convert


def _numbers(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or any(type(one) not in (int, float) for one in value):
        raise TypeError
    return tuple(float(one) for one in value)


def _pairs(value: Any) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, list):
        raise TypeError
    pairs = [(_exactly(int)(height), _exactly(int)(width)) for height, width in value]
    return tuple(pairs)


_CONVERSIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "int": ("a whole number", _exactly(int)),
    "bool": ("true or false", _exactly(bool)),
    "str": ("a text", _exactly(str)),
    "tuple[float, ...]": ("a list of three numbers", _numbers),
    "tuple[tuple[int, int], ...]": ("a list of pairs [height, width]", _pairs),
}
"""How JSON values become the types that the fields are annotated with."""
