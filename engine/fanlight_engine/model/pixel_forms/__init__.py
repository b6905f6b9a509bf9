"""How media of each PixelForm go through a tower: a module per form, and the table of all of them.

A form joins the tensors of several media into one call of the model or a few, and splits what comes out again. What one
medium's embeddings are must not depend on its neighbours in the batch: towers attend within a medium, and each medium
must bring exactly the pixels that it says it has, so that no row of one can end up in another.
"""

from __future__ import annotations

from fanlight_engine.checkpoints.families import PixelForm
from fanlight_engine.model.pixel_forms.anyres import encode_anyres
from fanlight_engine.model.pixel_forms.frames import encode_frames
from fanlight_engine.model.pixel_forms.grid import encode_grids
from fanlight_engine.model.pixel_forms.interface import FormEncoder
from fanlight_engine.model.pixel_forms.masked_tiles import encode_masked_tiles
from fanlight_engine.model.pixel_forms.sized import encode_sized
from fanlight_engine.model.pixel_forms.tiles import encode_tiles

FORM_ENCODERS: dict[PixelForm, FormEncoder] = {
    PixelForm.GRID: encode_grids,
    PixelForm.TILES: encode_tiles,
    PixelForm.ANYRES: encode_anyres,
    PixelForm.MASKED_TILES: encode_masked_tiles,
    PixelForm.SIZED: encode_sized,
    PixelForm.FRAMES: encode_frames,
}
