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
    """Three rows from the model's own `get_rope_index`, then a per-request delta while decoding."""


@dataclass(frozen=True, slots=True)
class Family:
    """One row of the table.

    `vision_tensors` are the processor outputs that go into `get_image_features`, each with the image (or its patches)
    on the first axis. `vision_model_types` are the towers that take just these tensors. `image_prefix` and
    `image_suffix` are the special tokens that the family's template writes around an image placeholder; raw prompts
    get the same.
    """

    model_type: str
    positions: Positions = Positions.ARANGE
    vision_tensors: tuple[str, ...] = ()
    vision_model_types: tuple[str, ...] = ()
    image_prefix: str = ""
    image_suffix: str = ""

    @property
    def takes_images(self) -> bool:
        """Whether checkpoints of this family have a vision tower."""
        return bool(self.vision_tensors)


FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        Family("llama"),
        Family(
            "qwen2_5_vl",
            positions=Positions.MROPE,
            vision_tensors=("pixel_values", "image_grid_thw"),
            vision_model_types=("qwen2_5_vl", "qwen2_5_vl_vision"),
            image_prefix="<|vision_start|>",
            image_suffix="<|vision_end|>",
        ),
        Family("llava", vision_tensors=("pixel_values",), vision_model_types=("clip_vision_model",)),
    )
}
