"""GRID: rows of patches and their grid (t, h, w). Sizes are bounds of an area, which processors may still round past.

Some video processors bound the area of each frame, others that of all frames together; a look at their own arithmetic
tells which.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from fanlight_engine.inputs.media.native.patches import row_major_to_tower
from fanlight_engine.inputs.media.pixel_bounds import PixelBounds, bounds_for, fitting_bounds
from fanlight_engine.inputs.media.processing import MediaDecision
from fanlight_engine.inputs.media.tensors import checked_floats, refuse_shape
from fanlight_engine.inputs.media.wrapped.form import Form, Grid, Outputs, Shown, metadata_of_steps, tensor_error
from fanlight_engine.request import Patches, PatchLayout, PixelOptions
from fanlight_engine.tensor_data import TensorData

_UNKNOWN_SECONDS = 1.0
"""Between two steps of a clip that came as tensors, unless the request says."""


class GridForm(Form):
    """See the module."""

    described = "patches with a grid"
    taken = taken_of_clips = "patches"

    def size_arguments(self, options: PixelOptions, size: tuple[int, int], frames: int) -> dict[str, Any]:
        """Bounds of the area, no wider than the checkpoint's own."""
        if options == PixelOptions():
            return {}
        processor, steps = self.half.pixel_processor, self._steps(frames)
        share = steps * self._temporal if self._bounds_whole_clips else 1
        cell = (processor.patch_size * processor.merge_size) ** 2
        low, high = (int(processor.size[edge]) // share for edge in ("shortest_edge", "longest_edge"))
        own = PixelBounds(low, max(high, cell))
        bounds = bounds_for(options, own, cell, self.half.config.low_detail_tokens, steps)
        bounds = fitting_bounds(bounds, partial(self._area_within, size, frames, share), options)
        return {"size": _edges(bounds, share)}

    def decision(self, size: tuple[int, int], outputs: Outputs) -> MediaDecision:
        """With the grid."""
        grid = tuple(outputs[self._grid_name][0].tolist())
        return MediaDecision(size, (grid[2] * self._patch, grid[1] * self._patch), grid)

    def outputs_of_patches(self, patches: Patches) -> tuple[Outputs, MediaDecision]:
        """In the tower's order or row by row; clips also with one frame for each step in time."""
        t, h, w = patches.grid
        self._check_grid(patches.grid)
        array = checked_floats(patches.pixels, "patches.pixels")
        if patches.layout is PatchLayout.ROW_MAJOR:
            numbers = self._channels * self._patch**2
            frames = array.shape[0] // (h * w) if array.ndim == 2 else 0
            if frames not in (t, t * self._temporal):
                frames = t
            why = f"{frames} x {h} x {w} patches in row order"
            refuse_shape(array, (frames * h * w, numbers), "patches.pixels", why)
            array = row_major_to_tower(array, patches.grid, self._merge, self._temporal)
        else:
            wanted = (t * h * w, self._channels * self._temporal * self._patch**2)
            refuse_shape(array, wanted, "patches.pixels", f"a grid of {t} x {h} x {w}, as the vision tower takes it")
        outputs = {
            self.half.names[0]: torch.from_numpy(np.array(array)),
            **self._outputs_of_grid(patches.grid, patches.seconds_per_step),
        }
        return outputs, MediaDecision(grid=patches.grid, frames=1 if self.half.is_for_pictures else t * self._temporal)

    def outputs_of_embeddings(self, shown: Shown) -> Outputs | None:
        """The grid says it all, and a clip's times."""
        assert shown.grid is not None, "checked with the embeddings"
        return self._outputs_of_grid(shown.grid, shown.seconds_per_step)

    def misfit(self, tensors: Mapping[str, TensorData]) -> str | None:
        """By the numbers of a patch, and by how many patches make a row of embeddings."""
        numbers, needed = tensors[self.half.names[0]].shape[1], self._channels * self._temporal * self._patch**2
        if numbers != needed:
            return (
                f"gives patches of {numbers} numbers, where {self._channels} channels, "
                f"vision_config.temporal_patch_size {self._temporal} and patch_size {self._patch} make {needed}"
            )
        merge = int(self.half.pixel_processor.merge_size)
        if merge != self._merge:
            return f"has merge_size {merge}, where vision_config.spatial_merge_size is {self._merge}"
        return None

    def _outputs_of_grid(self, grid: Grid, seconds_per_step: float | None) -> dict[str, Any]:
        outputs: dict[str, Any] = {self._grid_name: torch.tensor([grid])}
        if not self.half.is_for_pictures:
            between = (seconds_per_step or _UNKNOWN_SECONDS) / self._temporal
            outputs["video_metadata"] = [metadata_of_steps(grid[0] * self._temporal, between)]
        return outputs

    @property
    def _grid_name(self) -> str:
        return self.half.names[1]

    @property
    def _channels(self) -> int:
        return int(getattr(self.half.vision, "in_channels", None) or self.half.vision.in_chans)

    @property
    def _patch(self) -> int:
        return int(self.half.vision.patch_size)

    @property
    def _merge(self) -> int:
        return int(self.half.vision.spatial_merge_size)

    @property
    def _temporal(self) -> int:
        return int(self.half.vision.temporal_patch_size)

    def _steps(self, frames: int) -> int:
        return 1 if self.half.is_for_pictures else -(-frames // self._temporal)

    @cached_property
    def _bounds_whole_clips(self) -> bool:
        """Whether more frames in one clip leave less of the bounds to each of them."""
        if self.half.is_for_pictures:
            return False
        processor, temporal = self.half.pixel_processor, self._temporal
        side = processor.patch_size * processor.merge_size * 16
        limits = {"size": {"shortest_edge": 1, "longest_edge": side**2 * temporal}}
        few, many = (processor.get_num_of_video_patches(n * temporal, side, side, limits) / n for n in (1, 8))
        return many < few

    def _area_within(self, size: tuple[int, int], frames: int, share: int, bounds: PixelBounds) -> int:
        """Pixels that the processor makes of a picture or frame of this (width, height) within these bounds."""
        (width, height), processor = size, self.half.pixel_processor
        if self.half.is_for_pictures:
            limits = {"min_pixels": bounds.low, "max_pixels": bounds.high}
            patches = processor.get_number_of_image_patches(height, width, limits)
        else:
            shown = frames if self._bounds_whole_clips else 1
            limits = {"size": _edges(bounds, share)}
            patches = processor.get_num_of_video_patches(shown, height, width, limits) // self._steps(shown)
        return int(patches) * processor.patch_size**2

    def _check_grid(self, grid: Grid) -> None:
        """No more patches than the checkpoint's own processor could give: a tower's cost grows with their square."""
        t, h, w = grid
        if min(grid) < 1 or h % self._merge or w % self._merge or (self.half.is_for_pictures and t != 1):
            raise tensor_error(
                f"patches.grid is {t} x {h} x {w}; h and w must be multiples of {self._merge}, and t is 1 for an image"
            )
        most, steps = int(self.half.pixel_processor.size["longest_edge"]) // self._patch**2, self.half.config
        if h * w > most or t > steps.max_video_frames:
            raise tensor_error(
                f"patches.grid is {t} x {h} x {w}; this model takes at most {most} patches in one picture, and "
                f"{steps.max_video_frames} steps in time"
            )


def _edges(bounds: PixelBounds, share: int) -> dict[str, int]:
    """As processors call bounds of an area, `share` of which they hold."""
    return {"shortest_edge": bounds.low * share, "longest_edge": bounds.high * share}
