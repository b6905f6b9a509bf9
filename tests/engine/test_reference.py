"""The reference shows a clip's frames as transformers' own processor would choose and time them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers.video_utils import VideoMetadata

from fanlight_engine.checkpoints.families import served_model_types
from tests.engine import clips
from tests.engine.parity import MODELS
from tests.engine.random_prompts import film_of_file, random_prompt
from tests.engine.reference import Reference


@pytest.fixture(scope="module", params=["qwen2_vl_path", "qwen_path", "tiny_path"])
def reference(request: pytest.FixtureRequest) -> Reference:
    path: Path = request.getfixturevalue(request.param)
    return Reference(path)


def test_a_clip_of_one_frame_is_shown_wherever_the_processor_takes_one(
    reference: Reference, qwen3_vl_path: Path, llava_onevision_path: Path
) -> None:
    assert "one_frame_clip" in reference.kinds
    assert "one_frame_clip" in Reference(llava_onevision_path).kinds
    assert set(reference.kinds) - set(Reference(qwen3_vl_path).kinds) == {"one_frame_clip"}


def test_clips_are_cut_to_one_length_where_a_processor_stacks_them() -> None:
    prompt = random_prompt("clip_and_images", random.Random(0), list_content=True)
    assert len({len(film.frames) for film in prompt.films}) == 2
    prompt.cut_films_to_one_length()
    assert len({len(film.frames) for film in prompt.films}) == 1
    assert len(prompt.pictures) == 2


@pytest.mark.parametrize("num_frames", [2, 4, 6])
def test_frames_of_a_file_are_those_that_the_processor_samples_itself(num_frames: int, reference: Reference) -> None:
    film = film_of_file(clips.clip_at([0, 0.1, 0.35, 0.4, 0.5, 0.82, 0.9]), num_frames)
    ours = reference.media_input(film)
    theirs = reference.processor(
        text=reference.processor.video_token,
        videos=[film.frames],
        return_tensors="pt",
        videos_kwargs={
            "video_metadata": [VideoMetadata(total_num_frames=7, fps=film.fps)],
            "do_sample_frames": True,
            "num_frames": num_frames,
            "input_data_format": "channels_last",
        },
    )
    assert ours.tensors["pixel_values_videos"].data == theirs["pixel_values_videos"].numpy().tobytes()
    assert ours.grid == tuple(theirs["video_grid_thw"][0].tolist())
    if reference.checkpoint.family.reads_seconds_per_grid:
        assert torch.equal(theirs["second_per_grid_ts"], torch.tensor([ours.seconds_per_grid]))


def test_kinds_show_what_their_names_say() -> None:
    rng = random.Random(0)
    for _ in range(5):
        (one,) = random_prompt("one_frame_clip", rng, list_content=True).films
        assert len(one.frames) == 1
        (odd,) = random_prompt("odd_clip", rng, list_content=True).films
        assert len(odd.frames) % 2 == 1
        assert odd.num_frames is None
        (file,) = random_prompt("clip_file", rng, list_content=True).films
        assert file.file is not None
        mixed = random_prompt("clip_and_images", rng, list_content=True)
        assert (len(mixed.pictures), len(mixed.films)) == (2, 2)


def test_every_family_that_is_served_is_compared() -> None:
    assert set(served_model_types()) <= MODELS.keys()
