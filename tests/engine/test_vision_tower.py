"""Embeddings are those of transformers, whatever stands beside a medium in the batch; what does not fit is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image

from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.core.image_mask import MaskMismatchError
from fanlight_engine.core.messages import MediaInput
from fanlight_engine.model.loading.loader import load_model
from fanlight_engine.model.pixel_forms import sized
from fanlight_engine.model.tensors import data_of, tensor_of
from fanlight_engine.model.vision_tower import VisionTower
from fanlight_engine.request import Modality
from fanlight_engine.tensor_data import TensorData
from tests.engine import tile_checkpoints
from tests.engine.builders import data, embedded, llava_picture, picture, qwen_clip, qwen_picture
from tests.engine.random_prompts import random_film, random_picture
from tests.engine.reference import Reference
from tests.engine.reference_media import processed

SHAPES = ((40, 160), (160, 40), (56, 56), (60, 190), (200, 61), (113, 111))
"""Pictures that LLaVA-NeXT lays out in 2 to 4 tiles, Idefics3 in 3 to 9, and Mistral 3 at as many sizes."""
MASKED_TILES, SIZED = ("idefics3", "smolvlm"), ("mistral3", "llava_pixtral")
"""Two each of `tile_checkpoints`, whose pictures are of these forms."""

Tower = Callable[[list[MediaInput]], list[torch.Tensor]]


def tower_of(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> Tower:
    """Encodes as the runner does."""
    return encoder_of(load_model(checkpoint, torch.device("cpu"), dtype), checkpoint)


def encoder_of(model: Any, checkpoint: Checkpoint) -> Tower:
    return torch.inference_mode()(VisionTower(model, checkpoint).encode)


@pytest.fixture(scope="module", params=["qwen2_vl_path", "qwen_path"])
def qwen_tower(request: pytest.FixtureRequest) -> Tower:
    return tower_of(read_checkpoint(request.getfixturevalue(request.param)))


@pytest.fixture(scope="module")
def llava_tower(llava: Checkpoint) -> Tower:
    return tower_of(llava)


@pytest.fixture(scope="module")
def anyres(llava_next_path: Path) -> tuple[Reference, list[MediaInput], Tower]:
    """The LLaVA-NeXT in transformers, pictures of many shapes as its processor prepares them alone, and its tower."""
    reference = Reference(llava_next_path)
    rng = random.Random(1)
    media = [reference.media_input(random_picture(rng, shape)) for shape in SHAPES]
    return reference, media, tower_of(reference.checkpoint)


@dataclass(frozen=True, slots=True)
class Made:
    """A checkpoint in transformers, pictures of many shapes as its processor prepares them alone, and its tower."""

    reference: Reference
    pictures: list[Image.Image]
    media: list[MediaInput]
    model: Any
    tower: Tower


@pytest.fixture(scope="module", params=list(tile_checkpoints.MODELS))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    reference = Reference(tile_checkpoints.MODELS[request.param](tmp_path_factory.mktemp("towers")))
    rng = random.Random(2)
    pictures = [random_picture(rng, shape) for shape in SHAPES]
    media = [reference.media_input(one) for one in pictures]
    model = load_model(reference.checkpoint, torch.device("cpu"), torch.float32)
    return Made(reference, pictures, media, model, encoder_of(model, reference.checkpoint))


def with_second_tile(medium: MediaInput, value: float) -> MediaInput:
    """The picture [1, tiles, 3, H, W], its second tile nothing but this number."""
    pixels = tensor_of(medium.tensors["pixel_values"])
    pixels[:, 1] = value
    return with_tensors(medium, pixel_values=pixels)


def with_tensors(medium: MediaInput, **tensors: torch.Tensor) -> MediaInput:
    changed = {**medium.tensors, **{name: data_of(one) for name, one in tensors.items()}}
    return msgspec.structs.replace(medium, tensors=changed)


def assert_close(left: torch.Tensor, right: torch.Tensor) -> None:
    """Equal but for rounding, which may differ with the shape of a batch."""
    torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


def assert_alone_as_together(tower: Tower, media: list[MediaInput]) -> None:
    for medium, together in zip(media, tower(media), strict=True):
        (alone,) = tower([medium])
        assert together.shape == (medium.embedding_rows, 64)
        assert_close(together, alone)


def test_pictures_and_clips_in_one_batch_get_what_each_gets_alone(qwen_tower: Tower) -> None:
    media = [
        qwen_picture("wide", 4, 12),
        qwen_clip("long", 5, 6, 4),
        qwen_picture("tall", 14, 4),
        qwen_clip("short", 1, 2, 2),
        qwen_clip("large", 2, 10, 10),
    ]
    assert_alone_as_together(qwen_tower, media)


def test_a_clip_of_one_step_is_what_a_picture_of_the_same_pixels_is(qwen_tower: Tower) -> None:
    clip, image = qwen_clip("same", 1, 6, 8), qwen_picture("same", 6, 8)
    encoded_clip, encoded_image = qwen_tower([clip, image])
    assert_close(encoded_clip, encoded_image)


def test_the_tiles_of_a_medium_follow_each_other(llava_tower: Tower) -> None:
    media = [llava_picture("three", tiles=3), llava_picture("one"), llava_picture("two", tiles=2)]
    clip = msgspec.structs.replace(llava_picture("frames", tiles=4), modality=Modality.VIDEO)
    assert_alone_as_together(llava_tower, [*media, clip])
    pixels = tensor_of(media[0].tensors["pixel_values"])
    tiles = [picture(str(number), 16, pixel_values=pixels[number : number + 1].numpy()) for number in range(3)]
    assert_close(llava_tower([media[0]])[0], torch.cat(llava_tower(tiles)))


def test_pictures_of_different_tile_counts_share_a_batch(
    anyres: tuple[Reference, list[MediaInput], Tower],
) -> None:
    _, media, tower = anyres
    assert len({medium.tensors["pixel_values"].shape[1] for medium in media}) > 1
    assert_alone_as_together(tower, media)


def test_a_batch_of_tiled_pictures_is_what_transformers_makes_of_its_own(
    anyres: tuple[Reference, list[MediaInput], Tower],
) -> None:
    reference, media, tower = anyres
    rng = random.Random(1)
    batch = reference.processor.image_processor([random_picture(rng, shape) for shape in SHAPES], return_tensors="pt")
    with torch.inference_mode():
        expected = reference.model.model.get_image_features(**batch).pooler_output
    for ours, theirs in zip(tower(media), expected, strict=True):
        assert_close(ours, theirs)


class TestTilesAndSizes:
    """Families that cut a picture into tiles, or take it at its own resolution."""

    def test_pictures_of_all_sizes_and_clips_share_a_batch(self, made: Made) -> None:
        clips = [random_film(kind, random.Random(3)) for kind in ("one_frame_clip", "odd_clip", "clip")]
        has_clips = made.reference.checkpoint.family.takes_videos
        shown = [made.reference.media_input(clip) for clip in clips] if has_clips else []
        assert_alone_as_together(made.tower, [*made.media[:3], *shown, *made.media[3:]])

    def test_a_batch_is_what_transformers_makes_of_a_prompt_with_all_pictures(self, made: Made) -> None:
        processor, family = made.reference.processor, made.reference.checkpoint.family
        prompt = processed(processor, family, processor.image_token * len(SHAPES), made.pictures, False)
        tensors = {name: prompt[name] for name in family.vision_tensors}
        with torch.inference_mode():
            expected = made.reference.model.model.get_image_features(**tensors).pooler_output
        assert_close(torch.cat(made.tower(made.media)), torch.cat([one.flatten(0, -2) for one in expected]))

    @pytest.mark.parametrize("made", MASKED_TILES, indirect=True)
    def test_tiles_of_two_sizes_share_a_batch(self, made: Made) -> None:
        small, between, after = made.media[:3]
        pixels, mask = (
            tensor_of(one).repeat_interleave(2, -1).repeat_interleave(2, -2) for one in small.tensors.values()
        )
        large = with_tensors(small, pixel_values=pixels, pixel_attention_mask=mask)
        large = msgspec.structs.replace(large, embedding_rows=4 * small.embedding_rows)
        assert_alone_as_together(made.tower, [small, large, between, large, after])

    @pytest.mark.parametrize("made", MASKED_TILES, indirect=True)
    @pytest.mark.parametrize(
        ("dtype", "almost_zero", "tolerance"), [(torch.float32, 1e-9, 1e-5), (torch.float16, 1e-4, 1e-2)]
    )
    def test_a_tile_of_nothing_but_zeros_has_rows(
        self, made: Made, dtype: torch.dtype, almost_zero: float, tolerance: float
    ) -> None:
        tower = tower_of(made.reference.checkpoint, dtype)
        before, blank, after = made.media[0], with_second_tile(made.media[1], 0.0), made.media[2]
        alone = [tower([one])[0] for one in (before, with_second_tile(made.media[1], almost_zero), after)]
        for found, expected in zip(tower([before, blank, after]), alone, strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)

    @pytest.mark.parametrize("made", SIZED, indirect=True)
    @pytest.mark.parametrize("size", [(1, 1), (3, 16)])
    def test_a_picture_of_one_row_may_stand_alone(self, made: Made, size: tuple[int, int]) -> None:
        least = made.reference.media_input(random_picture(random.Random(4), size))
        assert least.embedding_rows == 1
        assert_alone_as_together(made.tower, [least, made.media[0], least])
        assert_alone_as_together(made.tower, [least, least])

    @pytest.mark.parametrize("made", SIZED, indirect=True)
    def test_pictures_that_are_large_together_go_in_runs(self, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
        together, runs = made.tower(made.media), []
        encode = made.model.model.get_image_features

        def watched(**arguments: torch.Tensor) -> Any:
            runs.append(len(arguments["pixel_values"]))
            return encode(**arguments)

        monkeypatch.setattr(made.model.model, "get_image_features", watched)
        monkeypatch.setattr(sized, "_MOST_PIXELS_TOGETHER", 96 * 96)
        for one, other in zip(made.tower(made.media), together, strict=True):
            assert_close(one, other)
        assert sum(runs) == len(SHAPES)
        assert 1 < max(runs) < len(SHAPES), "some share a run, and not all of them"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_embeddings_that_come_along_are_taken_as_they_are(dtype: torch.dtype, llava_tower: Tower) -> None:
    brought = torch.randn(5, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    taken, encoded = llava_tower([embedded("brought", data_of(brought)), llava_picture("beside")])
    torch.testing.assert_close(taken, brought.float(), rtol=0, atol=0)
    assert_close(encoded, llava_tower([llava_picture("beside")])[0])


def test_embeddings_have_the_models_number_type(llava: Checkpoint) -> None:
    tower = tower_of(llava, torch.bfloat16)
    assert {one.dtype for one in tower([llava_picture("a"), embedded("b", data(np.ones((2, 64), np.float32)))])} == {
        torch.bfloat16
    }


class TestRefusal:
    """No row of one medium can end up in another."""

    def test_of_patches_that_are_not_those_of_the_grid(self, qwen_tower: Tower) -> None:
        bold, timid = qwen_picture("bold", 4, 8), qwen_picture("timid", 4, 4)
        swapped = [
            msgspec.structs.replace(one, tensors={**one.tensors, "pixel_values": other.tensors["pixel_values"]})
            for one, other in ((bold, timid), (timid, bold))
        ]
        with pytest.raises(MaskMismatchError, match=r"has 16 patches where a grid of .* needs 32"):
            qwen_tower([swapped[0], qwen_picture("between"), swapped[1]])

    def test_of_tiles_that_are_not_those_of_the_size(self, anyres: tuple[Reference, list[MediaInput], Tower]) -> None:
        _, media, tower = anyres
        few, many = sorted(media, key=lambda medium: medium.tensors["pixel_values"].shape[1])[:: len(media) - 1]
        tensors = {**few.tensors, "image_sizes": many.tensors["image_sizes"]}
        with pytest.raises(MaskMismatchError, match=r"has 3 tiles where \(height, width\) .* needs 5"):
            tower([msgspec.structs.replace(few, tensors=tensors), many])

    @pytest.mark.parametrize("made", SIZED, indirect=True)
    def test_of_a_picture_of_another_size_than_it_says(self, made: Made) -> None:
        wide, tall = made.media[:2]
        swapped = with_tensors(wide, image_sizes=tensor_of(tall.tensors["image_sizes"]))
        with pytest.raises(
            MaskMismatchError, match=r"has \d+ pixels of height where \(height, width\) \[32, 96\] needs 32"
        ):
            made.tower([tall, swapped])

    @pytest.mark.parametrize("made", MASKED_TILES, indirect=True)
    def test_of_a_mask_of_other_tiles(self, made: Made) -> None:
        few, many = made.media[0], made.media[2]
        mask = tensor_of(many.tensors["pixel_attention_mask"])
        with pytest.raises(MaskMismatchError, match=r"pixel mask of shape \(1, 10, 32, 32\) .* need \(1, 4, 32, 32\)"):
            made.tower([many, with_tensors(few, pixel_attention_mask=mask)])

    def test_of_pixels_that_make_other_rows_than_there_are_positions(self, made: Made) -> None:
        for medium, other in zip(made.media, made.media[1:], strict=False):
            if medium.embedding_rows == other.embedding_rows:
                continue
            with pytest.raises(MaskMismatchError, match=rf"\({other.embedding_rows}, 64\) for a picture that needs"):
                made.tower([other, msgspec.structs.replace(medium, tensors=other.tensors)])

    def test_of_another_number_of_rows_than_there_are_positions(self, llava_tower: Tower) -> None:
        for medium in (llava_picture("a", tiles=2), embedded("b", data(np.ones((32, 64), np.float32)))):
            with pytest.raises(MaskMismatchError, match=r"shape \(32, 64\) for a picture that needs \(31, 64\)"):
                llava_tower([msgspec.structs.replace(medium, embedding_rows=31)])

    def test_of_embeddings_of_another_model(self, llava_tower: Tower) -> None:
        with pytest.raises(MaskMismatchError, match=r"the request brought .* \(3, 65\) for a picture .* \(3, 64\)"):
            llava_tower([embedded("wide", data(np.ones((3, 65), np.float32)))])

    @pytest.mark.parametrize(
        "broken", [TensorData("complex64", (1, 3, 56, 56), b""), TensorData("float32", (1, 3, 56, 56), bytes(40))]
    )
    def test_of_tensors_that_are_none(self, broken: TensorData, llava_tower: Tower) -> None:
        medium = msgspec.structs.replace(llava_picture("a"), tensors={"pixel_values": broken})
        with pytest.raises(ValueError, match=r"complex64|40 bytes for float32 \(1, 3, 56, 56\), which takes 37632"):
            llava_tower([medium])
