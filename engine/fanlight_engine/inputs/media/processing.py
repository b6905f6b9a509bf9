"""What a media processor is, and what it gives: the seam between pictures and whatever prepares them for a tower.

Two implementations: `wrapped` (the checkpoint's own processor, as it ships it) and `native` (Fanlight's own, described
by an ImageProcessingConfig). Knows no requests, no digests and no threads; methods are called from several at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from PIL import Image

from fanlight_engine.errors import InvalidRequestError, Reason
from fanlight_engine.inputs.expansion import Replacement
from fanlight_engine.request import FrameOptions, Modality, Patches, PixelOptions, Tiles
from fanlight_engine.tensor_data import TensorData


class MediaError(Exception):
    """One picture or clip was refused; `reason` and `description` are those of the RequestError to come.

    `below` is the path of the field at fault below the medium's own, for example ".max_pixels"; empty where it is the
    medium itself.
    """

    def __init__(self, reason: Reason, description: str, below: str = "") -> None:
        super().__init__(description)
        self.reason = reason
        self.description = description
        self.below = below

    def at(self, field: str) -> InvalidRequestError:
        """The error of the request whose medium stands at `field`."""
        return InvalidRequestError(f"{field}{self.below}", self.description, self.reason)


@dataclass(frozen=True, slots=True)
class MediaDecision:
    """What was decided about one picture or clip, for callers that ask. Sizes are (width, height) in pixels.

    `grid` (t, h, w) counts patches before merging (of the tiles without the thumbnail, where there are tiles and the
    grid is needed to know their layout), `tiles` (columns, rows) the tiles without the thumbnail.
    `frame_times` are seconds from the beginning of the clip; empty for pictures and where nobody knows them.
    """

    original_size: tuple[int, int] | None = None
    resized_size: tuple[int, int] | None = None
    grid: tuple[int, int, int] | None = None
    tiles: tuple[int, int] | None = None
    has_thumbnail: bool = False
    frames: int = 1
    frame_times: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessedMedia:
    """What a tower takes of one picture or clip (`tensors`), and what replaces its placeholder in the prompt."""

    tensors: dict[str, TensorData]
    replacement: Replacement
    decision: MediaDecision
    seconds_per_grid: float = 1.0
    """Time between two steps of the grid's t; 1.0 where no family reads it."""


@dataclass(frozen=True, slots=True)
class ClipFacts:
    """What is known of a clip before its frames are chosen. `frame_times` are seconds, one per frame, ascending."""

    frame_times: tuple[float, ...]
    fps: float
    """Frames per second on average over the whole file."""

    @property
    def frame_count(self) -> int:
        """Frames of the clip."""
        return len(self.frame_times)


@dataclass(frozen=True, slots=True)
class Clip:
    """Chosen frames of a clip, all of one size, each [height, width, 3] uint8, in order."""

    frames: Sequence[np.ndarray]
    indices: tuple[int, ...]
    """Which frames of the file these are."""
    facts: ClipFacts
    times_are_known: bool = True
    """False for frame sequences that came without a rate."""

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the frames."""
        height, width = self.frames[0].shape[:2]
        return width, height

    @property
    def times(self) -> tuple[float, ...]:
        """Seconds of the chosen frames."""
        return tuple(self.facts.frame_times[index] for index in self.indices) if self.times_are_known else ()


class MediaProcessor(Protocol):
    """Prepares the media of one checkpoint. Every refusal is a MediaError."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """All that decides about the result, as JSON values: part of every digest."""
        ...

    @property
    def modalities(self) -> frozenset[Modality]:
        """What it takes."""
        ...

    def placeholder_id(self, modality: Modality) -> int:
        """The id that stands for one medium in a prompt, before expansion; a control token or a mark of the guarded
        tokenizer."""
        ...

    def process_image(
        self, image: Image.Image, options: PixelOptions, is_one_of_several: bool = False
    ) -> ProcessedMedia:
        """An upright RGB picture, the only one of its prompt unless said."""
        ...

    def choose_frames(self, facts: ClipFacts, sampling: FrameOptions) -> tuple[int, ...]:
        """Which frames to decode: ascending, at least one, never more than were asked for or than are allowed."""
        ...

    def process_video(self, clip: Clip, options: PixelOptions) -> ProcessedMedia:
        """The chosen frames of a clip."""
        ...

    def process_tensors(self, pixels: Patches | Tiles, modality: Modality) -> ProcessedMedia:
        """Pixels that were preprocessed by the caller; their tensors are TensorData of finite numbers."""
        ...

    def replacement_for_rows(
        self,
        rows: int,
        modality: Modality,
        grid: tuple[int, int, int] | None = None,
        seconds_per_step: float | None = None,
    ) -> Replacement:
        """What replaces the placeholder of a medium that comes as `rows` embeddings; `grid` counts patches before
        merging."""
        ...
