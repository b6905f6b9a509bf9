"""Media of described checkpoints with a grid of patches, and what is common to all described checkpoints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import Qwen2VLImageProcessor

from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.errors import CheckpointError, Reason
from fanlight_engine.inputs.media.native.image_processing_config import image_processing_config_from
from fanlight_engine.inputs.media.native.patches import row_major_patches
from fanlight_engine.inputs.media.native.pixel_statistics import find_pixel_statistics
from fanlight_engine.inputs.media.native.pixels import Normalizer, resized
from fanlight_engine.request import Detail, FrameOptions, Modality, Patches, PatchLayout, PixelOptions
from fanlight_engine.tensor_data import array_of, tensor_data_of
from tests.engine.native_checkpoints import (
    ANYRES,
    DYNAMIC,
    PATCH,
    TILED,
    make_native_llava,
    make_native_llava_next,
    make_native_qwen2_5_vl,
)
from tests.engine.native_media import (
    CELL,
    PLAIN,
    ROW_COLUMNS,
    TILE_ROWS,
    TOWER_COLUMNS,
    clip,
    encoded,
    facts,
    native,
    patches,
    picture,
    refusal,
    tiles,
)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return read_checkpoint(make_native_qwen2_5_vl(tmp_path_factory.mktemp("native") / "qwen"))


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return read_checkpoint(make_native_llava(tmp_path_factory.mktemp("native") / "llava"))


@pytest.fixture(scope="module")
def llava_next(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return read_checkpoint(make_native_llava_next(tmp_path_factory.mktemp("native") / "llava_next"))


def test_a_picture_is_a_grid_within_the_budget_and_a_placeholder_for_each_embedding(qwen: Checkpoint):
    processor = native(qwen)
    processed = processor.process_image(picture(300, 200), PLAIN)
    t, h, w = processed.decision.grid or (0, 0, 0)
    assert t == 1
    assert 16 <= h * w <= 128
    assert (h % 2, w % 2) == (0, 0)
    assert processed.decision.original_size == (300, 200)
    assert processed.decision.resized_size == (w * PATCH, h * PATCH)
    assert array_of(processed.tensors["image_grid_thw"]).tolist() == [[1, h, w]]
    assert processed.tensors["pixel_values"].shape == (h * w, 3 * 2 * PATCH**2)
    rows = h * w // 4
    assert processed.replacement.ids == (qwen.image_token_id,) * rows
    assert processed.replacement.runs == ((0, rows),)


def test_a_picture_is_to_the_bit_what_transformers_makes_of_the_same_size(qwen: Checkpoint):
    for size in ((300, 200), (90, 400), (31, 47)):
        processed = native(qwen).process_image(picture(*size), PLAIN)
        width, height = processed.decision.resized_size or (0, 0)
        limits = {"shortest_edge": width * height, "longest_edge": width * height}
        processor = Qwen2VLImageProcessor(patch_size=PATCH, merge_size=2, size=limits)
        scaled = Image.fromarray(resized(np.array(picture(*size)), height, width))
        outputs = processor(images=[scaled], do_resize=False, return_tensors="np")
        assert (array_of(processed.tensors["pixel_values"]) == outputs["pixel_values"]).all()
        assert (array_of(processed.tensors["image_grid_thw"]) == outputs["image_grid_thw"]).all()


def test_a_clip_has_one_grid_and_fills_its_last_temporal_patch(qwen: Checkpoint):
    processor = native(qwen)
    processed = processor.process_video(clip(3), PLAIN)
    t, h, w = processed.decision.grid or (0, 0, 0)
    assert t == 2
    assert h * w <= 128
    assert processed.tensors["pixel_values_videos"].shape == (2 * h * w, 3 * 2 * PATCH**2)
    assert processed.decision.frames == 3
    assert processed.decision.frame_times == (0.0, 0.25, 0.5)
    assert processed.seconds_per_grid == 0.5
    assert processed.replacement.ids == (qwen.video_token_id,) * (t * h * w // 4)
    last = array_of(processed.tensors["pixel_values_videos"]).reshape(2, h * w, 3, 2, PATCH**2)[1]
    assert (last[:, :, 0] == last[:, :, 1]).all()
    first = array_of(processed.tensors["pixel_values_videos"]).reshape(2, h * w, 3, 2, PATCH**2)[0]
    assert (first[:, :, 0] != first[:, :, 1]).any()


def test_without_known_times_a_step_of_the_grid_is_as_of_a_clip_of_patches(qwen: Checkpoint):
    processed = native(qwen).process_video(clip(4, times_are_known=False), PLAIN)
    assert processed.seconds_per_grid == 1.0
    assert processed.decision.frame_times == ()


def test_the_tower_gives_as_many_embeddings_as_were_promised(qwen: Checkpoint):
    processor = native(qwen)
    media = [
        (processor.process_image(picture(300, 200), PLAIN), Modality.IMAGE),
        (processor.process_image(picture(1, 1), PLAIN), Modality.IMAGE),
        (processor.process_video(clip(3), PLAIN), Modality.VIDEO),
        (processor.process_video(clip(1, 50, 400), PLAIN), Modality.VIDEO),
    ]
    assert [len(one) for one in encoded(qwen, *media)] == [one.replacement.rows for one, _ in media]


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        (PixelOptions(max_pixels=10 * CELL), range(4, 11)),
        (PixelOptions(max_tokens=6), range(4, 7)),
        (PixelOptions(max_tokens=1), range(1, 2)),
        (PixelOptions(max_pixels=2 * CELL - 1), range(1, 2)),
        (PixelOptions(max_pixels=10**12), range(4, 33)),
        (PixelOptions(detail=Detail.LOW), range(4, 9)),
    ],
)
def test_a_picture_is_scaled_down_as_asked(qwen: Checkpoint, options: PixelOptions, rows: range):
    processed = native(qwen, low_detail_tokens=8).process_image(picture(900, 700), options)
    assert processed.replacement.rows in rows


def test_a_picture_is_scaled_up_as_asked(qwen: Checkpoint):
    processor, small = native(qwen), picture(60, 50)
    assert processor.process_image(small, PLAIN).replacement.rows == 6
    assert processor.process_image(small, PixelOptions(min_pixels=20 * CELL)).replacement.rows >= 20
    assert processor.process_image(small, PixelOptions(detail=Detail.HIGH)).replacement.rows >= 25


def test_detail_stays_a_wish_beside_numbers(qwen: Checkpoint):
    options = PixelOptions(max_tokens=9, detail=Detail.HIGH)
    assert native(qwen).process_image(picture(60, 50), options).replacement.rows in range(6, 10)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (PixelOptions(max_pixels=CELL - 1), (str(CELL),)),
        (PixelOptions(min_pixels=40 * CELL), (str(40 * CELL), str(128 * PATCH**2))),
        (PixelOptions(min_pixels=9 * CELL, max_pixels=8 * CELL), (str(9 * CELL), str(8 * CELL))),
        (PixelOptions(min_pixels=CELL * 5 + 1, max_pixels=CELL * 5 + 2), (str(CELL * 5 + 1), str(CELL))),
    ],
)
def test_bounds_that_no_size_can_keep_are_refused(qwen: Checkpoint, options: PixelOptions, words: tuple[str, ...]):
    processor = native(qwen)
    error = refusal(lambda: processor.process_image(picture(100, 100), options))
    assert error.reason is Reason.IMAGE_OPTION_INVALID
    assert all(word in error.description for word in words), error.description
    assert refusal(lambda: processor.process_video(clip(2), options)).reason is Reason.VIDEO_OPTION_INVALID


def test_a_clip_shares_its_tokens_over_its_steps(qwen: Checkpoint):
    processor = native(qwen)
    assert processor.process_video(clip(4), PixelOptions(max_tokens=20)).replacement.rows in range(10, 21)
    error = refusal(lambda: processor.process_video(clip(6), PixelOptions(max_tokens=2)))
    assert "3 steps in time" in error.description


def test_frames_that_cannot_have_so_many_pixels_are_refused(qwen: Checkpoint):
    error = refusal(lambda: native(qwen).process_video(clip(2, 140, 120), PixelOptions(min_pixels=128 * PATCH**2)))
    assert error.reason is Reason.VIDEO_OPTION_INVALID
    assert str(128 * PATCH**2) in error.description


def test_frames_can_be_square(qwen: Checkpoint):
    processed = native(qwen, DYNAMIC | {"video_maintain_aspect_ratio": False}).process_video(clip(2), PLAIN)
    assert processed.decision.grid == (1, 10, 10)


def test_patches_in_either_order_are_the_picture_itself(qwen: Checkpoint):
    processor = native(qwen)
    made = processor.process_image(picture(300, 200), PLAIN)
    grid = made.decision.grid or (0, 0, 0)
    sent = processor.process_tensors(Patches(made.tensors["pixel_values"], grid), Modality.IMAGE)
    assert (sent.tensors, sent.replacement) == (made.tensors, made.replacement)
    pixels = resized(np.array(picture(300, 200)), grid[1] * PATCH, grid[2] * PATCH)
    processing = image_processing_config_from(DYNAMIC)
    normalize = Normalizer(find_pixel_statistics(processing, qwen.path))
    rows = normalize(row_major_patches(pixels, PATCH)).reshape(grid[1] * grid[2], -1)
    row_major = Patches(tensor_data_of(rows), grid, PatchLayout.ROW_MAJOR)
    assert processor.process_tensors(row_major, Modality.IMAGE).tensors == made.tensors


def test_patches_of_a_clip_are_the_clip_itself(qwen: Checkpoint):
    processor = native(qwen)
    made = processor.process_video(clip(4), PLAIN)
    grid = made.decision.grid or (0, 0, 0)
    sent = processor.process_tensors(Patches(made.tensors["pixel_values_videos"], grid), Modality.VIDEO)
    assert (sent.tensors, sent.replacement) == (made.tensors, made.replacement)
    normalize = Normalizer(find_pixel_statistics(image_processing_config_from(DYNAMIC), qwen.path))
    frames = [resized(frame, grid[1] * PATCH, grid[2] * PATCH) for frame in clip(4).frames]
    rows = np.concatenate([normalize(row_major_patches(frame, PATCH)) for frame in frames])
    row_major = Patches(tensor_data_of(rows.reshape(len(rows), -1)), grid, PatchLayout.ROW_MAJOR)
    assert processor.process_tensors(row_major, Modality.VIDEO).tensors == made.tensors


@pytest.mark.parametrize(
    ("sent", "modality", "words"),
    [
        (patches(24, TOWER_COLUMNS, (1, 4, 5)), Modality.IMAGE, ("1 x 4 x 5", "multiples of 2")),
        (patches(48, TOWER_COLUMNS, (2, 4, 6)), Modality.IMAGE, ("2 x 4 x 6", "t is 1")),
        (patches(20, TOWER_COLUMNS, (1, 4, 6)), Modality.IMAGE, ("[20,", "[24, 1176]")),
        (patches(24, ROW_COLUMNS, (1, 4, 6)), Modality.IMAGE, ("588", "[24, 1176]")),
        (patches(24, TOWER_COLUMNS, (1, 4, 6), PatchLayout.ROW_MAJOR), Modality.IMAGE, ("1176", "[24, 588]")),
        (patches(9, ROW_COLUMNS, (1, 4, 6), PatchLayout.ROW_MAJOR), Modality.IMAGE, ("[9,", "[24, 588]")),
        (patches(1, TOWER_COLUMNS, (1, 12, 12)), Modality.IMAGE, ("1 x 12 x 12", "128")),
        (patches(1, TOWER_COLUMNS, (65, 4, 4)), Modality.VIDEO, ("65 x 4 x 4", "64")),
        (patches(1, TOWER_COLUMNS, (1, 0, 4)), Modality.IMAGE, ("1 x 0 x 4",)),
    ],
)
def test_patches_of_another_shape_than_the_towers_are_refused(
    qwen: Checkpoint, sent: Patches, modality: Modality, words: tuple[str, ...]
):
    error = refusal(lambda: native(qwen).process_tensors(sent, modality))
    assert error.reason is Reason.TENSOR_INVALID
    assert all(word in error.description for word in words), error.description


def test_numbers_of_less_precision_and_no_numbers_at_all(qwen: Checkpoint):
    processor = native(qwen)
    half = Patches(tensor_data_of(np.ones((16, TOWER_COLUMNS), np.float16)), (1, 4, 4))
    assert processor.process_tensors(half, Modality.IMAGE).tensors["pixel_values"].dtype == "float32"
    nothing = Patches(tensor_data_of(np.full((16, TOWER_COLUMNS), np.nan, np.float32)), (1, 4, 4))
    assert "finite" in refusal(lambda: processor.process_tensors(nothing, Modality.IMAGE)).description


# Frames


def test_frames_are_spread_as_described_or_as_asked(qwen: Checkpoint):
    processor = native(qwen)
    assert processor.choose_frames(facts(100), FrameOptions()) == (0, 33, 66, 99)
    assert processor.choose_frames(facts(100), FrameOptions(num_frames=7)) == (0, 20, 40, 59, 79, 99)
    assert processor.choose_frames(facts(50), FrameOptions(num_frames=1)) == (0,)
    assert processor.choose_frames(facts(3), FrameOptions()) == (0, 2)
    assert processor.choose_frames(facts(1), FrameOptions()) == (0,)
    assert len(processor.choose_frames(facts(100), FrameOptions(fps=2))) == 20


def test_never_more_frames_than_are_shown_of_one_clip(qwen: Checkpoint):
    few = native(qwen, max_video_frames=2, default_video_frames=2)
    assert few.choose_frames(facts(100), FrameOptions()) == (0, 99)
    assert refusal(lambda: few.choose_frames(facts(100), FrameOptions(fps=5))).reason is Reason.VIDEO_OPTION_INVALID


# All


def test_tensors_of_the_other_kind_are_refused(qwen: Checkpoint, llava: Checkpoint, llava_next: Checkpoint):
    assert "not tiles" in refusal(lambda: native(qwen).process_tensors(tiles(1, 3, 56, 56), Modality.IMAGE)).description
    for checkpoint in (llava, llava_next):
        sent = patches(4, TOWER_COLUMNS, (1, 2, 2))
        error = refusal(
            lambda sent=sent, checkpoint=checkpoint: native(checkpoint).process_tensors(sent, Modality.IMAGE)
        )
        assert "not patches" in error.description


def test_rows_that_come_as_embeddings_get_as_many_placeholders(qwen: Checkpoint):
    replacement = native(qwen).replacement_for_rows(5, Modality.VIDEO)
    assert (replacement.ids, replacement.rows) == ((qwen.video_token_id,) * 5, 5)


def test_whatever_decides_about_the_result_is_in_the_settings(qwen: Checkpoint):
    base = dict(native(qwen).settings)
    json.dumps(base)
    others = [
        native(qwen, DYNAMIC | {"max_patches": 64}),
        native(qwen, DYNAMIC | {"pixel_mean": [0.5] * 3, "pixel_std": [0.5] * 3}),
        native(qwen, DYNAMIC | {"num_frames": 5}),
        native(qwen, low_detail_tokens=9),
    ]
    assert all(dict(other.settings) != base for other in others)
    assert base["statistics"]["source"] == "image processing configuration"


@pytest.mark.parametrize(
    ("fixture", "described", "words"),
    [
        ("qwen", TILED, ("use_tiling", "qwen2_5_vl", "dynamic_resolution")),
        ("llava", DYNAMIC, ("dynamic_resolution", "llava", "use_tiling")),
        ("llava_next", TILED, ("use_tiling", "llava_next", "grid_pinpoints")),
        ("qwen", DYNAMIC | {"patch_dim": 16}, ("patch_dim 16", "patch_size 14")),
        ("qwen", DYNAMIC | {"spatial_merge_size": 1}, ("1", "spatial_merge_size 2")),
        ("qwen", DYNAMIC | {"temporal_patch_size": 1}, ("temporal_patch_size 1", "temporal_patch_size 2")),
        ("llava", TILED | {"tile_size": 112}, ("tile_size 112", "image_size 56")),
        ("llava", TILED | {"patch_dim": 7}, ("patch_dim 7", "patch_size 14")),
        ("llava", TILED | {"pixel_shuffle": True}, ("merge factor of 2", "1")),
        ("llava_next", ANYRES | {"grid_pinpoints": [[56, 112]]}, ("grid_pinpoints", "image_grid_pinpoints")),
    ],
)
def test_a_description_that_does_not_fit_the_tower_is_refused_at_start(
    fixture: str, described: dict[str, Any], words: tuple[str, ...], request: pytest.FixtureRequest
):
    with pytest.raises(CheckpointError) as caught:
        native(request.getfixturevalue(fixture), described)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_features_that_cannot_be_counted_are_refused_at_start(
    llava: Checkpoint, llava_next: Checkpoint, llama_path: Path
):
    unknown = type(llava.config)(**llava.config.to_dict())
    unknown.vision_config.model_type = "unheard_of"
    with pytest.raises(CheckpointError, match="unheard_of"):
        native(replace(llava, config=unknown), TILED)
    with_class_token = type(llava_next.config)(**llava_next.config.to_dict())
    with_class_token.vision_feature_select_strategy = "full"
    with pytest.raises(CheckpointError, match="'full'"):
        native(replace(llava_next, config=with_class_token), ANYRES)
    with pytest.raises(CheckpointError, match="llama checkpoints take no pictures"):
        native(read_checkpoint(llama_path), DYNAMIC)


def test_class_tokens_count_where_the_checkpoint_keeps_them(llava: Checkpoint):
    with_class_token = type(llava.config)(**llava.config.to_dict())
    with_class_token.vision_feature_select_strategy = "full"
    processor = native(replace(llava, config=with_class_token), TILED)
    assert processor.process_image(picture(50, 50), PLAIN).replacement.rows == TILE_ROWS + 1
