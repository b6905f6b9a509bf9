"""NativeProcessor: the media of a checkpoint that is described by an ImageProcessingConfig.

Chooses the path that the family's tower takes (grid_pixels, tile_pixels) and the frames of clips. Knows no requests,
digests or threads; nothing in it changes after construction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from PIL import Image

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.checkpoints.families import PixelForm
from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import CheckpointError
from fanlight_engine.inputs.expansion import Replacement
from fanlight_engine.inputs.media.native.grid_pixels import GridPixels
from fanlight_engine.inputs.media.native.image_processing_config import ImageProcessingConfig
from fanlight_engine.inputs.media.native.pixel_statistics import PixelStatistics
from fanlight_engine.inputs.media.native.pixels import Normalizer
from fanlight_engine.inputs.media.native.sampling import frame_indices
from fanlight_engine.inputs.media.native.tile_pixels import AnyresPixels, TilePixels
from fanlight_engine.inputs.media.native.tower import Tower, repeated_placeholder
from fanlight_engine.inputs.media.processing import Clip, ClipFacts, ProcessedMedia
from fanlight_engine.inputs.media.video.sampling import default_frames
from fanlight_engine.request import FrameOptions, Modality, Patches, PixelOptions, Tiles

NATIVE_VERSION = 1
"""Part of every digest: raise it when the same pixels would give other tensors than before."""

_FAMILIES = ("qwen2_vl", "qwen2_5_vl", "llava", "llava_next")
"""Those whose prompts have nothing but rows in the place of a medium; other families put tags and times between them,
which only their own processors know."""
_PATHS = {PixelForm.GRID: GridPixels, PixelForm.TILES: TilePixels, PixelForm.ANYRES: AnyresPixels}


class NativeProcessor:
    """See MediaProcessor. Raises CheckpointError where the description does not fit the checkpoint."""

    def __init__(
        self,
        config: EngineConfig,
        checkpoint: Checkpoint,
        processing: ImageProcessingConfig,
        statistics: PixelStatistics,
    ) -> None:
        form = checkpoint.family.pixel_form
        if form is None:
            raise CheckpointError(
                f"there is an image processing configuration, but {checkpoint.family.model_type} checkpoints take no "
                "pictures; take it out"
            )
        if form not in _PATHS or checkpoint.family.model_type not in _FAMILIES:
            raise CheckpointError(
                f"there is an image processing configuration, which {checkpoint.family.model_type} checkpoints with a "
                f"tower for {form} cannot be described by; take it out and give the checkpoint's own processor "
                f"(described are {', '.join(_FAMILIES)})"
            )
        self._config = config
        self._processing = processing
        self._path = _PATHS[form](Tower(config, checkpoint, processing, Normalizer(statistics)))
        self._settings = {
            "native": NATIVE_VERSION,
            "form": form.value,
            "processing": asdict(processing),
            "statistics": asdict(statistics),
            "low_detail_tokens": config.low_detail_tokens,
        }

    @property
    def settings(self) -> Mapping[str, Any]:
        """The description, the pixel statistics with their source, and what of the engine's settings plays a part."""
        return self._settings

    @property
    def modalities(self) -> frozenset[Modality]:
        """Pictures, and clips unless the tower lays tiles out as one picture."""
        return frozenset(self._path.placeholders)

    def placeholder_id(self, modality: Modality) -> int:
        """The image token, or the video token where the checkpoint has one."""
        return self._path.placeholders[modality]

    def process_image(
        self, image: Image.Image, options: PixelOptions, is_one_of_several: bool = False
    ) -> ProcessedMedia:
        """An upright RGB picture; no family that is described looks at how many there are."""
        return self._path.image(image, options)

    def choose_frames(self, facts: ClipFacts, sampling: FrameOptions) -> tuple[int, ...]:
        """Evenly spread: as many as asked for, or as the description says, in whole temporal patches; or at a rate."""
        if sampling.fps is not None:
            return default_frames(facts, sampling, self._config)
        asked = self._processing.num_frames if sampling.num_frames is None else sampling.num_frames
        most = min(asked, self._config.max_video_frames)
        return frame_indices(most, facts.frame_count, self._processing.temporal_patch_size)

    def process_video(self, clip: Clip, options: PixelOptions) -> ProcessedMedia:
        """The chosen frames of a clip."""
        return self._path.video(clip, options)

    def process_tensors(self, pixels: Patches | Tiles, modality: Modality) -> ProcessedMedia:
        """Patches or tiles that were preprocessed by the caller, as the family's tower takes them."""
        return self._path.tensors(pixels, modality)

    def replacement_for_rows(
        self,
        rows: int,
        modality: Modality,
        grid: tuple[int, int, int] | None = None,
        seconds_per_step: float | None = None,
    ) -> Replacement:
        """The placeholder, once for each row."""
        return repeated_placeholder(self.placeholder_id(modality), rows)
