"""WrappedProcessor: the checkpoint's own image and video processors of transformers, as the checkpoint ships them.

What is passed to them differs from their own defaults only where a request asks for it. Knows the forms of pixels that
families take (`families.PixelForm`); knows no requests, digests or threads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.image_processing_backends import TorchvisionBackend
from transformers.video_utils import VideoMetadata

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import CheckpointError, Reason
from fanlight_engine.inputs.expansion import Replacement, replacement_from
from fanlight_engine.inputs.guarded_tokenizer import GuardedTokenizer
from fanlight_engine.inputs.media.native.patches import row_major_to_tower
from fanlight_engine.inputs.media.pixel_bounds import (
    PixelBounds,
    bounds_for,
    fitting_bounds,
    refuse_pixel_options,
    refuse_too_many_rows,
)
from fanlight_engine.inputs.media.processing import Clip, ClipFacts, MediaDecision, MediaError, ProcessedMedia
from fanlight_engine.inputs.media.tensors import checked_floats, refuse_shape
from fanlight_engine.inputs.media.video.sampling import default_frames, spread_evenly
from fanlight_engine.model.checkpoint import Checkpoint
from fanlight_engine.model.families import PixelForm
from fanlight_engine.request import FrameOptions, Modality, Patches, PatchLayout, PixelOptions, Tiles
from fanlight_engine.tensor_data import TensorData, tensor_data_of

_FOREIGN_ERRORS = (ValueError, TypeError, IndexError, ZeroDivisionError, RuntimeError)
"""What processors raise for pictures that they do not like."""


class WrappedProcessor:
    """See MediaProcessor. `processor` is what AutoProcessor loads."""

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint, processor: Any, guarded: GuardedTokenizer) -> None:
        image_token_id = checkpoint.image_token_id
        if image_token_id is None:
            raise CheckpointError("config.json has a vision tower but no image token; give a complete checkpoint")
        self._config = config
        self._checkpoint = checkpoint
        self._processor = processor
        self._guarded = guarded
        self._form = checkpoint.family.pixel_form
        self._placeholders = {Modality.IMAGE: image_token_id}
        takes_videos = checkpoint.takes_videos and getattr(processor, "video_processor", None) is not None
        if takes_videos and checkpoint.video_token_id is not None:
            self._placeholders[Modality.VIDEO] = checkpoint.video_token_id
        self._spellings = {
            modality: str(processor.tokenizer.convert_ids_to_tokens(token_id))
            for modality, token_id in self._placeholders.items()
        }
        self._settings = {
            part: json.loads(getattr(processor, part).to_json_string())
            for part in ("image_processor", "video_processor")
            if getattr(processor, part, None) is not None
        }

    @property
    def settings(self) -> Mapping[str, Any]:
        """The configurations of the checkpoint's processors."""
        return self._settings

    @property
    def modalities(self) -> frozenset[Modality]:
        """Pictures, and clips where family and checkpoint have what they need."""
        return frozenset(self._placeholders)

    def placeholder_id(self, modality: Modality) -> int:
        """The checkpoint's image or video token."""
        return self._placeholders[modality]

    def process_image(self, image: Image.Image, options: PixelOptions) -> ProcessedMedia:
        """Through the image processor."""
        arguments = self._size_arguments(options, Modality.IMAGE, image.size)
        try:
            outputs = self._image_outputs(image, arguments)
            replacement = self._replacement(self._processor.replace_image_token(outputs, 0), Modality.IMAGE)
        except _FOREIGN_ERRORS as error:
            raise MediaError(
                Reason.IMAGE_UNREADABLE,
                f"the checkpoint's image processor refuses {image.width} x {image.height} pixels; scale or crop it",
            ) from error
        refuse_too_many_rows(replacement.rows, options)
        names = self._checkpoint.family.vision_tensors
        return ProcessedMedia(
            tensors={name: _tensor_data(outputs[name]) for name in names},
            replacement=replacement,
            decision=self._image_decision(image.size, outputs),
        )

    def _image_outputs(self, image: Image.Image, arguments: dict[str, Any]) -> Any:
        """Processors that work on tensors get the pixels as they lie in memory, channels last: bit for bit the same
        result as for the picture object, which they would bring into an order that resizes more slowly."""
        processor = self._processor.image_processor
        if not isinstance(processor, TorchvisionBackend):
            return processor(images=[image], return_tensors="pt", **arguments)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return processor(images=[pixels], input_data_format="channels_first", return_tensors="pt", **arguments)

    def choose_frames(self, facts: ClipFacts, sampling: FrameOptions) -> tuple[int, ...]:
        """By the checkpoint's own rule where it has one or the request wants one, else evenly up to the default."""
        count, most = facts.frame_count, self._config.max_video_frames
        if sampling.num_frames is not None:
            return self._sampled_number(facts, sampling.num_frames)
        if sampling.fps is not None:
            chosen = self._sampled_rate(facts, sampling)
            if len(chosen) > most:
                raise MediaError(
                    Reason.VIDEO_OPTION_INVALID,
                    f"{sampling.fps:g} frames per second are {len(chosen)} frames of this clip, at most {most} are "
                    "shown; lower fps, or set num_frames, start or end",
                    ".fps",
                )
            return chosen
        if self._processor.video_processor.do_sample_frames:
            chosen = self._sampled(facts)
            return chosen if len(chosen) <= most else self._sampled_number(facts, most)
        return tuple(spread_evenly(count, min(count, self._config.default_video_frames)))

    def process_video(self, clip: Clip, options: PixelOptions) -> ProcessedMedia:
        """Through the video processor, which does not sample again."""
        video_processor = self._processor.video_processor
        steps = -(-len(clip.frames) // getattr(video_processor, "temporal_patch_size", 1))
        arguments = self._size_arguments(options, Modality.VIDEO, clip.size, steps)
        metadata = _metadata(clip.facts, clip.indices if clip.times_are_known else None)
        width, height = clip.size
        try:
            outputs = video_processor(
                videos=[np.stack(clip.frames)],
                video_metadata=[metadata],
                input_data_format="channels_last",
                do_sample_frames=False,
                return_tensors="pt",
                return_metadata=True,
                **_as_shipped(video_processor),
                **arguments,
            )
            replacement = self._replacement(self._processor.replace_video_token(outputs, 0), Modality.VIDEO)
        except _FOREIGN_ERRORS as error:
            raise MediaError(
                Reason.VIDEO_UNREADABLE,
                f"the checkpoint's video processor refuses {len(clip.frames)} frames of {width} x {height} pixels; "
                "show other frames or scale them",
            ) from error
        refuse_too_many_rows(replacement.rows, options)
        grid = tuple(outputs["video_grid_thw"][0].tolist())
        patch = self._patch_size
        return ProcessedMedia(
            tensors={name: _tensor_data(outputs[name]) for name in self._checkpoint.family.video_tensors},
            replacement=replacement,
            decision=MediaDecision(
                original_size=clip.size,
                resized_size=(grid[2] * patch, grid[1] * patch),
                grid=grid,
                frames=len(clip.frames),
                frame_times=clip.times,
            ),
            seconds_per_grid=video_processor.temporal_patch_size / metadata.sampled_fps,
        )

    def process_tensors(self, pixels: Patches | Tiles, modality: Modality) -> ProcessedMedia:
        """Checked against the tower's shapes; nothing is resized."""
        if self._form is PixelForm.GRID:
            if isinstance(pixels, Tiles):
                raise MediaError(Reason.TENSOR_INVALID, "this model takes patches with a grid; send patches, not tiles")
            return self._process_patches(pixels, modality)
        if isinstance(pixels, Patches):
            raise MediaError(Reason.TENSOR_INVALID, "this model takes square tiles; send tiles, not patches")
        return self._process_tiles(pixels)

    def replacement_for_rows(self, rows: int, modality: Modality) -> Replacement:
        """The placeholder, once for each row: no family in the table puts anything else around embeddings."""
        placeholder = self.placeholder_id(modality)
        return Replacement((placeholder,) * rows, ((0, rows),))

    @property
    def _patch_size(self) -> int:
        return int(self._checkpoint.config.vision_config.patch_size)

    def _size_arguments(
        self, options: PixelOptions, modality: Modality, size: tuple[int, int], steps: int = 1
    ) -> dict[str, Any]:
        """Arguments that bound the area of a picture or frame of this size; none where nothing was asked for."""
        if self._form is not PixelForm.GRID:
            refuse_pixel_options(options, "this model sees every picture at one size")
            return {}
        if options == PixelOptions():
            return {}
        is_image = modality is Modality.IMAGE
        processor = self._processor.image_processor if is_image else self._processor.video_processor
        own = PixelBounds(int(processor.size["shortest_edge"]), int(processor.size["longest_edge"]))
        cell = (processor.patch_size * processor.merge_size) ** 2
        try:
            bounds = bounds_for(options, own, cell, self._config.low_detail_tokens, steps)
            bounds = fitting_bounds(bounds, partial(_area_within, processor, size, is_image), options)
        except MediaError as error:
            reason = Reason.IMAGE_OPTION_INVALID if is_image else Reason.VIDEO_OPTION_INVALID
            raise MediaError(reason, error.description, error.below) from error
        except _FOREIGN_ERRORS:
            return {}  # the processor refuses such a picture by itself
        return {"size": {"shortest_edge": bounds.low, "longest_edge": bounds.high}}

    def _image_decision(self, size: tuple[int, int], outputs: Any) -> MediaDecision:
        if self._form is PixelForm.GRID:
            grid = tuple(outputs["image_grid_thw"][0].tolist())
            return MediaDecision(size, (grid[2] * self._patch_size, grid[1] * self._patch_size), grid)
        side = outputs["pixel_values"].shape[-1]
        if self._form is PixelForm.ANYRES:
            columns, rows = self._anyres_tiles(size, side)
            return MediaDecision(size, (side, side), tiles=(columns, rows), has_thumbnail=True)
        return MediaDecision(size, (side, side))

    def _anyres_tiles(self, size: tuple[int, int], side: int) -> tuple[int, int]:
        """(columns, rows) of the resolution that the image processor picks for a picture."""
        from transformers.image_processing_utils import select_best_resolution

        height, width = select_best_resolution((size[1], size[0]), self._processor.image_processor.image_grid_pinpoints)
        return width // side, height // side

    def _sampled_number(self, facts: ClipFacts, wanted: int) -> tuple[int, ...]:
        """By the video processor's own rule, unless that fails for so few frames, or gives more than are wanted."""
        if wanted >= facts.frame_count:
            return tuple(range(facts.frame_count))
        try:
            chosen = self._sampled(facts, num_frames=wanted)
        except MediaError:
            chosen = ()
        return chosen if 1 <= len(chosen) <= wanted else tuple(spread_evenly(facts.frame_count, wanted))

    def _sampled_rate(self, facts: ClipFacts, sampling: FrameOptions) -> tuple[int, ...]:
        """By the video processor's own rule, unless its own minimum makes it more than were asked for."""
        chosen = self._sampled(facts, fps=sampling.fps)
        if len(chosen) > self._config.max_video_frames:
            return chosen
        asked = default_frames(facts, sampling, self._config)
        return chosen if len(chosen) <= len(asked) else asked

    def _sampled(self, facts: ClipFacts, **arguments: Any) -> tuple[int, ...]:
        """By the video processor's own rule; what it refuses is the request's fault."""
        try:
            chosen = self._processor.video_processor.sample_frames(_metadata(facts, None), **arguments)
        except _FOREIGN_ERRORS as error:
            raise MediaError(
                Reason.VIDEO_OPTION_INVALID,
                f"the checkpoint cannot choose frames of this clip of {facts.frame_count} frames at {facts.fps:g} per "
                "second that way; set num_frames to no more than it has",
            ) from error
        indices = sorted({min(int(index), facts.frame_count - 1) for index in chosen})
        return tuple(indices) or (0,)

    def _process_patches(self, patches: Patches, modality: Modality) -> ProcessedMedia:
        vision, (t, h, w) = self._checkpoint.config.vision_config, patches.grid
        merge, temporal = int(vision.spatial_merge_size), int(vision.temporal_patch_size)
        channels = int(getattr(vision, "in_channels", None) or vision.in_chans)
        self._check_grid(patches.grid, modality, merge)
        array = checked_floats(patches.pixels, "patches.pixels")
        if patches.layout is PatchLayout.ROW_MAJOR:
            numbers = channels * self._patch_size**2
            frames = array.shape[0] // (h * w) if array.ndim == 2 else 0
            if frames not in (t, t * temporal):
                frames = t
            refuse_shape(
                array, (frames * h * w, numbers), "patches.pixels", f"{frames} x {h} x {w} patches in row order"
            )
            array = row_major_to_tower(array, (t, h, w), merge, temporal)
        else:
            wanted = (t * h * w, channels * temporal * self._patch_size**2)
            refuse_shape(array, wanted, "patches.pixels", f"a grid of {t} x {h} x {w}, as the vision tower takes it")
        rows = t * (h // merge) * (w // merge)
        family = self._checkpoint.family
        pixel_name, grid_name = family.vision_tensors if modality is Modality.IMAGE else family.video_tensors
        return ProcessedMedia(
            tensors={pixel_name: tensor_data_of(array), grid_name: tensor_data_of(np.array([[t, h, w]], np.int64))},
            replacement=self.replacement_for_rows(rows, modality),
            decision=MediaDecision(grid=(t, h, w), frames=t * temporal if modality is Modality.VIDEO else 1),
        )

    def _check_grid(self, grid: tuple[int, int, int], modality: Modality, merge: int) -> None:
        """No more patches than the checkpoint's own processor could give: a tower's cost grows with their square."""
        t, h, w = grid
        if min(grid) < 1 or h % merge or w % merge or (modality is Modality.IMAGE and t != 1):
            raise MediaError(
                Reason.TENSOR_INVALID,
                f"patches.grid is {t} x {h} x {w}; h and w must be multiples of {merge}, and t is 1 for an image",
            )
        processor = getattr(self._processor, "image_processor" if modality is Modality.IMAGE else "video_processor")
        most = int(processor.size["longest_edge"]) // self._patch_size**2
        if h * w > most or t > self._config.max_video_frames:
            raise MediaError(
                Reason.TENSOR_INVALID,
                f"patches.grid is {t} x {h} x {w}; this model takes at most {most} patches in one picture, and "
                f"{self._config.max_video_frames} steps in time",
            )

    def _process_tiles(self, tiles: Tiles) -> ProcessedMedia:
        side = int(self._checkpoint.config.vision_config.image_size)
        array = checked_floats(tiles.pixels, "tiles.pixels")
        if self._form is PixelForm.TILES:
            refuse_shape(array, (1, 3, side, side), "tiles.pixels", "this model sees a picture as one tile")
            outputs: dict[str, Any] = {"pixel_values": torch.from_numpy(array.copy())}
            decision = MediaDecision(tiles.original_size, (side, side))
        else:
            outputs, decision = self._anyres_outputs(array, tiles.original_size, side)
        text = self._processor.replace_image_token(outputs, 0)
        names = self._checkpoint.family.vision_tensors
        return ProcessedMedia(
            tensors={name: _tensor_data(outputs[name]) for name in names},
            replacement=self._replacement(text, Modality.IMAGE),
            decision=decision,
        )

    def _anyres_outputs(
        self, array: np.ndarray, original_size: tuple[int, int] | None, side: int
    ) -> tuple[dict[str, Any], MediaDecision]:
        """The image processor's outputs for tiles made elsewhere: the whole picture first, then its tiles in rows."""
        if original_size is None or min(original_size) < 1:
            raise MediaError(Reason.TENSOR_INVALID, "tiles.original_size is not set; this model cuts padding off by it")
        if max(original_size) > self._config.max_image_side:
            raise MediaError(
                Reason.TENSOR_INVALID,
                f"tiles.original_size is {original_size[0]} x {original_size[1]}, a side may have "
                f"{self._config.max_image_side}",
            )
        columns, rows = self._anyres_tiles(original_size, side)
        why = f"{columns} x {rows} tiles and the whole picture before them, for this original_size"
        refuse_shape(array, (columns * rows + 1, 3, side, side), "tiles.pixels", why)
        outputs = {
            "pixel_values": torch.from_numpy(array.copy())[None],
            "image_sizes": torch.tensor([[original_size[1], original_size[0]]]),
        }
        return outputs, MediaDecision(original_size, (side, side), tiles=(columns, rows), has_thumbnail=True)

    def _replacement(self, text: str, modality: Modality) -> Replacement:
        """Most families only repeat the placeholder, thousands of times; the tokenizer is asked about the others."""
        spelling = self._spellings[modality]
        rows = len(text) // len(spelling)
        if rows and text == spelling * rows:
            return self.replacement_for_rows(rows, modality)
        return replacement_from(self._guarded.encode_trusted(text), self.placeholder_id(modality))


def _area_within(processor: Any, size: tuple[int, int], is_image: bool, bounds: PixelBounds) -> int:
    """Pixels that the processor makes of a picture or frame of this (width, height) within these bounds."""
    width, height = size
    if is_image:
        limits = {"min_pixels": bounds.low, "max_pixels": bounds.high}
        patches = processor.get_number_of_image_patches(height, width, limits)
    else:
        limits = {"size": {"shortest_edge": bounds.low, "longest_edge": bounds.high}}
        patches = processor.get_num_of_video_patches(1, height, width, limits)
    return int(patches) * processor.patch_size**2


def _as_shipped(video_processor: Any) -> dict[str, Any]:
    """What a checkpoint that says nothing of the budget of a whole clip means today: none, whatever a later default."""
    return {"cap_pixels_per_frame": False} if getattr(video_processor, "cap_pixels_per_frame", ...) is None else {}


def _metadata(facts: ClipFacts, indices: tuple[int, ...] | None) -> VideoMetadata:
    return VideoMetadata(
        total_num_frames=facts.frame_count, fps=facts.fps, frames_indices=None if indices is None else list(indices)
    )


def _tensor_data(tensor: torch.Tensor) -> TensorData:
    return tensor_data_of(tensor.detach().cpu().numpy())
