"""A clip that comes as pictures in order, and what holds for the chosen frames of every clip.

Pictures are decoded as images are, under the limits of images; frames of another size than the first chosen one are
scaled to it. Knows no files of clips.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from PIL import Image

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media import images
from fanlight_engine.inputs.media.processing import Clip, ClipFacts, MediaError
from fanlight_engine.inputs.media.video.protocol import MOST_BYTES_OF_FRAMES, RATE_UNLESS_KNOWN
from fanlight_engine.request import Frames

ChooseFrames = Callable[[ClipFacts], Sequence[int]]
"""Which frames of a clip with these facts are wanted: ascending, at least one."""

ReadFrame = Callable[[int], bytes]
"""The encoded file of the frame with this number. Raises MediaError."""


def clip_of_frames(source: Frames, choose: ChooseFrames, config: EngineConfig) -> Clip:
    """The chosen ones of frames that came as encoded bytes. Raises MediaError naming the frame."""

    def read(index: int) -> bytes:
        frame = source.frames[index]
        assert isinstance(frame, bytes), "frames are resolved before"
        return frame

    return clip_of_pictures(len(source.frames), read, source.fps, choose, config)


NameFrame = Callable[[int, MediaError], MediaError]
"""What to say of a frame that was refused."""


def _below_frames(index: int, error: MediaError) -> MediaError:
    """A frame of the request is a field of its own."""
    return MediaError(error.reason, error.description, f".frames.frames[{index}]")


def clip_of_pictures(
    count: int,
    read: ReadFrame,
    fps: float | None,
    choose: ChooseFrames,
    config: EngineConfig,
    name: NameFrame = _below_frames,
) -> Clip:
    """The chosen ones of `count` pictures, read one by one. Without `fps` their times are not known."""
    if count == 0:
        raise MediaError(Reason.VIDEO_UNREADABLE, "it has no frames; send at least one")
    rate = fps or RATE_UNLESS_KNOWN
    facts = ClipFacts(tuple(index / rate for index in range(count)), rate)
    indices = chosen_frames(choose, facts)
    frames: list[np.ndarray] = []
    for index in indices:
        data = read(index)
        try:
            frame = np.array(images.decode(data, config))
        except MediaError as error:
            raise name(index, error) from None
        if not frames:
            refuse_many_bytes(len(indices), (frame.shape[1], frame.shape[0]))
        frames.append(of_first_size(frame, frames[0]) if frames else frame)
    return Clip(frames, indices, facts, times_are_known=fps is not None)


def chosen_frames(choose: ChooseFrames, facts: ClipFacts) -> tuple[int, ...]:
    """What `choose` says, which must be frames of the clip, ascending."""
    indices = tuple(choose(facts))
    assert indices, "at least one frame is shown"
    assert all(one < other for one, other in pairwise(indices)), "indices ascend"
    assert indices[0] >= 0
    assert indices[-1] < facts.frame_count
    return indices


def refuse_many_bytes(frames: int, size: tuple[int, int]) -> None:
    """Raise MediaError where so many frames of this (width, height) would take too much memory."""
    width, height = size
    if frames * width * height * 3 > MOST_BYTES_OF_FRAMES:
        raise MediaError(
            Reason.VIDEO_TOO_LARGE,
            f"{frames} frames of {width} x {height} pixels take over {MOST_BYTES_OF_FRAMES >> 20} MiB; ask for fewer "
            "frames, or scale the clip down",
        )


def of_first_size(frame: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The frame, scaled to the size of the first one where it has another."""
    if frame.shape == first.shape:
        return frame
    height, width = first.shape[:2]
    return np.array(Image.fromarray(frame).resize((width, height), Image.Resampling.BICUBIC))
