"""Descriptions of pictures: read as written, refused by the name of the key; pixel statistics with their source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fanlight_engine.errors import CheckpointError, ConfigError
from fanlight_engine.inputs.media.native.image_processing_config import (
    FILE_NAME,
    ImageProcessingConfig,
    ResizeMode,
    find_image_processing_config,
    image_processing_config_from,
)
from fanlight_engine.inputs.media.native.pixel_statistics import (
    CLIP,
    HALF,
    IMAGENET,
    RADIO_G,
    find_pixel_statistics,
)

DYNAMIC = {"patch_dim": 16, "dynamic_resolution": True}
TILING = {"patch_dim": 14, "use_tiling": True, "tile_size": 448}
ANYRES = {"patch_dim": 14, "tile_size": 336, "grid_pinpoints": [[336, 672], [672, 336]]}
MEAN, STD = [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]


def write(directory: Path, name: str, content: Any) -> Path:
    file = directory / name
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return file


def test_what_is_not_said_has_the_references_defaults():
    config = image_processing_config_from(DYNAMIC)
    assert config == ImageProcessingConfig(patch_dim=16, dynamic_resolution=True)
    assert (config.min_patches, config.max_patches, config.spatial_merge_size, config.pixel_shuffle) == (
        1,
        128,
        1,
        False,
    )
    assert (config.num_frames, config.temporal_patch_size, config.video_maintain_aspect_ratio) == (8, 1, True)
    assert (config.vision_model_type, config.max_num_tiles, config.use_thumbnail) == ("radio", 1, False)
    assert config.mode is ResizeMode.DYNAMIC


def test_every_key_is_read():
    config = image_processing_config_from(
        DYNAMIC
        | {"min_patches": 4, "max_patches": 64, "pixel_shuffle": True, "vision_model_type": "siglip"}
        | {"pixel_mean": MEAN, "pixel_std": STD, "num_frames": 3, "temporal_patch_size": 2}
        | {"video_maintain_aspect_ratio": False, "tile_size": None}
    )
    assert (config.pixel_mean, config.pixel_std) == (tuple(MEAN), tuple(STD))
    assert config.merge == 2
    tiling = image_processing_config_from(
        TILING | {"min_num_tiles": 2, "max_num_tiles": 6, "use_thumbnail": True, "use_area_weighted_aspect_ratio": True}
    )
    assert (tiling.mode, tiling.min_num_tiles, tiling.max_num_tiles) == (ResizeMode.TILING, 2, 6)
    assert image_processing_config_from(ANYRES).grid_pinpoints == ((336, 672), (672, 336))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"dynamic_resolution": True}, ("patch_dim",)),
        (DYNAMIC | {"max_patch": 3}, ("'max_patch'", "max_patches")),
        ({"patch_dim": 16}, ("none of", "dynamic_resolution", "use_tiling", "grid_pinpoints")),
        (TILING | {"dynamic_resolution": True}, ("dynamic_resolution and use_tiling",)),
        (TILING | {"grid_pinpoints": [[448, 448]]}, ("use_tiling and grid_pinpoints",)),
        (DYNAMIC | {"min_patches": 200}, ("min_patches (200)", "max_patches (128)")),
        (DYNAMIC | {"max_patches": 3, "spatial_merge_size": 2}, ("max_patches is 3", "4")),
        (DYNAMIC | {"max_patches": 127, "min_patches": 125, "pixel_shuffle": True}, ("125", "127", "lower", "124")),
        (DYNAMIC | {"pixel_shuffle": True, "spatial_merge_size": 3}, ("spatial_merge_size is 3", "pixel_shuffle")),
        (DYNAMIC | {"pixel_mean": MEAN}, ("pixel_mean is set", "pixel_std is not")),
        (DYNAMIC | {"pixel_std": STD}, ("pixel_std is set", "pixel_mean is not")),
        (DYNAMIC | {"pixel_mean": [0.5], "pixel_std": STD}, ("pixel_mean", "three")),
        (DYNAMIC | {"pixel_mean": [0.5, 0.5, float("nan")], "pixel_std": STD}, ("pixel_mean", "finite")),
        (DYNAMIC | {"pixel_mean": MEAN, "pixel_std": [0.5, 0, 0.5]}, ("pixel_std", "above 0")),
        (DYNAMIC | {"pixel_mean": "0.5", "pixel_std": STD}, ("pixel_mean is '0.5'", "three numbers")),
        (DYNAMIC | {"max_num_tiles": 4}, ("max_num_tiles", "belongs to use_tiling")),
        (DYNAMIC | {"tile_size": 448}, ("tile_size", "use_tiling and grid_pinpoints")),
        (TILING | {"max_patches": 64}, ("max_patches", "dynamic_resolution")),
        (ANYRES | {"num_frames": 4}, ("num_frames",)),
        ({"patch_dim": 14, "use_tiling": True}, ("tile_size is not set",)),
        (TILING | {"tile_size": 450}, ("tile_size is 450", "14")),
        (TILING | {"tile_size": 462, "pixel_shuffle": True}, ("tile_size is 462", "28")),
        (TILING | {"min_num_tiles": 3, "max_num_tiles": 2}, ("min_num_tiles (3)", "max_num_tiles (2)")),
        (ANYRES | {"grid_pinpoints": [[336, 500]]}, ("[336, 500]", "336")),
        (ANYRES | {"grid_pinpoints": [[336]]}, ("grid_pinpoints", "pairs")),
        (DYNAMIC | {"patch_dim": 0}, ("patch_dim is 0", "at least 1")),
        (DYNAMIC | {"patch_dim": "16"}, ("patch_dim is '16'", "whole number")),
        (DYNAMIC | {"patch_dim": True}, ("patch_dim is True", "whole number")),
        (DYNAMIC | {"patch_dim": None}, ("patch_dim is None", "whole number")),
        (DYNAMIC | {"dynamic_resolution": 1}, ("dynamic_resolution is 1", "true or false")),
        (DYNAMIC | {"vision_model_type": 3}, ("vision_model_type is 3", "text")),
        (DYNAMIC | {"num_frames": 0}, ("num_frames is 0",)),
    ],
)
def test_what_contradicts_itself_is_refused_by_the_name_of_its_key(content: dict[str, Any], words: tuple[str, ...]):
    with pytest.raises(ConfigError) as caught:
        image_processing_config_from(content)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_configured_file_comes_before_the_checkpoints_own(tmp_path: Path):
    checkpoint = tmp_path / "model"
    checkpoint.mkdir()
    assert find_image_processing_config(checkpoint, "") is None
    write(checkpoint, FILE_NAME, DYNAMIC)
    elsewhere = write(tmp_path, "mine.json", TILING)
    found = find_image_processing_config(checkpoint, "")
    configured = find_image_processing_config(checkpoint, str(elsewhere))
    assert found is not None
    assert configured is not None
    assert (found.mode, configured.mode) == (ResizeMode.DYNAMIC, ResizeMode.TILING)


@pytest.mark.parametrize(("content", "word"), [("{", "not JSON"), ("[1]", "list"), ('{"patch_dim": "x"}', "patch_dim")])
def test_a_bad_file_is_the_fault_of_whoever_named_it(tmp_path: Path, content: str, word: str):
    checkpoint = tmp_path / "model"
    checkpoint.mkdir()
    file = write(checkpoint, FILE_NAME, content)
    with pytest.raises(CheckpointError, match=f"model/{FILE_NAME}.*{word}"):
        find_image_processing_config(checkpoint, "")
    with pytest.raises(ConfigError, match=f"image_processing_config.*{word}"):
        find_image_processing_config(checkpoint, str(file))


def test_a_configured_file_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="No such file"):
        find_image_processing_config(tmp_path, str(tmp_path / "absent.json"))


def config(**changes: Any) -> ImageProcessingConfig:
    return image_processing_config_from(DYNAMIC | changes)


def test_statistics_are_taken_from_the_first_place_that_has_them(tmp_path: Path):
    table = find_pixel_statistics(config(vision_model_type="siglip"), tmp_path)
    assert (table.mean, table.std, table.source) == (*HALF, "table, encoder siglip")
    write(tmp_path, "processor_config.json", {"image_processor": {"image_mean": MEAN, "image_std": STD}})
    nested = find_pixel_statistics(config(vision_model_type="siglip"), tmp_path)
    assert (nested.mean, nested.std, nested.source) == (tuple(MEAN), tuple(STD), "processor_config.json")
    write(tmp_path, "preprocessor_config.json", {"image_mean": 0.25, "image_std": 0.5})
    flat = find_pixel_statistics(config(vision_model_type="siglip"), tmp_path)
    assert (flat.mean, flat.std, flat.source) == ((0.25,) * 3, (0.5,) * 3, "preprocessor_config.json")
    explicit = find_pixel_statistics(config(pixel_mean=MEAN, pixel_std=STD), tmp_path)
    assert (explicit.mean, explicit.source) == (tuple(MEAN), "image processing configuration")


def test_files_without_statistics_leave_it_to_the_table(tmp_path: Path):
    write(tmp_path, "preprocessor_config.json", {"do_resize": True})
    assert find_pixel_statistics(config(), tmp_path).source == "table, encoder radio"


@pytest.mark.parametrize(
    ("encoder", "statistics"),
    [("clip", CLIP), ("radio", CLIP), ("internvit", IMAGENET), ("radio-g", RADIO_G), ("qwen-vl", HALF)],
)
def test_encoders_have_what_they_were_trained_with(tmp_path: Path, encoder: str, statistics: tuple[Any, Any]):
    found = find_pixel_statistics(config(vision_model_type=encoder), tmp_path)
    assert (found.mean, found.std) == statistics


def test_an_unknown_encoder_is_an_error_and_never_clips(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"'guessed'.*pixel_mean and pixel_std.*siglip"):
        find_pixel_statistics(config(vision_model_type="guessed"), tmp_path)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ({"image_mean": MEAN}, "image_std is not"),
        ({"image_mean": MEAN, "image_std": [1, 0, 1]}, "above 0"),
        ({"image_mean": "x", "image_std": STD}, "not the JSON"),
        ("[]", "not the JSON"),
        ("{", "not the JSON"),
    ],
)
def test_statistics_that_are_half_given_or_none_are_refused(tmp_path: Path, content: Any, word: str):
    write(tmp_path, "preprocessor_config.json", content)
    with pytest.raises(CheckpointError, match=word):
        find_pixel_statistics(config(), tmp_path)
