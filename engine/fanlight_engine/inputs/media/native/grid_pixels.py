"""Pictures and clips for towers that take a grid of patches (Qwen2-VL and its kin), at a resolution of their own.

Knows budgets, grids and the tower's row order; knows no requests, digests or threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.native.dynamic_resolution import (
    Grid,
    PatchBudget,
    embeddings_of,
    image_grid,
    largest_grid,
    video_grid,
)
from fanlight_engine.inputs.media.native.image_processing_config import ResizeMode, is_reachable
from fanlight_engine.inputs.media.native.patches import row_major_to_tower, tower_patches
from fanlight_engine.inputs.media.native.pixels import float_tensor, pixels_of, resized
from fanlight_engine.inputs.media.native.tower import Tower, placeholders_of, repeated_placeholder
from fanlight_engine.inputs.media.pixel_bounds import PixelBounds, bounds_for
from fanlight_engine.inputs.media.processing import Clip, MediaDecision, MediaError, ProcessedMedia
from fanlight_engine.inputs.media.tensors import checked_floats, refuse_shape
from fanlight_engine.request import Detail, Modality, Patches, PatchLayout, PixelOptions, Tiles
from fanlight_engine.tensor_data import TensorData, tensor_data_of


class GridPixels:
    """Media of a tower that takes patches. Raises CheckpointError for a description that does not fit it."""

    def __init__(self, tower: Tower) -> None:
        processing, vision = tower.processing, tower.vision
        tower.refuse_other_modes(ResizeMode.DYNAMIC)
        tower.refuse_differences(
            (
                ("patch_dim", processing.patch_dim, "vision_config.patch_size", vision.patch_size),
                ("a merge factor of", processing.merge, "vision_config.spatial_merge_size", vision.spatial_merge_size),
                (
                    *("temporal_patch_size", processing.temporal_patch_size),
                    *("vision_config.temporal_patch_size", vision.temporal_patch_size),
                ),
            )
        )
        self._tower = tower
        self._patch = processing.patch_dim
        self._merge = processing.merge
        self._temporal = processing.temporal_patch_size
        self.placeholders = placeholders_of(
            tower, tuple(Modality) if tower.checkpoint.takes_videos else (Modality.IMAGE,)
        )

    def image(self, picture: Image.Image, options: PixelOptions) -> ProcessedMedia:
        """One picture, which stands for a whole temporal patch."""
        budget = self._budget(options)
        choose = largest_grid if options.detail is Detail.HIGH else self._image_grid
        grid = choose(picture.width, picture.height, budget)
        patches = tower_patches(self._resized(pixels_of(picture), grid)[None], self._patch, self._merge)
        numbers = self._tower.normalize(patches)[:, :, None]
        repeated = np.broadcast_to(numbers, (*numbers.shape[:2], self._temporal, numbers.shape[3]))
        return self._processed(
            float_tensor(repeated, (len(patches), repeated[0].size)), (1, *grid), Modality.IMAGE, picture.size
        )

    def video(self, clip: Clip, options: PixelOptions) -> ProcessedMedia:
        """The frames of one clip, all on one grid; the last one fills up a temporal patch that has too few."""
        steps = -(-len(clip.frames) // self._temporal)
        grid = self._video_grid(clip.size, options, steps)
        numbers = np.empty((steps, grid[0] * grid[1], 3, self._temporal * self._patch**2), np.float32)
        for step in range(steps):
            frames = clip.frames[step * self._temporal : (step + 1) * self._temporal]
            small = [self._resized(frame, grid) for frame in frames]
            small += [small[-1]] * (self._temporal - len(small))
            numbers[step] = self._tower.normalize(tower_patches(np.stack(small), self._patch, self._merge))
        tensor = float_tensor(numbers, (numbers.shape[0] * numbers.shape[1], numbers[0, 0].size))
        times = clip.times
        return self._processed(
            *(tensor, (steps, *grid), Modality.VIDEO, clip.size),
            frames=len(clip.frames),
            frame_times=times,
            seconds_per_grid=_seconds_per_grid(times, self._temporal),
        )

    def tensors(self, pixels: Patches | Tiles, modality: Modality) -> ProcessedMedia:
        """Patches that were made elsewhere, in either order, checked against tower and budget."""
        if isinstance(pixels, Tiles):
            raise MediaError(Reason.TENSOR_INVALID, "this model takes patches with a grid; send patches, not tiles")
        t, h, w = grid = pixels.grid
        self._refuse_grid(grid, modality)
        array = checked_floats(pixels.pixels, "patches.pixels")
        numbers, rows = 3 * self._patch**2, t * h * w
        if pixels.layout is PatchLayout.ROW_MAJOR:
            frames = self._temporal if len(array) == rows * self._temporal else 1
            why = f"{t} x {h} x {w} patches in row order, one frame or {self._temporal} for each step in time"
            refuse_shape(array, (rows * frames, numbers), "patches.pixels", why)
            array = row_major_to_tower(array, grid, self._merge, self._temporal)
        else:
            why = f"a grid of {t} x {h} x {w}, as the vision tower takes it"
            refuse_shape(array, (rows, numbers * self._temporal), "patches.pixels", why)
        frames = t * self._temporal if modality is Modality.VIDEO else 1
        return self._processed(float_tensor(array, array.shape), grid, modality, None, frames=frames)

    def _image_grid(self, width: int, height: int, budget: PatchBudget) -> Grid:
        return image_grid(width, height, self._patch, budget)

    def _video_grid(self, size: tuple[int, int], options: PixelOptions, steps: int) -> Grid:
        try:
            budget = self._budget(options, steps)
        except MediaError as error:
            raise MediaError(Reason.VIDEO_OPTION_INVALID, error.description) from error
        grid = video_grid(*size, budget, self._tower.processing.video_maintain_aspect_ratio)
        pixels = grid[0] * grid[1] * self._patch**2
        if options.min_pixels is not None and pixels < options.min_pixels:
            raise MediaError(
                Reason.VIDEO_OPTION_INVALID,
                f"min_pixels is {options.min_pixels}, frames of {size[0]} x {size[1]} pixels get {pixels} at most; "
                "lower min_pixels",
            )
        return grid

    def _budget(self, options: PixelOptions, steps: int = 1) -> PatchBudget:
        """Patches of one picture or frame, as described and as asked for. Raises MediaError."""
        processing, area, group = self._tower.processing, self._patch**2, self._merge**2
        own = PixelBounds(processing.min_patches * area, processing.max_patches * area)
        bounds = bounds_for(options, own, group * area, self._tower.config.low_detail_tokens, steps)
        low, high = -(-bounds.low // area), bounds.high // area
        if options.min_pixels is None:
            low = min(low, high // group * group)
        if not is_reachable(low, high, self._merge):
            raise MediaError(
                Reason.IMAGE_OPTION_INVALID,
                f"no size has between {bounds.low} and {bounds.high} pixels here, since all are made of squares of "
                f"{group * area} pixels; leave more room between the bounds",
            )
        return PatchBudget(low, high, self._merge)

    def _resized(self, pixels: np.ndarray, grid: Grid) -> np.ndarray:
        return resized(pixels, grid[0] * self._patch, grid[1] * self._patch)

    def _refuse_grid(self, grid: tuple[int, int, int], modality: Modality) -> None:
        """No more patches than this model's own pictures have: a tower's cost grows with their square."""
        t, h, w = grid
        got = f"patches.grid is {t} x {h} x {w}"
        if min(grid) < 1 or h % self._merge or w % self._merge or (modality is Modality.IMAGE and t != 1):
            raise MediaError(
                Reason.TENSOR_INVALID, f"{got}; h and w must be multiples of {self._merge}, and t is 1 for an image"
            )
        most = self._tower.processing.max_patches
        if h * w > most:
            raise MediaError(Reason.TENSOR_INVALID, f"{got}; h x w may be {most} in this model; send fewer patches")
        most_steps = -(-self._tower.config.max_video_frames // self._temporal)
        if t > most_steps:
            raise MediaError(Reason.TENSOR_INVALID, f"{got}; t may be {most_steps} on this server; send fewer steps")

    def _processed(
        self,
        pixels: TensorData,
        grid: tuple[int, int, int],
        modality: Modality,
        size: tuple[int, int] | None,
        *,
        frames: int = 1,
        frame_times: Sequence[float] = (),
        seconds_per_grid: float = 1.0,
    ) -> ProcessedMedia:
        family = self._tower.checkpoint.family
        pixel_name, grid_name = family.vision_tensors if modality is Modality.IMAGE else family.video_tensors
        t, h, w = grid
        rows = t * embeddings_of((h, w), self._merge)
        return ProcessedMedia(
            tensors={pixel_name: pixels, grid_name: tensor_data_of(np.array([grid], np.int64))},
            replacement=repeated_placeholder(self.placeholders[modality], rows),
            decision=MediaDecision(
                original_size=size,
                resized_size=None if size is None else (w * self._patch, h * self._patch),
                grid=grid,
                frames=frames,
                frame_times=tuple(frame_times),
            ),
            seconds_per_grid=seconds_per_grid,
        )


def _seconds_per_grid(times: Sequence[float], temporal_patch_size: int) -> float:
    """Mean time between two temporal patches; a second where nobody knows, as for patches that were made elsewhere."""
    if len(times) < 2 or times[-1] <= times[0]:
        return 1.0
    return (times[-1] - times[0]) / (len(times) - 1) * temporal_patch_size
