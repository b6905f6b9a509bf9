"""Frames are spread as the reference spreads them, inside the window that was asked for; bad options are refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.processing import ClipFacts, MediaError
from fanlight_engine.inputs.media.video.sampling import (
    clip_seconds,
    default_frames,
    spread_evenly,
    validate_sampling,
    validate_sampling_of_frames,
    window_of,
)
from fanlight_engine.request import FrameOptions, Frames

CONFIG = EngineConfig()


def facts(frames: int, fps: float = 10.0) -> ClipFacts:
    return ClipFacts(tuple(index / fps for index in range(frames)), fps)


@pytest.mark.parametrize(
    ("count", "wanted", "indices"),
    [
        (100, 8, [0, 14, 28, 42, 57, 71, 85, 99]),
        (10, 3, [0, 4, 9]),
        (1, 8, [0]),
        (3, 2, [0, 2]),
        (50, 2, [0, 49]),
        (100, 6, [0, 20, 40, 59, 79, 99]),
        (5, 5, [0, 1, 2, 3, 4]),
        (7, 1, [0]),
    ],
)
def test_frames_are_spread_as_the_reference_spreads_them(count: int, wanted: int, indices: list[int]):
    assert spread_evenly(count, wanted) == indices


@given(st.integers(1, 5000), st.integers(1, 300))
def test_spread_frames_ascend_from_the_first_to_the_last_and_are_never_more_than_asked(count: int, wanted: int):
    indices = spread_evenly(count, wanted)
    assert len(indices) == min(count, wanted)
    assert indices == sorted(set(indices))
    assert indices[0] == 0
    assert indices[-1] == (count - 1 if len(indices) > 1 else 0)


@pytest.mark.parametrize(
    ("options", "window"),
    [
        (FrameOptions(), range(20)),
        (FrameOptions(start=0.5), range(5, 20)),
        (FrameOptions(end=0.5), range(6)),
        (FrameOptions(start=0.5, end=1.0), range(5, 11)),
        (FrameOptions(start=0.51, end=0.59), range(5, 6)),
        (FrameOptions(start=1.95), range(19, 20)),
        (FrameOptions(end=1000), range(20)),
        (FrameOptions(start=0.30000001192092896), range(3, 20)),
        (FrameOptions(end=0.30000001192092896), range(4)),
    ],
)
def test_the_window_holds_the_frames_from_start_to_end(options: FrameOptions, window: range):
    assert window_of(facts(20), options) == window


def test_a_time_of_the_middle_of_a_long_clip_survives_the_32_bits_of_a_request():
    clip = ClipFacts(tuple(index / 29.97 for index in range(100_000)), 29.97)
    wanted = clip.frame_times[77_777]
    as_sent = float.fromhex(f"{wanted.hex()}") + wanted * 2.0**-25
    assert window_of(clip, FrameOptions(start=as_sent)).start == 77_777


def test_a_start_beyond_the_end_says_where_the_clip_ends():
    with pytest.raises(MediaError, match=r"start is 2\.5 seconds, the clip ends at 2;") as caught:
        window_of(facts(20), FrameOptions(start=2.5))
    assert caught.value.reason is Reason.VIDEO_OPTION_INVALID


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.floats(0, 100), st.floats(0, 100))
def test_a_window_is_never_empty_and_leaves_nothing_out(times: list[float], start: float, length: float):
    clip = ClipFacts(tuple(sorted(times)), 10.0)
    options = FrameOptions(start=start, end=start + length)
    if start > clip_seconds(clip) + 1e-3:
        with pytest.raises(MediaError):
            window_of(clip, options)
        return
    if start > clip_seconds(clip) - 1e-3:
        return
    window = window_of(clip, options)
    assert len(window) >= 1
    assert 0 <= window.start < window.stop <= len(times)
    sure = [i for i, time in enumerate(clip.frame_times) if start <= time <= start + length]
    assert set(sure) <= set(window)


def test_one_frame_lasts_as_long_as_its_rate_says():
    assert clip_seconds(facts(1, fps=4)) == 0.25
    assert clip_seconds(facts(20)) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (FrameOptions(num_frames=4, fps=2.0), "exclude each other"),
        (FrameOptions(num_frames=0), "num_frames is 0, the range is 1 to 128"),
        (FrameOptions(num_frames=129), "num_frames is 129, the range is 1 to 128"),
        (FrameOptions(fps=0.0), "fps is 0, it must be above 0"),
        (FrameOptions(fps=-1.0), "fps is -1"),
        (FrameOptions(fps=math.inf), "fps is inf"),
        (FrameOptions(fps=math.nan), "fps is nan"),
        (FrameOptions(start=-0.1), "start is -0.1 seconds"),
        (FrameOptions(start=math.nan), "start is nan"),
        (FrameOptions(end=math.inf), "end is inf"),
        (FrameOptions(end=0.0), "end is 0 seconds, it must be above start"),
        (FrameOptions(start=3.0, end=3.0), "end is 3 seconds, it must be above start (3)"),
    ],
)
def test_options_that_no_clip_could_satisfy_are_refused(options: FrameOptions, text: str):
    with pytest.raises(MediaError) as caught:
        validate_sampling(options, CONFIG)
    assert text in caught.value.description
    assert caught.value.reason is Reason.VIDEO_OPTION_INVALID


@pytest.mark.parametrize(
    "options", [FrameOptions(), FrameOptions(num_frames=128), FrameOptions(fps=0.01, start=0.0, end=0.5)]
)
def test_options_in_range_pass(options: FrameOptions):
    validate_sampling(options, CONFIG)


@pytest.mark.parametrize(
    ("name", "options"),
    [("fps", FrameOptions(fps=1.0)), ("start", FrameOptions(start=1.0)), ("end", FrameOptions(end=1.0))],
)
def test_seconds_mean_nothing_for_frames_without_a_rate(name: str, options: FrameOptions):
    validate_sampling_of_frames(Frames((b"",), fps=2.0), options)
    validate_sampling_of_frames(Frames((b"",)), FrameOptions(num_frames=1))
    with pytest.raises(MediaError, match=f"{name} needs frames with a rate") as caught:
        validate_sampling_of_frames(Frames((b"",)), options)
    assert caught.value.reason is Reason.VIDEO_OPTION_INVALID


def test_without_a_rule_all_frames_are_shown_up_to_a_limit_then_they_are_spread():
    assert default_frames(facts(32), FrameOptions(), CONFIG) == tuple(range(32))
    assert default_frames(facts(100), FrameOptions(), CONFIG) == tuple(spread_evenly(100, 32))
    assert default_frames(facts(100), FrameOptions(num_frames=3), CONFIG) == (0, 50, 99)
    assert default_frames(facts(2), FrameOptions(num_frames=3), CONFIG) == (0, 1)


def test_a_rate_takes_the_frame_nearest_to_each_tick():
    assert default_frames(facts(20), FrameOptions(fps=2.0), CONFIG) == (0, 5, 10, 15)
    uneven = ClipFacts((0.0, 0.1, 0.9, 1.0, 2.2, 3.0), 2.0)
    assert default_frames(uneven, FrameOptions(fps=1.0), CONFIG) == (0, 3, 4, 5)
    assert default_frames(facts(20), FrameOptions(fps=1000.0), CONFIG) == tuple(range(20))


def test_a_rate_that_gives_too_many_frames_is_refused_with_their_number():
    with pytest.raises(MediaError, match="is 1000 frames of this clip, at most 128 are shown") as caught:
        default_frames(facts(1000), FrameOptions(fps=10.0), CONFIG)
    assert caught.value.reason is Reason.VIDEO_OPTION_INVALID
