"""The families of checkpoints that are served, as a declared table; knows no weights and no requests.

What transformers tells by itself (decoder, tower, projected image features, head) is not repeated here. A family says
only what cannot be read off its classes. A model_type that is not in the table is refused at load.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Positions(StrEnum):
    """How a prompt's position ids come about."""

    ARANGE = "arange"
    """0, 1, 2, ... over the expanded prompt (RoPE)."""
    MROPE = "mrope"
    """Three rows from the model's own `get_rope_index`, which decoding goes on from."""


class PixelForm(StrEnum):
    """What a vision tower takes of one picture or clip."""

    GRID = "grid"
    """pixel_values [t * h * w, C * T * p * p], a row per patch, those of one merge group beside each other, and
    image_grid_thw [1, 3] with (t, h, w) in patches; T frames make one temporal patch. Clips have tensors of their own.
    """
    TILES = "tiles"
    """pixel_values [tiles, 3, S, S]; the features of a medium's tiles are concatenated."""
    ANYRES = "anyres"
    """pixel_values [1, tiles, 3, S, S], the whole picture first, and image_sizes [1, 2] with its (height, width), from
    which the model knows the layout of the other tiles and what of them is padding."""


@dataclass(frozen=True, slots=True)
class Family:
    """One row of the table.

    `vision_tensors` are the processor outputs that go into `get_image_features`, the pixels first, and `video_tensors`
    those that go into `get_video_features`; each has the medium (or its patches) on the first axis.
    `vision_model_types` are the towers that take just these tensors. `image_prefix` and `image_suffix` are the special
    tokens that the family's template writes around an image placeholder, `video_prefix` and `video_suffix` those around
    a video placeholder; raw prompts get the same. With `reads_seconds_per_grid` positions in a clip depend on its time.
    """

    model_type: str
    positions: Positions = Positions.ARANGE
    pixel_form: PixelForm | None = None
    vision_tensors: tuple[str, ...] = ()
    video_tensors: tuple[str, ...] = ()
    vision_model_types: tuple[str, ...] = ()
    image_prefix: str = ""
    image_suffix: str = ""
    video_prefix: str = ""
    video_suffix: str = ""
    reads_seconds_per_grid: bool = False

    @property
    def takes_images(self) -> bool:
        """Whether checkpoints of this family have a vision tower."""
        return bool(self.vision_tensors)

    @property
    def takes_videos(self) -> bool:
        """Whether that tower has a way of its own for clips."""
        return bool(self.video_tensors)


FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        Family("llama"),
        Family(
            "qwen2_vl",
            positions=Positions.MROPE,
            pixel_form=PixelForm.GRID,
            vision_tensors=("pixel_values", "image_grid_thw"),
            video_tensors=("pixel_values_videos", "video_grid_thw"),
            vision_model_types=("qwen2_vl", "qwen2_vl_vision"),
            image_prefix="<|vision_start|>",
            image_suffix="<|vision_end|>",
            video_prefix="<|vision_start|>",
            video_suffix="<|vision_end|>",
        ),
        Family(
            "qwen2_5_vl",
            positions=Positions.MROPE,
            pixel_form=PixelForm.GRID,
            vision_tensors=("pixel_values", "image_grid_thw"),
            video_tensors=("pixel_values_videos", "video_grid_thw"),
            vision_model_types=("qwen2_5_vl", "qwen2_5_vl_vision"),
            image_prefix="<|vision_start|>",
            image_suffix="<|vision_end|>",
            video_prefix="<|vision_start|>",
            video_suffix="<|vision_end|>",
            reads_seconds_per_grid=True,
        ),
        Family(
            "llava",
            pixel_form=PixelForm.TILES,
            vision_tensors=("pixel_values",),
            vision_model_types=("clip_vision_model",),
        ),
        Family(
            "llava_next",
            pixel_form=PixelForm.ANYRES,
            vision_tensors=("pixel_values", "image_sizes"),
            vision_model_types=("clip_vision_model",),
        ),
    )
}
