"""Media of described checkpoints with square tiles: static tiling, and LLaVA-NeXT's anyres."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import LlavaNextImageProcessor

from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.native.image_processing_config import image_processing_config_from
from fanlight_engine.inputs.media.native.pixel_statistics import find_pixel_statistics
from fanlight_engine.inputs.media.native.pixels import Normalizer, resized
from fanlight_engine.request import Detail, Modality, PixelOptions, Tiles
from fanlight_engine.tensor_data import TensorData, array_of
from tests.engine.native_checkpoints import (
    PATCH,
    TILED,
    make_native_llava,
    make_native_llava_next,
)
from tests.engine.native_media import (
    PLAIN,
    TILE,
    TILE_ROWS,
    clip,
    encoded,
    native,
    picture,
    refusal,
    tiles,
)
from tests.engine.vision_checkpoints import TILE_LAYOUTS


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return read_checkpoint(make_native_llava(tmp_path_factory.mktemp("native") / "llava"))


@pytest.fixture(scope="module")
def llava_next(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return read_checkpoint(make_native_llava_next(tmp_path_factory.mktemp("native") / "llava_next"))


def test_a_picture_is_cut_into_tiles_with_its_thumbnail_last(llava: Checkpoint):
    processed = native(llava).process_image(picture(224, 112), PLAIN)
    assert processed.decision.tiles == (2, 1)
    assert processed.decision.has_thumbnail
    assert processed.decision.resized_size == (2 * TILE, TILE)
    assert processed.tensors["pixel_values"].shape == (3, 3, TILE, TILE)
    assert processed.replacement.ids == (llava.image_token_id,) * (3 * TILE_ROWS)
    tiles = array_of(processed.tensors["pixel_values"])
    normalize = Normalizer(find_pixel_statistics(image_processing_config_from(TILED), llava.path))
    wide = np.asarray(resized(np.array(picture(224, 112)), TILE, 2 * TILE))
    whole = resized(np.array(picture(224, 112)), TILE, TILE)
    for tile, pixels in zip(tiles, (wide[:, :TILE], wide[:, TILE:], whole), strict=True):
        wanted = normalize(np.ascontiguousarray(pixels.transpose(2, 0, 1)).reshape(1, 3, -1))
        assert (tile.reshape(1, 3, -1) == wanted).all()


def test_a_small_picture_is_one_tile_without_thumbnail(llava: Checkpoint):
    processed = native(llava).process_image(picture(50, 50), PLAIN)
    assert (processed.decision.tiles, processed.decision.has_thumbnail) == ((1, 1), False)
    assert processed.replacement.rows == TILE_ROWS


def test_a_clip_is_a_tile_for_each_frame(llava: Checkpoint):
    processor = native(llava)
    assert processor.modalities == {Modality.IMAGE, Modality.VIDEO}
    assert processor.placeholder_id(Modality.VIDEO) == llava.image_token_id
    processed = processor.process_video(clip(3), PLAIN)
    assert processed.tensors["pixel_values"].shape == (3, 3, TILE, TILE)
    assert processed.replacement.rows == 3 * TILE_ROWS
    assert (processed.decision.frames, processed.seconds_per_grid) == (3, 1.0)


def test_the_tower_gives_as_many_embeddings_of_tiles_as_were_promised(llava: Checkpoint):
    processor = native(llava)
    media = [
        (processor.process_image(picture(224, 112), PLAIN), Modality.IMAGE),
        (processor.process_image(picture(50, 50), PLAIN), Modality.IMAGE),
        (processor.process_video(clip(3), PLAIN), Modality.VIDEO),
    ]
    assert [len(one) for one in encoded(llava, *media)] == [one.replacement.rows for one, _ in media]


@pytest.mark.parametrize(
    ("options", "tiles"),
    [
        (PLAIN, (2, 2)),
        (PixelOptions(max_pixels=3 * TILE**2), (1, 1)),
        (PixelOptions(max_tokens=5 * TILE_ROWS), (2, 2)),
        (PixelOptions(max_tokens=5 * TILE_ROWS - 1), (1, 1)),
        (PixelOptions(max_tokens=2 * TILE_ROWS), (1, 1)),
        (PixelOptions(detail=Detail.LOW), (1, 1)),
        (PixelOptions(min_pixels=2 * TILE**2, detail=Detail.LOW), (1, 2)),
    ],
)
def test_fewer_or_more_tiles_as_asked(llava: Checkpoint, options: PixelOptions, tiles: tuple[int, int]):
    processed = native(llava, low_detail_tokens=TILE_ROWS).process_image(picture(300, 300), options)
    assert processed.decision.tiles == tiles


def test_high_detail_is_as_many_tiles_as_the_shape_allows(llava: Checkpoint):
    processor = native(llava)
    assert processor.process_image(picture(30, 30), PLAIN).decision.tiles == (1, 1)
    assert processor.process_image(picture(30, 30), PixelOptions(detail=Detail.HIGH)).decision.tiles == (2, 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (PixelOptions(max_pixels=TILE**2 - 1), ("1 tiles", "most 0")),
        (PixelOptions(max_tokens=TILE_ROWS - 1), ("16 embeddings", "most 0")),
        (PixelOptions(min_pixels=5 * TILE**2), ("5 tiles", "most 4")),
    ],
)
def test_bounds_that_no_tiles_can_keep_are_refused(llava: Checkpoint, options: PixelOptions, words: tuple[str, ...]):
    error = refusal(lambda: native(llava).process_image(picture(300, 300), options))
    assert error.reason is Reason.IMAGE_OPTION_INVALID
    assert all(word in error.description for word in words), error.description


def test_bounds_mean_nothing_to_a_tower_of_one_size(llava: Checkpoint):
    single = native(llava, {"patch_dim": PATCH, "use_tiling": True, "tile_size": TILE, "vision_model_type": "clip"})
    error = refusal(lambda: single.process_image(picture(9, 9), PixelOptions(max_pixels=99)))
    assert "max_pixels" in error.description
    assert refusal(lambda: single.process_image(picture(9, 9), PixelOptions(max_tokens=15))).reason is (
        Reason.IMAGE_OPTION_INVALID
    )
    assert single.process_image(picture(9, 9), PixelOptions(max_tokens=16, detail=Detail.HIGH)).replacement.rows == 16
    error = refusal(lambda: single.process_video(clip(2), PixelOptions(min_pixels=9)))
    assert "min_pixels" in error.description


def test_tiles_are_the_picture_itself(llava: Checkpoint):
    processor = native(llava)
    made = processor.process_image(picture(224, 112), PLAIN)
    sent = processor.process_tensors(Tiles(made.tensors["pixel_values"]), Modality.IMAGE)
    assert (sent.tensors, sent.replacement) == (made.tensors, made.replacement)


@pytest.mark.parametrize("sent", [tiles(6, 3, TILE, TILE), tiles(1, 3, TILE, 28), tiles(1, 1, TILE, TILE), tiles(5)])
def test_tiles_of_another_shape_than_the_towers_are_refused(llava: Checkpoint, sent: Tiles):
    error = refusal(lambda: native(llava).process_tensors(sent, Modality.IMAGE))
    assert error.reason is Reason.TENSOR_INVALID
    assert f"3, {TILE}, {TILE}]" in error.description


# LLaVA-NeXT


def test_a_picture_is_laid_out_as_transformers_does_it(llava_next: Checkpoint):
    layouts: Any = TILE_LAYOUTS
    processor = LlavaNextImageProcessor(
        size={"shortest_edge": TILE}, crop_size={"height": TILE, "width": TILE}, image_grid_pinpoints=layouts
    )
    made = [native(llava_next).process_image(picture(*size), PLAIN) for size in ((300, 90), (90, 300), (40, 41))]
    for size, one in zip(((300, 90), (90, 300), (40, 41)), made, strict=True):
        outputs = processor(images=[picture(*size)], return_tensors="np")
        assert (array_of(one.tensors["pixel_values"]) == outputs["pixel_values"]).all()
        assert (array_of(one.tensors["image_sizes"]) == outputs["image_sizes"]).all()
        assert one.decision.has_thumbnail
    rows = [len(one) for one in encoded(llava_next, *((one, Modality.IMAGE) for one in made))]
    assert rows == [one.replacement.rows for one in made]


def test_anyres_takes_tiles_with_their_original_size_and_no_clips(llava_next: Checkpoint):
    processor = native(llava_next)
    assert processor.modalities == {Modality.IMAGE}
    made = processor.process_image(picture(300, 90), PLAIN)
    pixels = made.tensors["pixel_values"]
    flat = TensorData(pixels.dtype, pixels.shape[1:], pixels.data)
    sent = processor.process_tensors(Tiles(flat, (300, 90)), Modality.IMAGE)
    assert (sent.tensors, sent.replacement) == (made.tensors, made.replacement)
    for wrong in (Tiles(flat), Tiles(flat, (90, 90)), Tiles(flat, (300, 0)), Tiles(flat, (10**6, 90))):
        error = refusal(lambda wrong=wrong: processor.process_tensors(wrong, Modality.IMAGE))
        assert error.reason is Reason.TENSOR_INVALID
    assert refusal(lambda: processor.process_video(clip(2), PLAIN)).reason is Reason.MODALITY_UNSUPPORTED
    assert (
        "grid_pinpoints"
        in refusal(lambda: processor.process_image(picture(9, 9), PixelOptions(min_pixels=9))).description
    )
    assert (
        "max_tokens" in refusal(lambda: processor.process_image(picture(9, 9), PixelOptions(max_tokens=9))).description
    )
