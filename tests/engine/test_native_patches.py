"""Pixels on their way to a tower: resized, packed, in the tower's order; frames of a clip; the 2 x 2 fold."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Qwen2VLImageProcessor, Qwen2VLVideoProcessor
from transformers.models.internvl.modeling_internvl import InternVLModel

from fanlight_engine.inputs.media.native.patches import (
    pixel_shuffle,
    row_major_patches,
    row_major_to_tower,
    tower_patches,
)
from fanlight_engine.inputs.media.native.pixel_statistics import CLIP, HALF, RADIO_G, PixelStatistics
from fanlight_engine.inputs.media.native.pixels import Normalizer, padded, resized
from fanlight_engine.inputs.media.native.sampling import frame_indices

PATCH, MERGE, TEMPORAL = 14, 2, 2
NORMALIZE = Normalizer(PixelStatistics(*CLIP, "test"))


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def sizes_before_and_after() -> list[tuple[int, int, int, int]]:
    rng = random.Random(7)
    sizes = [(rng.randint(1, 300), rng.randint(1, 300), rng.randint(1, 200), rng.randint(1, 200)) for _ in range(150)]
    return [*sizes, (1, 1, 28, 28), (2, 900, 28, 28), (900, 2, 28, 56), (1500, 1100, 28, 28), (31, 30, 31, 30)]


def bicubic(picture: Image.Image, width: int, height: int) -> Image.Image:
    return picture.resize((width, height), Image.Resampling.BICUBIC)


def test_resizing_is_pillows_bicubic_to_one_grey_level():
    """Two levels where the roundings of both passes meet, in one value of a thousand at most."""
    rng = np.random.default_rng(1)
    for height, width, new_height, new_width in sizes_before_and_after():
        rough = rng.integers(64, 192, (height // 8 + 1, width // 8 + 1, 3)).astype(np.uint8)
        picture = bicubic(Image.fromarray(rough), width, height)
        got = resized(np.array(picture), new_height, new_width).astype(int)
        difference = np.abs(got - np.asarray(bicubic(picture, new_width, new_height)))
        assert difference.max() <= 2
        assert (difference > 1).mean() < 0.001


def test_resizing_noise_is_pillows_bicubic_on_rows_then_columns():
    """Where colours saturate, the order of the two passes shows; Pillow takes the cheaper one from version 13 on."""
    for height, width, new_height, new_width in sizes_before_and_after():
        pixels = noise(height, width)
        wanted = np.asarray(bicubic(bicubic(Image.fromarray(pixels), new_width, height), new_width, new_height))
        difference = np.abs(resized(pixels, new_height, new_width).astype(int) - wanted)
        assert difference.max() <= 2
        assert (difference > 1).mean() < 0.001


def test_resizing_does_not_copy_what_fits():
    pixels = noise(28, 42)
    assert resized(pixels, 28, 42) is pixels


def test_pixels_that_may_not_be_written_to_are_resized_too(monkeypatch: pytest.MonkeyPatch):
    pixels = noise(28, 42)
    wanted = resized(pixels, 14, 14)
    pixels.flags.writeable = False
    assert (resized(pixels, 14, 14) == wanted).all()

    def refuse(array: np.ndarray) -> torch.Tensor:
        raise BufferError

    monkeypatch.setattr(torch, "from_dlpack", refuse)
    assert (resized(pixels, 14, 14) == wanted).all()


def test_padding_is_black_around_the_picture():
    pixels = noise(2, 3)
    canvas = padded(pixels, 5, 7, 1, 2)
    assert (canvas[1:3, 2:5] == pixels).all()
    canvas[1:3, 2:5] = 0
    assert not canvas.any()


@pytest.mark.parametrize("statistics", [CLIP, HALF, RADIO_G])
def test_pixels_are_normalised_per_channel(statistics: tuple[tuple[float, ...], tuple[float, ...]]):
    pixels = np.tile(np.arange(256, dtype=np.uint8), (1, 3, 1))
    got = Normalizer(PixelStatistics(*statistics, "test"))(pixels)
    mean, std = (np.array(values)[:, None] for values in statistics)
    assert np.abs(got - (pixels / 255 - mean) / std).max() < 1e-6
    assert got.dtype == np.float32


def test_patches_lie_in_rows_and_are_flattened_by_channel_then_row_then_column():
    rows, columns, size = 3, 5, 2
    pixels = np.arange(rows * size * columns * size * 3, dtype=np.uint8).reshape(rows * size, columns * size, 3)
    packed = row_major_patches(pixels, size)
    assert packed.shape == (rows * columns, 3, size * size)
    for row in range(rows):
        for column in range(columns):
            patch = pixels[row * size : (row + 1) * size, column * size : (column + 1) * size]
            assert (packed[row * columns + column].reshape(3, size, size) == patch.transpose(2, 0, 1)).all()


def test_a_picture_in_the_towers_order_is_what_the_qwen_processor_gives():
    pixels = noise(4 * PATCH, 6 * PATCH)
    processor = Qwen2VLImageProcessor(patch_size=PATCH, merge_size=MERGE)
    outputs = processor(images=[Image.fromarray(pixels)], do_resize=False, return_tensors="np")
    assert outputs["image_grid_thw"].tolist() == [[1, 4, 6]]
    numbers = NORMALIZE(tower_patches(np.stack((pixels, pixels)), PATCH, MERGE))
    assert np.array_equal(numbers.reshape(24, -1), outputs["pixel_values"])
    rows = NORMALIZE(row_major_patches(pixels, PATCH)).reshape(24, -1)
    assert np.array_equal(row_major_to_tower(rows, (1, 4, 6), MERGE, TEMPORAL), outputs["pixel_values"])


def test_a_clip_in_the_towers_order_is_what_the_qwen_processor_gives():
    frames = np.stack([noise(4 * PATCH, 6 * PATCH, seed) for seed in range(4)])
    processor = Qwen2VLVideoProcessor(patch_size=PATCH, merge_size=MERGE)
    outputs = processor(
        videos=[frames], do_resize=False, cap_pixels_per_frame=False, input_data_format="channels_last",
        return_tensors="np",
    )  # fmt: skip
    wanted = np.asarray(outputs["pixel_values_videos"])
    assert outputs["video_grid_thw"].tolist() == [[2, 4, 6]]
    steps = [NORMALIZE(tower_patches(frames[step : step + 2], PATCH, MERGE)) for step in (0, 2)]
    assert np.array_equal(np.concatenate(steps).reshape(48, -1), wanted)
    rows = np.concatenate([NORMALIZE(row_major_patches(frame, PATCH)) for frame in frames]).reshape(96, -1)
    assert np.array_equal(row_major_to_tower(rows, (2, 4, 6), MERGE, TEMPORAL), wanted)


def test_one_row_major_frame_a_step_stands_for_its_whole_temporal_patch():
    rows = np.arange(2 * 4 * 2 * 3 * 4, dtype=np.float32).reshape(2 * 4 * 2, 12)
    doubled = np.repeat(rows.reshape(2, 1, 8, 12), 2, axis=1).reshape(32, 12)
    once = row_major_to_tower(rows, (2, 4, 2), 2, 2)
    assert once.shape == (16, 24)
    assert (once == row_major_to_tower(doubled, (2, 4, 2), 2, 2)).all()
    assert (row_major_to_tower(rows, (2, 4, 2), 1, 1) == rows).all()


@pytest.mark.parametrize(
    ("rows", "columns", "grid"), [(7, 12, (1, 4, 2)), (24, 12, (1, 4, 2)), (8, 13, (1, 4, 2)), (6, 12, (1, 3, 2))]
)
def test_rows_that_make_no_grid_are_refused(rows: int, columns: int, grid: tuple[int, int, int]):
    with pytest.raises(ValueError, match=str(rows)):
        row_major_to_tower(np.zeros((rows, columns), np.float32), grid, 2, 2)


@pytest.mark.parametrize(("height", "width"), [(2, 2), (4, 2), (2, 6), (6, 10)])
def test_the_fold_takes_squares_whatever_the_sides(height: int, width: int):
    index = torch.arange(height * width)[:, None]
    folded = pixel_shuffle(index, height, width)
    assert folded.shape == (height * width // 4, 4)
    for row in range(height // 2):
        for column in range(width // 2):
            top_left = 2 * row * width + 2 * column
            square = [top_left, top_left + 1, top_left + width, top_left + width + 1]
            assert folded[row * (width // 2) + column].tolist() == square


def test_on_squares_the_fold_is_internvls():
    features = torch.randn(3, 64, 5, generator=torch.Generator().manual_seed(0))
    wanted = InternVLModel.pixel_shuffle(None, features.reshape(3, 8, 8, 5))  # type: ignore[arg-type]
    assert torch.equal(pixel_shuffle(features, 8, 8), wanted.reshape(3, 16, 20))


@pytest.mark.parametrize(("height", "width"), [(3, 4), (4, 3), (4, 4), (2, 2)])
def test_sides_that_cannot_be_folded_are_refused(height: int, width: int):
    with pytest.raises(ValueError, match=f"{height} x {width}"):
        pixel_shuffle(torch.zeros(12, 1), height, width)


@pytest.mark.parametrize(
    ("asked", "total", "temporal", "indices"),
    [
        (8, 100, 1, (0, 14, 28, 42, 57, 71, 85, 99)),
        (3, 10, 1, (0, 4, 9)),
        (3, 3, 2, (0, 2)),
        (8, 1, 2, (0,)),
        (7, 100, 2, (0, 20, 40, 59, 79, 99)),
        (1, 50, 2, (0,)),  # the reference shows two frames here, one more than asked for
    ],
)
def test_frames_are_the_references(asked: int, total: int, temporal: int, indices: tuple[int, ...]):
    assert frame_indices(asked, total, temporal) == indices


def test_never_more_frames_than_asked_for_and_each_once():
    for asked in range(1, 20):
        for total in range(1, 40):
            for temporal in (1, 2, 3, 4):
                indices = frame_indices(asked, total, temporal)
                assert 1 <= len(indices) <= min(asked, total)
                assert len(indices) % temporal == 0 or len(indices) == min(asked, total) < temporal
                assert list(indices) == sorted(set(indices))
                assert indices[0] == 0
                assert indices[-1] == (total - 1 if len(indices) > 1 else 0)


@pytest.mark.parametrize("counts", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-3, 5, 1)])
def test_counts_of_nothing_are_refused(counts: tuple[int, int, int]):
    with pytest.raises(ValueError, match="at least 1"):
        frame_indices(*counts)
