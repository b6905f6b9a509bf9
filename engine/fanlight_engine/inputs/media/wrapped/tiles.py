"""TILES: square tiles of one size, one or several to a picture; frames of a clip are tiles, too.

How many tiles a picture may have is the processor's to say: in what it puts into the prompt for so many.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.models.got_ocr2.image_processing_got_ocr2 import get_optimal_tiled_canvas

from fanlight_engine.inputs.media.processing import MediaDecision
from fanlight_engine.inputs.media.tensors import checked_floats, refuse_shape
from fanlight_engine.inputs.media.wrapped.form import (
    Form,
    Outputs,
    Shown,
    metadata_of_steps,
    mismatch,
    pixels_of_shape,
)
from fanlight_engine.request import Tiles

_SWITCHES = ("crop_to_patches", "do_pan_and_scan")


class TilesForm(Form):
    """See the module."""

    described = "square tiles"
    taken = "tiles"

    def tensors(self, outputs: Outputs) -> dict[str, torch.Tensor]:
        """Frames of a clip become tiles of one medium."""
        (name,) = self.half.names
        return {name: outputs[name] if self.half.is_for_pictures else outputs["pixel_values_videos"].flatten(0, 1)}

    @property
    def cuts_pictures(self) -> bool:
        """By the switches that image processors of this form have for it."""
        return any(self.half.arguments.get(name) for name in _SWITCHES)

    def decision(self, size: tuple[int, int], outputs: Outputs) -> MediaDecision:
        """With the layout of the tiles, where there are several."""
        side = self._pixels(outputs).shape[-1]
        tiles = len(outputs["pixel_values"]) if self.half.is_for_pictures else 1
        if tiles == 1:
            return MediaDecision(size, (side, side))
        return MediaDecision(size, (side, side), tiles=self._layout(size, outputs), has_thumbnail=True)

    def outputs_of_tiles(self, tiles: Tiles) -> tuple[Outputs, MediaDecision]:
        """As many tiles as came, the whole picture among them where the model has it so."""
        if not self.half.is_for_pictures:
            return super().outputs_of_tiles(tiles)
        side, takes_several = self._side, self.replacement_of(self._outputs_of_count(2)).rows == 2 * self._rows_of_one
        array = checked_floats(tiles.pixels, "tiles.pixels")
        count = array.shape[0] if takes_several else 1
        why = "tiles of the size that this model sees" if takes_several else "this model sees a picture as one tile"
        refuse_shape(array, (count, 3, side, side), "tiles.pixels", why)
        outputs = {**self._outputs_of_count(count), "pixel_values": torch.from_numpy(array.copy())}
        return outputs, MediaDecision(tiles.original_size, (side, side), has_thumbnail=count > 1)

    def outputs_of_embeddings(self, shown: Shown) -> Outputs | None:
        """As many tiles as have so many rows; models that show nothing but rows take any number of them."""
        one = self.replacement_of(self._outputs_of_count(1))
        if len(one.ids) == one.rows:
            return None
        count, rest = divmod(shown.rows, one.rows)
        if rest or not count:
            raise mismatch(
                f"it has {shown.rows} embeddings; a {self.half.noun} of this model has {one.rows} for each of its "
                + ("tiles" if self.half.is_for_pictures else "frames")
            )
        return self._outputs_of_count(count, shown.seconds_per_step or 1.0)

    @property
    def _side(self) -> int:
        side: Any = self.half.vision.image_size
        return int(side if isinstance(side, int) else side[0])

    @property
    def _rows_of_one(self) -> int:
        return self.replacement_of(self._outputs_of_count(1)).rows

    def _pixels(self, outputs: Outputs) -> torch.Tensor:
        return outputs["pixel_values" if self.half.is_for_pictures else "pixel_values_videos"]

    def _outputs_of_count(self, count: int, seconds: float = 1.0) -> dict[str, Any]:
        """Under every name by which processors of this form count tiles, crops beside the whole, or frames."""
        shape = (count, 3, self._side, self._side)
        if self.half.is_for_pictures:
            return {"pixel_values": pixels_of_shape(*shape), "num_patches": [count], "num_crops": [count - 1]}
        return {
            "pixel_values_videos": pixels_of_shape(1, *shape),
            "video_metadata": [metadata_of_steps(count, seconds)],
        }

    def _layout(self, size: tuple[int, int], outputs: Outputs) -> tuple[int, int]:
        """(columns, rows) of the tiles beside the whole picture: crops along the longer side, or a canvas of tiles."""
        width, height = size
        if "num_crops" in outputs:
            crops = int(outputs["num_crops"][0])
            return (crops, 1) if width >= height else (1, crops)
        processor = self.half.pixel_processor
        tile = (self._side, self._side)
        return get_optimal_tiled_canvas((height, width), tile, processor.min_patches, processor.max_patches)
