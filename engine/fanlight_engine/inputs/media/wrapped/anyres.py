"""ANYRES: the whole picture first, then its tiles in rows, laid out after the picture's shape; or the whole alone."""

from __future__ import annotations

import torch
from transformers.image_processing_utils import select_best_resolution

from fanlight_engine.inputs.media.processing import MediaDecision
from fanlight_engine.inputs.media.tensors import checked_floats, refuse_shape
from fanlight_engine.inputs.media.wrapped.form import Form, Outputs, tensor_error
from fanlight_engine.request import Tiles

_LONE, _ONE_OF_SEVERAL = 1, 2
"""How many pictures a prompt has, as processors count them that split a lone picture only."""


class AnyresForm(Form):
    """See the module."""

    described = "square tiles, the whole picture first"
    taken = "tiles"

    def tensors(self, outputs: Outputs) -> dict[str, torch.Tensor]:
        """Those of the first picture: what else the processor was shown only tells it that this is not the only one."""
        return {name: outputs[name][:1] for name in self.half.names}

    @property
    def cuts_pictures(self) -> bool:
        """Always."""
        return True

    def decision(self, size: tuple[int, int], outputs: Outputs) -> MediaDecision:
        """With the layout of the tiles."""
        tiles, side = outputs["pixel_values"].shape[1], outputs["pixel_values"].shape[-1]
        if tiles == 1:
            return MediaDecision(size, (side, side))
        return MediaDecision(size, (side, side), tiles=self._layout(size, side), has_thumbnail=True)

    def outputs_of_tiles(self, tiles: Tiles) -> tuple[Outputs, MediaDecision]:
        """In the layout of the original size; families that split a lone picture only take the whole one alone, too."""
        size, side = tiles.original_size, int(self.half.vision.image_size)
        array = checked_floats(tiles.pixels, "tiles.pixels")
        if size is None or min(size) < 1:
            raise tensor_error("tiles.original_size is not set; this model cuts padding off by it")
        if max(size) > self.half.config.max_image_side:
            raise tensor_error(
                f"tiles.original_size is {size[0]} x {size[1]}, a side may have {self.half.config.max_image_side}"
            )
        is_whole = self.half.checkpoint.family.splits_only_a_lone_picture and array.shape[0] == 1
        columns, rows = self._layout(size, side)
        count = 1 if is_whole else columns * rows + 1
        why = f"{columns} x {rows} tiles and the whole picture before them, for this original_size"
        refuse_shape(array, (count, 3, side, side), "tiles.pixels", why)
        outputs = {
            "pixel_values": torch.from_numpy(array.copy())[None],
            "image_sizes": torch.tensor([[size[1], size[0]]]),
            "batch_num_images": [_ONE_OF_SEVERAL if is_whole else _LONE],
        }
        return outputs, self.decision(size, outputs)

    def _layout(self, size: tuple[int, int], side: int) -> tuple[int, int]:
        """(columns, rows) of the resolution that the image processor picks for a picture."""
        pinpoints = self.half.pixel_processor.image_grid_pinpoints
        height, width = select_best_resolution((size[1], size[0]), pinpoints)
        return width // side, height // side
