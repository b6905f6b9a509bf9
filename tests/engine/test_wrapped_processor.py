"""The checkpoint's own processor behind our seam: options narrow its bounds, tensors are checked, clips go through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import AutoProcessor

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import Reason
from fanlight_engine.inputs.guarded_tokenizer import GuardedTokenizer
from fanlight_engine.inputs.media.processing import Clip, ClipFacts, MediaError
from fanlight_engine.inputs.media.wrapped import WrappedProcessor
from fanlight_engine.request import Detail, FrameOptions, Modality, Patches, PatchLayout, PixelOptions, Tiles
from fanlight_engine.tensor_data import TensorData, array_of, tensor_data_of

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (120, 160, 3), np.uint8))
CELL = 28 * 28


def wrapped(checkpoint: Checkpoint, **settings: Any) -> WrappedProcessor:
    processor: Any = AutoProcessor.from_pretrained(checkpoint.path)
    return WrappedProcessor(EngineConfig(**settings), checkpoint, processor, GuardedTokenizer(processor.tokenizer))


def clip(frames: int, size: tuple[int, int] = (64, 48), fps: float = 10.0) -> Clip:
    rng = np.random.default_rng(1)
    pictures = [rng.integers(0, 256, (size[1], size[0], 3), np.uint8) for _ in range(frames)]
    facts = ClipFacts(tuple(index / fps for index in range(frames)), fps)
    return Clip(pictures, tuple(range(frames)), facts)


def refusal(call: Any) -> MediaError:
    with pytest.raises(MediaError) as caught:
        call()
    return caught.value


def test_an_untouched_picture_is_what_the_processor_makes_of_it(qwen: Checkpoint):
    made = wrapped(qwen)
    outputs: Any = AutoProcessor.from_pretrained(qwen.path)
    outputs = outputs.image_processor(images=[PICTURE], return_tensors="np")
    processed = made.process_image(PICTURE, PixelOptions())
    for name, tensor in processed.tensors.items():
        assert (array_of(tensor) == outputs[name]).all()
    t, h, w = outputs["image_grid_thw"][0]
    assert processed.decision.grid == (t, h, w)
    assert processed.decision.original_size == (160, 120)
    assert processed.decision.resized_size == (w * 14, h * 14)
    assert processed.replacement.rows == h * w // 4


@pytest.mark.parametrize(
    ("options", "most"),
    [
        (PixelOptions(max_pixels=10 * CELL), 10),
        (PixelOptions(max_tokens=7), 7),
        (PixelOptions(max_tokens=1), 1),
        (PixelOptions(detail=Detail.LOW), 6),
        (PixelOptions(max_tokens=30, detail=Detail.HIGH), 30),
        (PixelOptions(max_pixels=10**9), 64),
    ],
)
def test_options_bound_the_embeddings(qwen: Checkpoint, options: PixelOptions, most: int):
    rows = wrapped(qwen, low_detail_tokens=6).process_image(PICTURE, options).replacement.rows
    assert 1 <= rows <= most
    assert rows > most // 3 or most == 64


def test_min_pixels_scales_up(qwen: Checkpoint):
    small = Image.new("RGB", (20, 20))
    few = wrapped(qwen).process_image(small, PixelOptions()).replacement.rows
    more = wrapped(qwen).process_image(small, PixelOptions(min_pixels=30 * CELL)).replacement.rows
    assert few < 30 <= more


def test_bounds_hold_for_thin_pictures_too(qwen: Checkpoint):
    """The processor itself rounds past them."""
    made = wrapped(qwen, low_detail_tokens=6)
    thin = Image.new("RGB", (2800, 28))
    for options, most in ((PixelOptions(max_pixels=4 * CELL), 4), (PixelOptions(detail=Detail.LOW), 6)):
        assert made.process_image(thin, options).replacement.rows <= most
    size = made.process_video(clip(2, (1400, 14)), PixelOptions(max_pixels=4 * CELL)).decision.resized_size
    assert size is not None
    assert size[0] * size[1] <= 4 * CELL


def test_high_detail_takes_what_the_model_can_take(qwen: Checkpoint):
    made, small = wrapped(qwen), Image.new("RGB", (100, 80))
    by_itself = made.process_image(small, PixelOptions()).replacement.rows
    assert by_itself * 3 < made.process_image(small, PixelOptions(detail=Detail.HIGH)).replacement.rows <= 64


def test_options_only_narrow_what_the_model_does_by_itself(qwen: Checkpoint):
    made, small = wrapped(qwen), Image.new("RGB", (30, 30))
    by_itself = made.process_image(small, PixelOptions()).replacement.rows
    for options in (PixelOptions(min_pixels=1), PixelOptions(max_pixels=10**9)):
        assert made.process_image(small, options).replacement.rows == by_itself


def test_what_no_size_can_give_is_refused_with_the_numbers(qwen: Checkpoint):
    made = wrapped(qwen)
    error = refusal(lambda: made.process_image(PICTURE, PixelOptions(min_pixels=10**8)))
    assert error.reason is Reason.IMAGE_OPTION_INVALID
    assert str(64 * CELL) in error.description
    error = refusal(lambda: made.process_image(PICTURE, PixelOptions(max_pixels=5)))
    assert error.reason is Reason.IMAGE_OPTION_INVALID
    assert str(CELL) in error.description
    thin = Image.new("RGB", (100, 90))
    error = refusal(lambda: made.process_image(thin, PixelOptions(min_pixels=5 * CELL, max_pixels=5 * CELL)))
    assert (error.reason, error.below) == (Reason.IMAGE_OPTION_INVALID, ".min_pixels")


def test_an_encoder_of_one_size_refuses_bounds_but_not_wishes(llava: Checkpoint):
    made = wrapped(llava)
    rows = made.process_image(PICTURE, PixelOptions()).replacement.rows
    assert made.process_image(PICTURE, PixelOptions(detail=Detail.LOW, max_tokens=rows)).replacement.rows == rows
    for options in (PixelOptions(min_pixels=9), PixelOptions(max_pixels=9), PixelOptions(max_tokens=rows - 1)):
        error = refusal(lambda options=options: made.process_image(PICTURE, options))
        assert error.reason is Reason.IMAGE_OPTION_INVALID


def test_a_clip_is_what_the_video_processor_makes_of_it(qwen: Checkpoint):
    made, shown = wrapped(qwen), clip(5)
    processed = made.process_video(shown, PixelOptions())
    processor: Any = AutoProcessor.from_pretrained(qwen.path)
    outputs = processor.video_processor(videos=[np.stack(list(shown.frames))], return_tensors="np")
    assert set(processed.tensors) == {"pixel_values_videos", "video_grid_thw"}
    for name, tensor in processed.tensors.items():
        assert (array_of(tensor) == outputs[name]).all()
    assert processed.decision.frames == 5
    assert processed.decision.frame_times == shown.times
    assert processed.seconds_per_grid == pytest.approx(0.2)
    assert made.placeholder_id(Modality.VIDEO) == qwen.video_token_id


def test_max_tokens_of_a_clip_are_shared_by_its_steps(qwen: Checkpoint):
    shown = clip(8, (320, 240))
    rows = wrapped(qwen).process_video(shown, PixelOptions(max_tokens=24)).replacement.rows
    assert 4 <= rows <= 24
    error = refusal(lambda: wrapped(qwen).process_video(shown, PixelOptions(max_tokens=3)))
    assert error.reason is Reason.VIDEO_OPTION_INVALID


def test_frames_are_chosen_as_asked_and_never_more_than_there_are(qwen: Checkpoint):
    made = wrapped(qwen, default_video_frames=10, max_video_frames=20)
    facts = clip(50).facts
    assert made.choose_frames(facts, FrameOptions()) == tuple(np.rint(np.linspace(0, 49, 10)).astype(int))
    assert len(made.choose_frames(facts, FrameOptions(num_frames=6))) == 6
    assert len(made.choose_frames(facts, FrameOptions(fps=2.0))) == 10
    few = clip(3).facts
    assert made.choose_frames(few, FrameOptions()) == (0, 1, 2)
    assert made.choose_frames(few, FrameOptions(num_frames=12)) == (0, 1, 2)
    for asked in range(1, 9):
        assert 1 <= len(made.choose_frames(facts, FrameOptions(num_frames=asked))) <= asked
    assert len(made.choose_frames(clip(15).facts, FrameOptions(fps=0.1))) == 1
    error = refusal(lambda: made.choose_frames(facts, FrameOptions(fps=10.0)))
    assert error.reason is Reason.VIDEO_OPTION_INVALID
    assert "at most 20" in error.description


def test_the_checkpoints_own_sampling_is_used_where_it_samples(qwen: Checkpoint):
    made = wrapped(qwen)
    video_processor = made._processor.video_processor
    video_processor.do_sample_frames, video_processor.fps, video_processor.min_frames = True, 2, 4
    assert len(made.choose_frames(clip(100).facts, FrameOptions())) == 20


def test_the_processors_own_pixels_come_back_unchanged_as_patches(qwen: Checkpoint):
    made = wrapped(qwen)
    processed = made.process_image(PICTURE, PixelOptions())
    assert processed.decision.grid is not None
    patches = Patches(processed.tensors["pixel_values"], processed.decision.grid)
    again = made.process_tensors(patches, Modality.IMAGE)
    assert again.tensors == processed.tensors
    assert again.replacement == processed.replacement


def test_patches_in_row_order_are_put_into_the_towers_order(qwen: Checkpoint):
    made = wrapped(qwen)
    processed = made.process_image(PICTURE, PixelOptions())
    assert processed.decision.grid is not None
    _, h, w = processed.decision.grid
    tower = array_of(processed.tensors["pixel_values"]).reshape(h // 2, w // 2, 2, 2, 3, 2, 14, 14)
    rows = tower[:, :, :, :, :, 0].transpose(0, 2, 1, 3, 4, 5, 6).reshape(h * w, 3 * 14 * 14)
    patches = Patches(tensor_data_of(rows), (1, h, w), PatchLayout.ROW_MAJOR)
    assert made.process_tensors(patches, Modality.IMAGE).tensors == processed.tensors


@pytest.mark.parametrize("frames", [2, 4])
def test_clips_come_as_patches_in_row_order_with_all_frames_or_one_per_step(qwen: Checkpoint, frames: int):
    """Two steps in time of two frames each; one frame for a step stands for both."""
    made, (t, h, w) = wrapped(qwen), (2, 4, 6)
    rows = np.random.default_rng(3).standard_normal((frames * h * w, 3 * 14 * 14)).astype(np.float32)
    patches = Patches(tensor_data_of(rows), (t, h, w), PatchLayout.ROW_MAJOR)
    processed = made.process_tensors(patches, Modality.VIDEO)
    tower = array_of(processed.tensors["pixel_values_videos"]).reshape(t, h // 2, w // 2, 2, 2, 3, 2, 14, 14)
    assert (processed.replacement.rows, processed.decision.grid) == (t * h * w // 4, (t, h, w))
    in_order = tower.transpose(0, 6, 1, 3, 2, 4, 5, 7, 8).reshape(t, 2, h * w, 3 * 14 * 14)
    given = rows.reshape(t, frames // t, h * w, 3 * 14 * 14)
    assert (in_order == np.broadcast_to(given, in_order.shape)).all()


def test_tiles_are_what_a_tower_of_one_size_takes(llava: Checkpoint):
    made = wrapped(llava)
    processed = made.process_image(PICTURE, PixelOptions())
    again = made.process_tensors(Tiles(processed.tensors["pixel_values"]), Modality.IMAGE)
    assert (again.tensors, again.replacement) == (processed.tensors, processed.replacement)


def floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


NAN = floats(16, 1176)
NAN[3, 4] = np.nan
BAD_PATCHES = [
    (Patches(tensor_data_of(floats(16, 1176)), (1, 4, 5)), "multiples of 2"),
    (Patches(tensor_data_of(floats(16, 1176)), (1, 0, 4)), "0 x 4"),
    (Patches(tensor_data_of(floats(16, 1176)), (2, 4, 2)), "t is 1 for an image"),
    (Patches(tensor_data_of(floats(16, 1176)), (1, 4, 6)), "[24, 1176] is needed"),
    (Patches(tensor_data_of(floats(16, 1175)), (1, 4, 4)), "[16, 1176] is needed"),
    (Patches(tensor_data_of(floats(16, 1176)), (1, 1 << 20, 1 << 20)), "at most 256 patches"),
    (Patches(TensorData("float32", (16, 1176), bytes(7)), (1, 4, 4)), "has 7 bytes"),
    (Patches(TensorData("float32", (1 << 31, 1 << 31, 1 << 31), b""), (1, 4, 4)), "has 0 bytes"),
    (Patches(TensorData("float32", (), b""), (1, 4, 4)), "1 to 8 dimensions"),
    (Patches(TensorData("int64", (2, 2), bytes(32)), (1, 4, 4)), "type int64"),
    (Patches(tensor_data_of(NAN), (1, 4, 4)), "not finite"),
    (Tiles(tensor_data_of(floats(1, 3, 56, 56))), "send patches, not tiles"),
]


@pytest.mark.parametrize(("pixels", "words"), BAD_PATCHES)
def test_tensors_that_do_not_fit_are_refused_in_words(qwen: Checkpoint, pixels: Patches | Tiles, words: str):
    error = refusal(lambda: wrapped(qwen).process_tensors(pixels, Modality.IMAGE))
    assert error.reason is Reason.TENSOR_INVALID
    assert words in error.description


def test_half_precision_is_widened_exactly(llava: Checkpoint):
    made = wrapped(llava)
    halves = np.random.default_rng(2).standard_normal((1, 3, 56, 56)).astype(np.float16)
    processed = made.process_tensors(Tiles(tensor_data_of(halves)), Modality.IMAGE)
    assert (array_of(processed.tensors["pixel_values"]) == halves.astype(np.float32)).all()
    upper = halves.astype(np.float32).view(np.uint32) >> 16
    brain = TensorData("bfloat16", halves.shape, upper.astype("<u2").tobytes())
    widened = array_of(made.process_tensors(Tiles(brain), Modality.IMAGE).tensors["pixel_values"])
    assert (widened == (upper.astype(np.uint32) << 16).view(np.float32)).all()
