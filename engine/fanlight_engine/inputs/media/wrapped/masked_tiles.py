"""MASKED_TILES: tiles in rows and the whole picture last, or the whole one alone, with a mask of what is padding; the
frames of a clip are such whole pictures."""

from __future__ import annotations

from typing import Any

from fanlight_engine.inputs.media.processing import MediaDecision
from fanlight_engine.inputs.media.wrapped.form import (
    Form,
    Grid,
    Outputs,
    Shown,
    metadata_of_steps,
    mismatch,
    pixels_of_shape,
)


class MaskedTilesForm(Form):
    """See the module."""

    described = "tiles and a mask of their padding, with tags that say where each is"

    @property
    def cuts_pictures(self) -> bool:
        """Unless the checkpoint turns it off."""
        return bool(self.half.arguments.get("do_image_splitting", self.half.pixel_processor.do_image_splitting))

    def decision(self, size: tuple[int, int], outputs: Outputs) -> MediaDecision:
        """With the layout of the tiles, and a grid over them that their tags can be told from."""
        height, width = outputs["pixel_values"].shape[-2:]
        if not self.half.is_for_pictures:
            return MediaDecision(size, (width, height))
        rows, columns = int(outputs["rows"][0][0]), int(outputs["cols"][0][0])
        patch, is_split = int(self.half.vision.patch_size), rows * columns > 0
        across, down = (columns, rows) if is_split else (1, 1)
        return MediaDecision(
            size,
            (width * across, height * down),
            grid=(1, height // patch * down, width // patch * across),
            tiles=(columns, rows) if is_split else None,
            has_thumbnail=is_split,
        )

    def outputs_of_embeddings(self, shown: Shown) -> Outputs | None:
        """A picture's tags come from its grid, a clip's from its number of frames and their times."""
        one = self._outputs_of_layout(0, 0) if self.half.is_for_pictures else self._outputs_of_frames(1, 1.0)
        each = self.replacement_of(one).rows
        count, rest = divmod(shown.rows, each)
        if rest or not count:
            raise mismatch(f"it has {shown.rows} embeddings; this model has {each} for each tile of a picture or frame")
        if not self.half.is_for_pictures:
            return self._outputs_of_frames(count, shown.seconds_per_step or 1.0)
        if count == 1:
            return one
        columns, rows = self._layout(shown.grid)
        if columns * rows + 1 != count:
            raise mismatch(
                f"its grid is that of {columns} x {rows} tiles and the whole picture, which have "
                f"{(columns * rows + 1) * each} embeddings; it has {shown.rows}"
            )
        return self._outputs_of_layout(rows, columns)

    def _layout(self, grid: Grid | None) -> tuple[int, int]:
        """(columns, rows) of the tiles under a grid of patches."""
        side = int(self.half.vision.image_size) // int(self.half.vision.patch_size)
        if grid is None:
            raise mismatch(
                "it has no grid, which this model's tags for several tiles are made from; set embeddings.grid to "
                f"(1, {side} x rows of tiles, {side} x columns of tiles), or the file's metadata grid to 't,h,w'"
            )
        _, h, w = grid
        if min(grid) < 1 or h % side or w % side:
            raise mismatch(f"its grid is {grid[0]} x {h} x {w} patches; h and w must be multiples of {side}, one tile")
        return w // side, h // side

    def _outputs_of_layout(self, rows: int, columns: int) -> dict[str, Any]:
        return {"rows": [[rows]], "cols": [[columns]]}

    def _outputs_of_frames(self, frames: int, seconds: float) -> dict[str, Any]:
        return {
            "pixel_values": pixels_of_shape(1, frames, 3, 1, 1),
            "video_metadata": [metadata_of_steps(frames, seconds)],
        }
