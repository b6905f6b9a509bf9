"""SIZED: a picture at its own resolution, in whole cells of patches, each row of which ends with a token of its own.

Processors scale such pictures down to a longest edge, never up, and round to whole cells.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from transformers.image_utils import ChannelDimension
from transformers.models.pixtral.image_processing_pixtral import get_resize_output_image_size

from fanlight_engine.inputs.media.pixel_bounds import PixelBounds, bounds_for, fitting_bounds
from fanlight_engine.inputs.media.processing import MediaDecision
from fanlight_engine.inputs.media.tensors import checked_floats, refuse_shape
from fanlight_engine.inputs.media.wrapped.form import Form, Half, Outputs, ReplacementOf, Shown, mismatch, tensor_error
from fanlight_engine.request import PixelOptions, Tiles
from fanlight_engine.tensor_data import TensorData

_GUESSES_CHANNELS = "The channel dimension is ambiguous"
"""What transformers says of pictures 1 or 3 pixels wide: their processors measure pixels without saying which axis has
the channels. The guess is the first one, where they are."""


class SizedForm(Form):
    """See the module."""

    described = "a picture at its own size"
    taken = "it as one tile"

    def __init__(self, half: Half, replacement_of: ReplacementOf) -> None:
        super().__init__(half, replacement_of)
        logging.getLogger("transformers.image_utils").addFilter(_is_no_guess_of_channels)

    def size_arguments(self, options: PixelOptions, size: tuple[int, int], frames: int) -> dict[str, Any]:
        """The longest edge with which the picture has no more pixels than were asked for."""
        edge = self._longest_edge
        if edge is None or options == PixelOptions():
            return super().size_arguments(options, size, frames)
        own = PixelBounds(1, self._area(size, edge))
        bounds = bounds_for(options, own, self._cell**2, self.half.config.low_detail_tokens)
        edge = self._edge_within(size, edge, bounds.high)
        fitting_bounds(bounds, lambda _: self._area(size, edge), options)
        return {"size": {"longest_edge": edge}}

    def decision(self, size: tuple[int, int], outputs: Outputs) -> MediaDecision:
        """With a grid, from which the ends of rows can be told."""
        height, width = (int(side) for side in outputs["image_sizes"][0])
        return MediaDecision(size, (width, height), (1, height // self._patch, width // self._patch))

    def outputs_of_tiles(self, tiles: Tiles) -> tuple[Outputs, MediaDecision]:
        """One tile that is the picture, of any size in whole cells up to the model's own limit."""
        array = checked_floats(tiles.pixels, "tiles.pixels")
        height, width = array.shape[-2:] if array.ndim == 4 else (self._cell, self._cell)
        refuse_shape(array, (1, 3, height, width), "tiles.pixels", "this model sees a picture as one, at its own size")
        edge = self._longest_edge or max(height, width)
        if height % self._cell or width % self._cell or max(height, width) > edge:
            raise tensor_error(
                f"tiles.pixels is a picture of {width} x {height} pixels; both must be multiples of {self._cell}, "
                f"and at most {edge}"
            )
        outputs = {"pixel_values": torch.from_numpy(array.copy()), "image_sizes": torch.tensor([[height, width]])}
        return outputs, self.decision(tiles.original_size or (width, height), outputs)

    def outputs_of_embeddings(self, shown: Shown) -> Outputs | None:
        """The grid tells how long a row is."""
        if shown.grid is None:
            raise mismatch(
                "it has no grid, which the ends of this model's rows are made from; set embeddings.grid to (1, h, w) "
                "in patches, or the file's metadata grid to 't,h,w'"
            )
        t, h, w = shown.grid
        merge = self._cell // self._patch
        if t != 1 or min(h, w) < 1 or h % merge or w % merge or h * w // merge**2 != shown.rows:
            raise mismatch(
                f"its grid is {t} x {h} x {w} patches for {shown.rows} embeddings; t must be 1, and (h / {merge}) x "
                f"(w / {merge}) equal to them"
            )
        return {"image_sizes": torch.tensor([[h * self._patch, w * self._patch]])}

    def misfit(self, tensors: Mapping[str, TensorData]) -> str | None:
        """By the size of a patch, and by how many patches make a row of embeddings."""
        merge = int(getattr(self.half.checkpoint.config, "spatial_merge_size", 1))
        processor = self.half.processor
        if (processor.patch_size, processor.spatial_merge_size) == (self._patch, merge):
            return None
        return (
            f"has patch_size {processor.patch_size} and spatial_merge_size {processor.spatial_merge_size}, where the "
            f"tower has {self._patch} and {merge}"
        )

    @property
    def _patch(self) -> int:
        return int(self.half.vision.patch_size)

    @property
    def _cell(self) -> int:
        """Pixels on a side of what one embedding covers."""
        return int(self.half.processor.patch_size) * int(self.half.processor.spatial_merge_size)

    @property
    def _longest_edge(self) -> int | None:
        edge = self.half.pixel_processor.size.get("longest_edge")
        return None if edge is None else int(edge)

    def _area(self, size: tuple[int, int], edge: int) -> int:
        """Pixels that the processor makes of a picture of this (width, height); 0 where a side would vanish."""
        width, height = size
        picture = np.broadcast_to(np.uint8(0), (height, width, 3))
        return int(np.prod(get_resize_output_image_size(picture, edge, self._cell, ChannelDimension.LAST)))

    def _edge_within(self, size: tuple[int, int], edge: int, high: int) -> int:
        """The greatest edge that leaves no more than `high` pixels, or the least with which both sides are left."""
        least, most = -(-max(size) // min(size)), edge
        while least < most:
            middle = (least + most + 1) // 2
            least, most = (middle, most) if self._area(size, middle) <= high else (least, middle - 1)
        return least


def _is_no_guess_of_channels(record: logging.LogRecord) -> bool:
    """Whether a line of transformers' log is to be written."""
    return not record.getMessage().startswith(_GUESSES_CHANNELS)
