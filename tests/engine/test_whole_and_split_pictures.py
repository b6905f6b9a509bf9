"""LLaVA-OneVision: a lone picture is split, several are whole, clips are frames; in any batch each gets its own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from fanlight_engine.core.image_mask import MaskMismatchError
from fanlight_engine.core.messages import MediaInput
from fanlight_engine.model.loading.loader import load_model
from fanlight_engine.model.tensors import data_of, tensor_of
from fanlight_engine.model.vision_tower import VisionTower
from tests.engine.random_prompts import random_film, random_picture
from tests.engine.reference import Reference

SHAPES = ((40, 160), (160, 40), (56, 56), (60, 190), (200, 61), (160, 150))
PIXELS = "pixel_values"


@pytest.fixture(scope="module")
def reference(llava_onevision_path: Path) -> Reference:
    return Reference(llava_onevision_path)


@pytest.fixture(scope="module")
def tower(reference: Reference) -> VisionTower:
    checkpoint = reference.checkpoint
    return VisionTower(load_model(checkpoint, torch.device("cpu"), torch.float32), checkpoint)


def encode(tower: VisionTower, media: Sequence[MediaInput]) -> list[torch.Tensor]:
    with torch.inference_mode():
        return tower.encode(media)


def assert_alone_as_together(tower: VisionTower, media: Sequence[MediaInput]) -> None:
    for medium, together in zip(media, encode(tower, media), strict=True):
        (alone,) = encode(tower, [medium])
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wholes", [1, 2, 4])
def test_whole_and_split_pictures_share_a_batch(wholes: int, reference: Reference, tower: VisionTower) -> None:
    rng = random.Random(wholes)
    pictures = [random_picture(rng, shape) for shape in SHAPES]
    whole_ones = rng.sample(range(len(SHAPES)), wholes)
    media = [reference.media_input(one, 2 if number in whole_ones else 1) for number, one in enumerate(pictures)]
    assert [medium.tensors[PIXELS].shape[1] == 1 for medium in media] == [one in whole_ones for one in range(6)]
    assert_alone_as_together(tower, media)


@pytest.mark.parametrize("together", [True, False], ids=["several", "lone"])
def test_embeddings_are_those_of_transformers(together: bool, reference: Reference, tower: VisionTower) -> None:
    """A lone picture of 5 x 6 tiles has more rows than 9 tiles' worth, and is scaled down to that."""
    pictures = [random_picture(random.Random(4), shape) for shape in SHAPES]
    nested: Any = [pictures] if together else [[one] for one in pictures]
    batch = reference.processor.image_processor(nested, return_tensors="pt")
    with torch.inference_mode():
        expected = reference.model.model.get_image_features(**batch).pooler_output
    ours = encode(tower, [reference.media_input(one, len(SHAPES) if together else 1) for one in pictures])
    for one, theirs in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, theirs, rtol=1e-4, atol=1e-5)
    if together:
        assert {len(one) for one in ours} == {17}, "a tile and a newline"
    else:
        assert 16 + 30 * 16 > max(map(len, ours)) > 16 + 8 * 16, "the whole, and less than all of its tiles"


def test_clips_of_any_length_share_a_batch_with_pictures(reference: Reference, tower: VisionTower) -> None:
    rng = random.Random(5)
    films = [random_film(kind, rng) for kind in ("clip", "one_frame_clip", "odd_clip", "clip", "one_frame_clip")]
    media = [reference.media_input(film) for film in films]
    assert len({medium.embedding_rows for medium in media}) == 4
    media.insert(2, reference.media_input(random_picture(rng)))
    assert_alone_as_together(tower, media)
    with torch.inference_mode():
        pixels = tensor_of(media[0].tensors["pixel_values_videos"])
        expected = reference.model.model.get_video_features(pixels).pooler_output[0]
    torch.testing.assert_close(encode(tower, media)[0], expected, rtol=1e-4, atol=1e-5)


def test_a_picture_of_some_tiles_that_are_not_all_is_refused(reference: Reference, tower: VisionTower) -> None:
    split = reference.media_input(random_picture(random.Random(6), (56, 56)))
    pixels = tensor_of(split.tensors[PIXELS])
    assert pixels.shape[1] == 5
    tensors = {**split.tensors, PIXELS: data_of(pixels[:, :2])}
    with pytest.raises(MaskMismatchError, match=r"has 2 tiles where \(height, width\) \[56, 56\] needs 5"):
        encode(tower, [msgspec.structs.replace(split, tensors=tensors)])


def test_a_lone_picture_that_brings_its_whole_only_takes_the_rows_of_that(
    reference: Reference, tower: VisionTower
) -> None:
    """Its positions were counted for tiles, so that it must not pass for one of several."""
    split = reference.media_input(random_picture(random.Random(6), (56, 56)))
    tensors = {**split.tensors, PIXELS: data_of(tensor_of(split.tensors[PIXELS])[:, :1])}
    with pytest.raises(MaskMismatchError, match=r"shape \(17, 64\) for a picture that needs \(88, 64\)"):
        encode(tower, [msgspec.structs.replace(split, tensors=tensors)])
