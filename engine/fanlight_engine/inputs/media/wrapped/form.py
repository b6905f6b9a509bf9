"""What the WrappedProcessor asks of a form of pixels (`families.PixelForm`), and what all forms are given.

A form knows its tensors, which sizes can be asked for, how to tell what was decided, and how to judge tensors that a
caller made. It never calls the processor on pixels: that is the WrappedProcessor's. There is one object for pictures
and one for clips.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers.video_utils import VideoMetadata

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import Reason
from fanlight_engine.inputs.expansion import Replacement
from fanlight_engine.inputs.media.pixel_bounds import refuse_pixel_options
from fanlight_engine.inputs.media.processing import MediaDecision, MediaError
from fanlight_engine.request import Modality, Patches, PixelOptions, Tiles
from fanlight_engine.tensor_data import TensorData

Outputs = Mapping[str, Any]
"""What a checkpoint's processor makes of one picture or clip, by name."""

ReplacementOf = Callable[[Outputs], Replacement]
"""What the processor puts into a prompt for a medium with such outputs."""

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Shown:
    """Embeddings that came instead of pixels, as far as the prompt shows them. `grid` counts patches before merging."""

    rows: int
    grid: Grid | None
    seconds_per_step: float | None


@dataclass(frozen=True, slots=True)
class Half:
    """The half of a checkpoint's processor that is for pictures, or the one for clips."""

    config: EngineConfig
    checkpoint: Checkpoint
    processor: Any
    """The whole of it, as AutoProcessor loads it."""
    modality: Modality

    @property
    def is_for_pictures(self) -> bool:
        """Whether it is the half for pictures."""
        return self.modality is Modality.IMAGE

    @property
    def pixel_processor(self) -> Any:
        """The image processor or the video processor."""
        return self.processor.image_processor if self.is_for_pictures else self.processor.video_processor

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that the tower takes, the pixels first."""
        family = self.checkpoint.family
        return family.vision_tensors if self.is_for_pictures else family.video_tensors

    @property
    def vision(self) -> Any:
        """The tower's own configuration."""
        return self.checkpoint.config.vision_config

    @property
    def noun(self) -> str:
        """What messages call a medium."""
        return "picture" if self.is_for_pictures else "clip"

    @property
    def arguments(self) -> dict[str, Any]:
        """What the whole processor calls this half with.

        Some of that are defaults of the class of the whole. They give way to what the checkpoint says of its half,
        where the class of the half leaves it open (Gemma 3's pan and scan): a checkpoint that says so means it.
        """
        merged = self.processor._merge_kwargs(
            tokenizer_init_kwargs=self.processor.tokenizer.init_kwargs, return_tensors="pt"
        )
        arguments = merged["images_kwargs" if self.is_for_pictures else "videos_kwargs"]
        own, of_class = self.pixel_processor, type(self.pixel_processor)
        said = {name: getattr(own, name) for name in arguments if getattr(of_class, name, ...) is None}
        return {**arguments, **{name: value for name, value in said.items() if value is not None}}


class Form(ABC):
    """See the module. What is not overridden is right for forms that choose the size of every picture themselves."""

    described: str
    """What the tower takes of a medium, in words."""
    taken = "the encoded file"
    """What can be sent of a picture, and of a clip."""
    taken_of_clips = "the encoded file or its frames"

    def __init__(self, half: Half, replacement_of: ReplacementOf) -> None:
        self.half = half
        self.replacement_of = replacement_of

    @property
    def cuts_pictures(self) -> bool:
        """Whether the processor makes tiles of a picture, as many as its rule has for the picture's size."""
        return False

    def size_arguments(self, options: PixelOptions, size: tuple[int, int], frames: int) -> dict[str, Any]:
        """Arguments for the processor, for a picture or frames of this (width, height). Raises MediaError."""
        noun = "picture" if self.half.is_for_pictures else "frame"
        is_cut = self.half.is_for_pictures and self.cuts_pictures
        what = "cuts a picture into tiles by itself, by its size" if is_cut else f"sees every {noun} at one size"
        refuse_pixel_options(options, f"this model {what}")
        return {}

    def tensors(self, outputs: Outputs) -> dict[str, torch.Tensor]:
        """The medium's tensors by the names that the family has for them."""
        return {name: outputs[name] for name in self.half.names}

    @abstractmethod
    def decision(self, size: tuple[int, int], outputs: Outputs) -> MediaDecision:
        """What became of a picture or frames of this (width, height)."""

    def outputs_of_patches(self, patches: Patches) -> tuple[Outputs, MediaDecision]:
        """What the processor would have made, had it made these patches. Raises MediaError (TENSOR_INVALID)."""
        raise self.refusal("patches")

    def outputs_of_tiles(self, tiles: Tiles) -> tuple[Outputs, MediaDecision]:
        """As `outputs_of_patches`."""
        raise self.refusal("tiles")

    def outputs_of_embeddings(self, shown: Shown) -> Outputs | None:
        """As much of the outputs as tells what the prompt has around these embeddings; None where there is nothing.

        Raises MediaError (EMBEDDINGS_MISMATCH).
        """
        return None

    def misfit(self, tensors: Mapping[str, TensorData]) -> str | None:
        """How the tensors of a medium show that the processor was not made for this tower; None where it fits.

        Completes "the processor ...".
        """
        height, width = tensors[self.half.names[0]].shape[-2:]
        own = self.half.vision.image_size
        needed = (own, own) if isinstance(own, int) else tuple(own)
        if (height, width) == needed:
            return None
        return f"gives {height} x {width} pixels, where vision_config.image_size is {' x '.join(map(str, needed))}"

    def refusal(self, came: str) -> MediaError:
        """Of tensors of a kind that this form does not take."""
        taken = self.taken if self.half.is_for_pictures else self.taken_of_clips
        return MediaError(Reason.TENSOR_INVALID, f"this model takes {self.described}; send {taken}, not {came}")


def mismatch(description: str) -> MediaError:
    """Of embeddings that cannot be a medium of this model."""
    return MediaError(Reason.EMBEDDINGS_MISMATCH, description)


def tensor_error(description: str) -> MediaError:
    """Of tensors that cannot be a medium of this model."""
    return MediaError(Reason.TENSOR_INVALID, description)


def pixels_of_shape(*shape: int) -> torch.Tensor:
    """Zeros that take no memory: processors look at the shape of pixels to know what they become in a prompt."""
    return torch.zeros(()).expand(shape)


def metadata_of_steps(frames: int, seconds_between: float) -> VideoMetadata:
    """Of a clip of which nothing is known but the time between its frames."""
    return VideoMetadata(
        total_num_frames=frames,
        fps=1 / seconds_between,
        duration=frames * seconds_between,
        frames_indices=list(range(frames)),
    )
