"""Every form of pixels behind our seam: what was decided, which sizes can be asked for, what callers may send."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import AutoProcessor

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import Reason
from fanlight_engine.inputs.guarded_tokenizer import GuardedTokenizer
from fanlight_engine.inputs.media.processing import Clip, ClipFacts, MediaDecision, MediaError
from fanlight_engine.inputs.media.wrapped import WrappedProcessor, media_marks
from fanlight_engine.request import Detail, FrameOptions, Modality, Patches, PixelOptions, Tiles
from fanlight_engine.tensor_data import array_of, tensor_data_of

PLAIN = PixelOptions()
Make = Callable[..., WrappedProcessor]


@pytest.fixture(scope="module")
def wrapped(checkpoint_of: Callable[[str], Checkpoint]) -> Make:
    @cache
    def make(family: str, **settings: Any) -> WrappedProcessor:
        checkpoint = checkpoint_of(family)
        processor: Any = AutoProcessor.from_pretrained(checkpoint.path)
        guarded = GuardedTokenizer(processor.tokenizer, media_marks(processor))
        return WrappedProcessor(EngineConfig(**settings), checkpoint, processor, guarded)

    return make


def picture(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))


def clip(frames: int, fps: float = 2.0, times_are_known: bool = True, size: tuple[int, int] = (64, 48)) -> Clip:
    rng = np.random.default_rng(1)
    pictures = [rng.integers(0, 256, (size[1], size[0], 3), np.uint8) for _ in range(frames)]
    facts = ClipFacts(tuple(index / fps for index in range(frames)), fps)
    return Clip(pictures, tuple(range(frames)), facts, times_are_known)


def refusal(call: Callable[[], object]) -> MediaError:
    with pytest.raises(MediaError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize(
    ("family", "size", "decision"),
    [
        ("internvl", (96, 64), MediaDecision((96, 64), (32, 32), tiles=(3, 2), has_thumbnail=True)),
        ("internvl", (64, 64), MediaDecision((64, 64), (32, 32), tiles=(2, 2), has_thumbnail=True)),
        ("idefics3", (96, 64), MediaDecision((96, 64), (96, 64), (1, 8, 12), (3, 2), True)),
        ("gemma3", (96, 64), MediaDecision((96, 64), (48, 48))),
        ("gemma3_pan_and_scan", (90, 40), MediaDecision((90, 40), (48, 48), tiles=(2, 1), has_thumbnail=True)),
        ("gemma3_pan_and_scan", (40, 90), MediaDecision((40, 90), (48, 48), tiles=(1, 2), has_thumbnail=True)),
        ("gemma3_pan_and_scan", (40, 40), MediaDecision((40, 40), (48, 48))),
        ("mistral3", (50, 31), MediaDecision((50, 31), (64, 32), (1, 4, 8))),
        ("mistral3", (192, 96), MediaDecision((192, 96), (96, 48), (1, 6, 12))),
        ("llava_pixtral", (20, 20), MediaDecision((20, 20), (32, 32), (1, 2, 2))),
        ("llava_onevision", (56, 28), MediaDecision((56, 28), (28, 28), tiles=(2, 1), has_thumbnail=True)),
        ("paligemma", (56, 28), MediaDecision((56, 28), (24, 24))),
    ],
)
def test_what_was_decided_about_a_picture(wrapped: Make, family: str, size: tuple[int, int], decision: MediaDecision):
    assert wrapped(family).process_image(picture(*size), PLAIN).decision == decision


@pytest.mark.parametrize("family", ["internvl", "smolvlm", "llava_onevision", "qwen3_vl"])
def test_what_was_decided_about_a_clip(wrapped: Make, family: str):
    processed = wrapped(family).process_video(clip(4), PLAIN)
    decision = processed.decision
    assert (decision.original_size, decision.frames, decision.frame_times) == ((64, 48), 4, (0.0, 0.5, 1.0, 1.5))
    assert decision.resized_size is not None
    (pixels, *_) = processed.tensors.values()
    if family == "internvl":
        assert pixels.shape == (4, 3, 32, 32)
    elif family != "qwen3_vl":
        assert pixels.shape[:3] == (1, 4, 3)


def test_a_clip_that_is_too_short_for_its_processor_is_refused_with_how_many_frames_it_takes(wrapped: Make):
    error = refusal(lambda: wrapped("qwen3_vl").process_video(clip(1), PLAIN))
    assert error.reason is Reason.VIDEO_UNREADABLE
    assert "refuses a single frame of 64 x 48 pixels; show at least 2 frames" in error.description


@pytest.mark.parametrize("family", ["smolvlm", "qwen3_vl", "internvl", "llava_onevision"])
def test_a_clip_without_times_is_shown_at_the_rate_that_processors_assume(wrapped: Make, family: str):
    known = wrapped(family).process_video(clip(4, fps=24.0), PLAIN)
    unknown = wrapped(family).process_video(clip(4, fps=24.0, times_are_known=False), PLAIN)
    assert (unknown.replacement, unknown.tensors) == (known.replacement, known.tensors)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        (PixelOptions(max_pixels=16 * 16 * 9), 9),
        (PixelOptions(max_tokens=7), 7),
        (PixelOptions(max_tokens=1), 1),
        (PixelOptions(detail=Detail.LOW), 4),
        (PixelOptions(detail=Detail.HIGH), 30),
        (PixelOptions(min_pixels=16 * 16 * 20), 30),
    ],
)
def test_a_picture_at_its_own_size_is_scaled_down_by_its_longest_edge(wrapped: Make, options: PixelOptions, most: int):
    made = wrapped("mistral3", low_detail_tokens=4)
    rows = made.process_image(picture(90, 70), options).replacement.rows
    assert 1 <= rows <= most
    assert rows > most // 2
    assert made.process_image(picture(90, 70), PLAIN).replacement.rows == 30


@pytest.mark.parametrize("family", ["mistral3", "llava_pixtral"])
def test_a_picture_of_few_pixels_is_measured_by_the_axis_that_has_them(
    wrapped: Make, family: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Sides of 1 and 3 pixels look like channels; nothing is guessed, and nothing said of it."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    for size in ((1, 40), (40, 1), (3, 40), (40, 3), (1, 1)):
        made = wrapped(family).process_image(picture(*size), PLAIN)
        assert wrapped(family).process_image(picture(*size), PixelOptions(max_pixels=16 * 16 * 36)) == made
    assert not caplog.records


def test_a_picture_at_its_own_size_is_never_scaled_up(wrapped: Make):
    error = refusal(lambda: wrapped("mistral3").process_image(picture(30, 30), PixelOptions(min_pixels=5000)))
    assert (error.reason, error.below) == (Reason.IMAGE_OPTION_INVALID, ".min_pixels")
    assert "at most 1024 pixels" in error.description


def test_what_is_too_thin_to_be_made_smaller_is_refused_with_the_numbers(wrapped: Make):
    thin = picture(90, 3)
    assert wrapped("mistral3").process_image(thin, PixelOptions(max_tokens=2)).replacement.rows == 2
    error = refusal(lambda: wrapped("mistral3").process_image(thin, PixelOptions(max_tokens=1)))
    assert (error.reason, error.below) == (Reason.IMAGE_OPTION_INVALID, ".max_tokens")
    assert "512 pixels" in error.description


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("internvl", "cuts a picture into tiles"),
        ("idefics3", "cuts a picture into tiles"),
        ("smolvlm", "cuts a picture into tiles"),
        ("llava_onevision", "cuts a picture into tiles"),
        ("llava_next", "cuts a picture into tiles"),
        ("gemma3_pan_and_scan", "cuts a picture into tiles"),
        ("gemma3", "sees every picture at one size"),
        ("paligemma", "sees every picture at one size"),
    ],
)
def test_models_that_choose_the_size_refuse_bounds_and_say_why(wrapped: Make, family: str, why: str):
    made = wrapped(family)
    for name, options in (("min_pixels", PixelOptions(min_pixels=9)), ("max_pixels", PixelOptions(max_pixels=9))):
        error = refusal(lambda options=options: made.process_image(picture(90, 60), options))
        assert (error.reason, error.below) == (Reason.IMAGE_OPTION_INVALID, f".{name}")
        assert why in error.description
    assert refusal(lambda: made.process_image(picture(90, 60), PixelOptions(max_tokens=3))).below == ".max_tokens"


def test_bounds_of_a_clip_are_those_of_a_frame_also_where_the_processor_shares_them(wrapped: Make):
    cell = 28 * 28
    for frames in (2, 4, 8):
        shown = clip(frames, size=(200, 150))
        decision = wrapped("qwen3_vl").process_video(shown, PixelOptions(max_pixels=6 * cell)).decision
        assert decision.resized_size is not None
        assert decision.resized_size[0] * decision.resized_size[1] <= 6 * cell
        rows = wrapped("qwen3_vl").process_video(shown, PixelOptions(max_tokens=3 * frames)).replacement.rows
        assert 1 <= rows <= 3 * frames
    error = refusal(lambda: wrapped("qwen3_vl").process_video(clip(8), PixelOptions(max_tokens=3)))
    assert error.reason is Reason.VIDEO_OPTION_INVALID


@pytest.mark.parametrize(
    ("family", "size"),
    [
        ("internvl", (96, 64)),
        ("internvl", (32, 32)),
        ("gemma3", (50, 50)),
        ("gemma3_pan_and_scan", (90, 40)),
        ("paligemma", (50, 50)),
        ("llava_siglip", (50, 50)),
        ("llava_next", (150, 60)),
        ("llava_onevision", (100, 60)),
        ("mistral3", (50, 31)),
        ("llava_pixtral", (50, 31)),
    ],
)
def test_the_processors_own_pixels_come_back_unchanged_as_tiles(wrapped: Make, family: str, size: tuple[int, int]):
    made = wrapped(family)
    processed = made.process_image(picture(*size), PLAIN)
    pixels = array_of(processed.tensors["pixel_values"])
    tiles = Tiles(tensor_data_of(pixels[0] if pixels.ndim == 5 else pixels), size)
    again = made.process_tensors(tiles, Modality.IMAGE)
    assert (again.tensors, again.replacement) == (processed.tensors, processed.replacement)


@pytest.mark.parametrize(
    ("family", "shape", "words"),
    [
        ("llava_siglip", (2, 3, 56, 56), "this model sees a picture as one tile"),
        ("paligemma", (2, 3, 24, 24), "[1, 3, 24, 24] is needed"),
        ("internvl", (2, 3, 31, 31), "[2, 3, 32, 32] is needed: tiles of the size"),
        ("internvl", (3, 32, 32), "[3, 3, 32, 32] is needed"),
        ("mistral3", (1, 3, 33, 32), "32 x 33 pixels; both must be multiples of 16"),
        ("mistral3", (1, 3, 160, 32), "at most 96"),
        ("mistral3", (2, 3, 32, 32), "[1, 3, 32, 32] is needed"),
        ("llava_onevision", (2, 3, 28, 28), "[3, 3, 28, 28] is needed"),
        (
            "idefics3",
            (1, 3, 32, 32),
            "a mask of their padding, with tags that say where each is; send the encoded file",
        ),
        ("qwen3_vl", (1, 3, 28, 28), "send patches, not tiles"),
    ],
)
def test_tiles_that_do_not_fit_are_refused_in_words(wrapped: Make, family: str, shape: tuple[int, ...], words: str):
    tiles = Tiles(tensor_data_of(np.zeros(shape, np.float32)), (56, 28))
    error = refusal(lambda: wrapped(family).process_tensors(tiles, Modality.IMAGE))
    assert error.reason is Reason.TENSOR_INVALID
    assert words in error.description


@pytest.mark.parametrize(
    ("family", "modality", "words"),
    [
        ("internvl", Modality.IMAGE, "square tiles; send tiles, not patches"),
        ("mistral3", Modality.IMAGE, "a picture at its own size; send it as one tile, not patches"),
        ("smolvlm", Modality.VIDEO, "send the encoded file or its frames, not patches"),
        ("llava_onevision", Modality.VIDEO, "the frames of a clip as squares; send the encoded file or its frames"),
        ("internvl", Modality.VIDEO, "send the encoded file or its frames"),
    ],
)
def test_patches_are_refused_where_there_is_no_grid(wrapped: Make, family: str, modality: Modality, words: str):
    patches = Patches(tensor_data_of(np.zeros((4, 8), np.float32)), (1, 2, 2))
    error = refusal(lambda: wrapped(family).process_tensors(patches, modality))
    assert error.reason is Reason.TENSOR_INVALID
    assert words in error.description


def test_patches_of_a_clip_bring_its_times_where_a_prompt_shows_them(wrapped: Make):
    made, shown = wrapped("qwen3_vl"), clip(4)
    processed = made.process_video(shown, PLAIN)
    grid = processed.decision.grid
    assert grid is not None
    patches = Patches(processed.tensors["pixel_values_videos"], grid, seconds_per_step=1.0)
    again = made.process_tensors(patches, Modality.VIDEO)
    assert (again.tensors, again.replacement) == (processed.tensors, processed.replacement)
    assert "<0.2 seconds>" in again.replacement.text or "<0.3 seconds>" in again.replacement.text


@pytest.mark.parametrize(
    ("family", "size"),
    [
        ("internvl", (96, 64)),
        ("internvl", (32, 32)),
        ("gemma3", (50, 50)),
        ("gemma3_pan_and_scan", (90, 40)),
        ("idefics3", (96, 64)),
        ("idefics3", (33, 96)),
        ("smolvlm", (96, 64)),
        ("mistral3", (50, 31)),
        ("llava_next", (150, 60)),
        ("llava_onevision", (100, 60)),
        ("qwen3_vl", (90, 60)),
        ("paligemma", (50, 50)),
    ],
)
def test_embeddings_of_a_picture_stand_in_a_prompt_as_the_picture_does(
    wrapped: Make, family: str, size: tuple[int, int]
):
    made = wrapped(family)
    processed = made.process_image(picture(*size), PLAIN)
    rows, grid = processed.replacement.rows, processed.decision.grid
    assert made.replacement_for_rows(rows, Modality.IMAGE, grid) == processed.replacement


@pytest.mark.parametrize("family", ["internvl", "smolvlm", "llava_onevision", "qwen3_vl", "qwen2_5_vl"])
def test_embeddings_of_a_clip_stand_in_a_prompt_as_the_clip_does(wrapped: Make, family: str):
    made = wrapped(family)
    processed = made.process_video(clip(4, fps=1.0), PLAIN)
    rows, grid = processed.replacement.rows, processed.decision.grid
    seconds = 2.0 if grid else 1.0
    assert made.replacement_for_rows(rows, Modality.VIDEO, grid, seconds) == processed.replacement


@pytest.mark.parametrize(
    ("family", "rows", "grid", "words"),
    [
        ("internvl", 7, None, "has 4 for each of its tiles"),
        ("gemma3", 10, None, "has 9 for each of its tiles"),
        ("idefics3", 6, None, "4 for each tile"),
        ("idefics3", 28, None, "it has no grid"),
        ("idefics3", 28, (1, 8, 8), "2 x 2 tiles and the whole picture, which have 20 embeddings"),
        ("idefics3", 28, (1, 8, 9), "multiples of 4"),
        ("mistral3", 6, None, "it has no grid"),
        ("mistral3", 6, (1, 4, 4), "1 x 4 x 4 patches for 6 embeddings"),
        ("mistral3", 6, (1, 3, 8), "equal to them"),
    ],
)
def test_embeddings_that_are_no_picture_of_the_model_are_refused_in_words(
    wrapped: Make, family: str, rows: int, grid: tuple[int, int, int] | None, words: str
):
    error = refusal(lambda: wrapped(family).replacement_for_rows(rows, Modality.IMAGE, grid))
    assert error.reason is Reason.EMBEDDINGS_MISMATCH
    assert words in error.description


def test_embeddings_of_any_number_where_a_prompt_shows_nothing_but_them(wrapped: Make):
    replacement = wrapped("llava_siglip").replacement_for_rows(7, Modality.IMAGE)
    assert (len(replacement.ids), replacement.runs) == (7, ((0, 7),))


def test_a_picture_among_others_is_shown_as_a_whole_where_the_family_does_so(wrapped: Make):
    made = wrapped("llava_onevision")
    alone, among = (made.process_image(picture(100, 60), PLAIN, several) for several in (False, True))
    assert array_of(alone.tensors["pixel_values"]).shape[1] > 1
    assert array_of(among.tensors["pixel_values"]).shape == (1, 1, 3, 28, 28)
    assert array_of(among.tensors["image_sizes"]).tolist() == [[60, 100]]
    assert among.replacement.rows == 17 < alone.replacement.rows
    assert among.decision == MediaDecision((100, 60), (28, 28))
    again = made.process_tensors(
        Tiles(tensor_data_of(array_of(among.tensors["pixel_values"])[0]), (100, 60)), Modality.IMAGE
    )
    assert (again.tensors, again.replacement) == (among.tensors, among.replacement)


@pytest.mark.parametrize("family", ["internvl", "smolvlm", "llava_onevision", "qwen3_vl"])
def test_frames_are_chosen_within_what_was_asked_for(wrapped: Make, family: str):
    made = wrapped(family, default_video_frames=4, max_video_frames=16)
    facts = ClipFacts(tuple(index / 5 for index in range(50)), 5.0)
    for asked in range(1, 9):
        assert 1 <= len(made.choose_frames(facts, FrameOptions(num_frames=asked))) <= asked
    assert 1 <= len(made.choose_frames(facts, FrameOptions(fps=1.0))) <= 10
    assert 1 <= len(made.choose_frames(facts, FrameOptions())) <= 16


def test_a_checkpoint_that_says_how_many_and_how_often_is_sampled_by_both(wrapped: Make):
    made = wrapped("smolvlm")
    for seconds, shown in ((3, 3), (6, 6), (20, 8)):
        facts = ClipFacts(tuple(index / 5 for index in range(5 * seconds)), 5.0)
        assert len(made.choose_frames(facts, FrameOptions())) == shown
