"""Which frames of a clip are shown: the window of the request, and frames spread evenly over what is in it.

A media processor has its own rule of how many and which; this knows what is common to all of them. Knows no files.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import NoReturn

import numpy as np

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.processing import ClipFacts, MediaError
from fanlight_engine.request import FrameOptions, Frames

_TIME_TOLERANCE = 1e-6
_REQUEST_PRECISION = 2.0**-23
"""Frames may miss the window by so many seconds, and by this part of the time: files count in units of their own, and
requests carry 32-bit numbers."""


def validate_sampling(sampling: FrameOptions, config: EngineConfig) -> None:
    """Refuse options that no clip could satisfy. Raises MediaError (VIDEO_OPTION_INVALID)."""
    if sampling.num_frames is not None and sampling.fps is not None:
        _refuse(".fps", "fps and num_frames exclude each other; set one of them")
    if sampling.num_frames is not None and not 1 <= sampling.num_frames <= config.max_video_frames:
        _refuse(".num_frames", f"num_frames is {sampling.num_frames}, the range is 1 to {config.max_video_frames}")
    if sampling.fps is not None and not 0 < sampling.fps < math.inf:
        _refuse(".fps", f"fps is {sampling.fps:g}, it must be above 0 and finite")
    for name, value in (("start", sampling.start), ("end", sampling.end)):
        if value is not None and not 0 <= value < math.inf:
            _refuse(f".{name}", f"{name} is {value:g} seconds, it must be 0 or above and finite")
    if sampling.end is not None and sampling.end <= (sampling.start or 0.0):
        _refuse(".end", f"end is {sampling.end:g} seconds, it must be above start ({sampling.start or 0.0:g})")


def validate_sampling_of_frames(source: Frames, sampling: FrameOptions) -> None:
    """Refuse options that count in seconds for pictures without a rate. Raises MediaError (VIDEO_OPTION_INVALID)."""
    if source.fps is not None:
        return
    for name in ("fps", "start", "end"):
        if getattr(sampling, name) is not None:
            _refuse(f".{name}", f"{name} needs frames with a rate; set frames.fps, or leave {name} out")


def window_of(facts: ClipFacts, sampling: FrameOptions) -> range:
    """Indices of the frames from `start` to `end`, both included.

    Never empty: where no frame begins in the window, it holds the one that is on screen at `start`. Raises MediaError
    (VIDEO_OPTION_INVALID) for a start beyond the end of the clip.
    """
    times = facts.frame_times
    assert times, "a clip without frames is refused before"
    start = sampling.start or 0.0
    if start > clip_seconds(facts) + _tolerance(start):
        _refuse(".start", f"start is {start:g} seconds, the clip ends at {round(clip_seconds(facts), 3):g}; lower it")
    first = bisect_left(times, start - _tolerance(start))
    stop = len(times) if sampling.end is None else bisect_right(times, sampling.end + _tolerance(sampling.end))
    if first < stop:
        return range(first, stop)
    on_screen = max(first - 1, 0)
    return range(on_screen, on_screen + 1)


def clip_seconds(facts: ClipFacts) -> float:
    """When the last frame leaves the screen: its time, and as long as frames stay on average."""
    times = facts.frame_times
    if len(times) > 1 and times[-1] > 0:
        return times[-1] * len(times) / (len(times) - 1)
    return 1 / facts.fps if facts.fps > 0 else 0.0


def spread_evenly(count: int, wanted: int) -> list[int]:
    """`min(count, wanted)` indices from 0 to count - 1, the first and the last among them; halves round to even."""
    assert count >= 1
    assert wanted >= 1
    return np.rint(np.linspace(0, count - 1, min(count, wanted))).astype(int).tolist()


def default_frames(facts: ClipFacts, sampling: FrameOptions, config: EngineConfig) -> tuple[int, ...]:
    """The rule of checkpoints without one of their own: what was asked for, else all frames up to a limit, spread.

    Raises MediaError (VIDEO_OPTION_INVALID) where `fps` gives more frames than are shown of one clip.
    """
    count = facts.frame_count
    if sampling.fps is not None:
        return _frames_at_rate(facts, sampling.fps, config)
    wanted = config.default_video_frames if sampling.num_frames is None else sampling.num_frames
    return tuple(spread_evenly(count, wanted))


def _frames_at_rate(facts: ClipFacts, fps: float, config: EngineConfig) -> tuple[int, ...]:
    """The frame nearest to each tick of `fps` from the first frame on, none of them twice."""
    times = facts.frame_times
    ticks = min(math.floor((times[-1] - times[0]) * fps + _TIME_TOLERANCE) + 1, facts.frame_count)
    if ticks > config.max_video_frames:
        _refuse(
            ".fps",
            f"fps {fps:g} is {ticks} frames of this clip, at most {config.max_video_frames} are shown; lower fps, or "
            "set num_frames, start or end",
        )
    if ticks == facts.frame_count:
        return tuple(range(ticks))
    return tuple(sorted({_nearest(times, times[0] + tick / fps) for tick in range(ticks)}))


def _nearest(times: tuple[float, ...], time: float) -> int:
    after = min(bisect_left(times, time), len(times) - 1)
    before = max(after - 1, 0)
    return before if time - times[before] <= times[after] - time else after


def _tolerance(time: float) -> float:
    return _TIME_TOLERANCE + time * _REQUEST_PRECISION


def _refuse(below: str, description: str) -> NoReturn:
    raise MediaError(Reason.VIDEO_OPTION_INVALID, description, below)
