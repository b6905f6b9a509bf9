"""Positions of prompts with media are those that transformers' `generate` makes; what it would misread is refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from fanlight_engine.checkpoints.families import families_of
from fanlight_engine.core.image_mask import ImageMask, MaskMismatchError
from fanlight_engine.core.messages import MaskRun, MediaInput
from fanlight_engine.model.adapter import ModelAdapter
from fanlight_engine.model.positions import rope_arguments, token_types
from tests.engine.builders import Part, picture, qwen_clip, qwen_picture, sequence, words
from tests.engine.reference import Case, Reference


def arguments(*parts: Part, model_type: str = "qwen2_5_vl") -> dict[str, torch.Tensor]:
    """What `get_rope_index` is given for a prompt."""
    one = sequence("any", *parts)
    return arguments_of(one.tokens, one.mask, one.request.media, model_type)


def arguments_of(
    prompt_ids: list[int], mask: ImageMask, media: Sequence[MediaInput], model_type: str = "qwen2_5_vl"
) -> dict[str, torch.Tensor]:
    (family,) = families_of(model_type)
    return rope_arguments(prompt_ids, mask, media, merge_size=2, family=family)


@pytest.fixture(scope="module", params=["qwen2_vl_path", "qwen_path", "qwen3_vl_path", "tiny_path"])
def reference(request: pytest.FixtureRequest) -> Reference:
    path: Path = request.getfixturevalue(request.param)
    return Reference(path)


@pytest.mark.parametrize(
    "kind", ["one_image", "clip", "odd_clip", "two_clips", "clip_and_images", "multi_turn", "text"]
)
def test_positions_are_those_of_generate(kind: str, reference: Reference) -> None:
    adapter = ModelAdapter(reference.model, reference.checkpoint)
    for seed in range(4):
        case = reference.case(kind, random.Random(seed), new_tokens=1)
        expected = positions_of_generate(reference.model, reference.inputs(case.prompt))
        ours = adapter.prompt_positions(case.prompt_ids, mask_of(case), case.media)
        np.testing.assert_array_equal(ours, expected)


def mask_of(case: Case) -> ImageMask:
    return ImageMask(case.media, case.mask_runs, len(case.prompt_ids))


def positions_of_generate(model: Any, inputs: Any) -> np.ndarray:
    """What transformers computes at the beginning of `generate`; its first row is for text alone."""
    positions = model._prepare_position_ids_for_generation(inputs["input_ids"], dict(inputs))
    return positions[1:, 0].numpy()


def test_every_position_says_what_kind_of_medium_it_takes() -> None:
    one = sequence("any", words(2), qwen_picture("a", 2, 4), qwen_clip("b", 2, 2, 2), words(1), qwen_picture("c", 2, 2))
    types = token_types(one.mask, one.request.media, one.length)
    assert types.tolist() == [0, 0, 1, 1, 2, 2, 0, 1]


def test_grids_are_sorted_by_kind_and_times_are_those_of_the_clips() -> None:
    made = arguments(
        qwen_clip("a", 2, 4, 4, seconds_per_grid=0.1), words(1), qwen_picture("b"), words(1), qwen_clip("c", 3, 2, 2)
    )
    assert made["image_grid_thw"].tolist() == [[1, 4, 4]]
    assert made["video_grid_thw"].tolist() == [[2, 4, 4], [3, 2, 2]]
    assert made["second_per_grid_ts"].dtype is torch.float32, "as the processor gives them to generate"
    assert made["second_per_grid_ts"].tolist() == [np.float32(0.1), 1.0]


def test_times_are_passed_only_where_there_are_clips_and_the_family_reads_them() -> None:
    assert "second_per_grid_ts" not in arguments(words(1), qwen_picture("a"))
    assert "second_per_grid_ts" not in arguments(words(1), qwen_clip("a"), model_type="qwen2_vl")


def test_a_picture_may_touch_a_clip() -> None:
    assert len(arguments(qwen_picture("a"), qwen_clip("b"), qwen_picture("c"))["image_grid_thw"]) == 2


class TestClipsInPieces:
    """Qwen3-VL shows a clip step by step with text between them, and takes each step for a grid of its own."""

    MEDIA = (qwen_clip("a", 2, 4, 4), qwen_picture("b", 2, 4), qwen_clip("c", 1, 2, 4))
    """4 rows twice, 2 rows, 2 rows."""

    def arguments(self, *runs: MaskRun, model_type: str = "qwen3_vl") -> dict[str, torch.Tensor]:
        mask = ImageMask(self.MEDIA, runs, 30)
        return arguments_of(words(30), mask, self.MEDIA, model_type)

    def test_are_given_with_their_whole_grids(self) -> None:
        made = self.arguments(MaskRun(1, 0, 4), MaskRun(6, 4, 4), MaskRun(10, 8, 2), MaskRun(20, 10, 2))
        assert made["video_grid_thw"].tolist() == [[2, 4, 4], [1, 2, 4]]
        assert "second_per_grid_ts" not in made, "times stand in the text"

    def test_may_touch_a_picture(self) -> None:
        assert self.arguments(MaskRun(1, 0, 4), MaskRun(6, 4, 6), MaskRun(12, 10, 2))

    @pytest.mark.parametrize(
        ("runs", "stretches"),
        [
            ((MaskRun(1, 0, 8),), r"\[8\]"),
            ((MaskRun(1, 0, 4), MaskRun(5, 4, 4)), r"\[8\]"),
            ((MaskRun(1, 0, 3), MaskRun(5, 3, 5)), r"\[3, 5\]"),
            ((MaskRun(1, 0, 4), MaskRun(6, 4, 2), MaskRun(9, 6, 2)), r"\[4, 2, 2\]"),
        ],
    )
    def test_in_other_pieces_than_steps_are_refused(self, runs: tuple[MaskRun, ...], stretches: str) -> None:
        with pytest.raises(ValueError, match=rf"clip 0 stands in stretches of {stretches} positions, .* needs 2 of 4"):
            self.arguments(*runs, MaskRun(14, 8, 2), MaskRun(20, 10, 2))

    def test_that_touch_are_refused(self) -> None:
        media = (self.MEDIA[0], self.MEDIA[2])
        mask = ImageMask(media, [MaskRun(1, 0, 4), MaskRun(6, 4, 6)], 20)
        with pytest.raises(ValueError, match="media 0 and 1 are both a clip and touch"):
            arguments_of(words(20), mask, media, "qwen3_vl")

    def test_have_no_place_in_families_that_take_a_clip_in_one(self) -> None:
        runs = (MaskRun(1, 0, 4), MaskRun(6, 4, 4), MaskRun(14, 8, 2), MaskRun(20, 10, 2))
        with pytest.raises(ValueError, match="medium 0 stands in more than one place"):
            self.arguments(*runs, model_type="qwen2_5_vl")


class TestRefusal:
    """What `get_rope_index` would misread never reaches it."""

    def test_of_media_of_one_kind_that_touch(self) -> None:
        with pytest.raises(ValueError, match="media 0 and 1 are both a picture and touch"):
            arguments(qwen_picture("a"), qwen_picture("b"), words(1), qwen_clip("c"))
        with pytest.raises(ValueError, match="media 1 and 2 are both a clip and touch"):
            arguments(qwen_picture("a"), qwen_clip("b"), qwen_clip("c"))

    def test_of_a_medium_in_two_places_even_when_the_number_of_places_is_right(self) -> None:
        media: list[MediaInput] = [qwen_picture("a"), qwen_picture("b"), qwen_picture("c")]
        mask = ImageMask(media, [MaskRun(0, 0, 2), MaskRun(4, 2, 2), MaskRun(8, 4, 8)], 20)
        with pytest.raises(ValueError, match="medium 0 stands in more than one place"):
            arguments_of(words(20), mask, media)

    def test_of_a_medium_without_a_grid(self) -> None:
        with pytest.raises(ValueError, match="picture 1 comes without its grid"):
            arguments(qwen_picture("a"), words(1), picture("b", 4))

    @pytest.mark.parametrize("grid", [(1, 3, 4), (1, 4, 3), (0, 4, 4), (-1, 4, -4)])
    def test_of_a_grid_that_cannot_be_merged(self, grid: tuple[int, int, int]) -> None:
        with pytest.raises(ValueError, match="multiples of 2"):
            arguments(msgspec.structs.replace(qwen_clip("a"), grid=grid))

    def test_of_a_grid_of_other_size_than_its_positions(self) -> None:
        with pytest.raises(MaskMismatchError, match="clip 0 has a grid of 3 x 4 x 4 patches, which make 12 embeddings"):
            arguments(msgspec.structs.replace(qwen_clip("a", 2, 4, 4), grid=(3, 4, 4)))
