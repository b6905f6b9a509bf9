"""Chosen frames of an opened file, in order of presentation. Lives in the decoder process.

Two ways to the same frames: decode from the beginning and count, which is what every reader does; or, for frames that
are far into a long clip, jump to the last key frame before each. A jump that does not lead where the file's own packets
said it would is given up, and the rest is counted.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Sequence

from av.error import FFmpegError
from av.video.frame import VideoFrame

from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.video.container import (
    DAMAGED,
    ClipMeasures,
    average_rate,
    open_clip,
    refuse_frame_size,
    times_from_first,
)
from fanlight_engine.inputs.media.video.protocol import ClipLimits, ClipRefused

FRAMES_WORTH_JUMPING = 600
"""Clips whose last wanted frame comes before this are decoded from the beginning, some seconds of film."""


class FramesRunOutError(Exception):
    """The file ended before the last wanted frame; carries the times of the frames that it has."""

    def __init__(self, times: tuple[float, ...]) -> None:
        super().__init__(f"{len(times)} frames")
        self.times = times


class ClipReader:
    """Reads one file as often as asked; every call opens it anew."""

    def __init__(self, file: io.FileIO, demuxer: str, limits: ClipLimits, measures: ClipMeasures) -> None:
        self._file = file
        self._demuxer = demuxer
        self._limits = limits
        self._measures = measures

    def frames(self, indices: Sequence[int]) -> Iterator[tuple[int, VideoFrame]]:
        """The frames with these numbers, which ascend. Raises ClipRefused, or FramesRunOutError."""
        give_up_at = time.monotonic() + self._limits.decode_seconds
        found = 0
        if indices[-1] >= FRAMES_WORTH_JUMPING and self._measures.stamps_are_certain:
            for frame in self._by_jumping(indices, give_up_at):
                yield indices[found], frame
                found += 1
        if found < len(indices):
            yield from self._by_counting(indices[found:], give_up_at)

    def _by_counting(self, indices: Sequence[int], give_up_at: float) -> Iterator[tuple[int, VideoFrame]]:
        wanted, last = frozenset(indices), indices[-1]
        stamps: list[int | None] = []
        with open_clip(self._file, self._demuxer, self._limits) as (container, stream):
            unit, rate = float(stream.time_base or 0), average_rate(stream)
            try:
                for frame in container.decode(stream):
                    self._check(frame, give_up_at)
                    if len(stamps) in wanted:
                        yield len(stamps), frame
                    if len(stamps) == last:
                        return
                    stamps.append(frame.pts)
            except (FFmpegError, MemoryError):
                raise ClipRefused(Reason.VIDEO_UNREADABLE, DAMAGED) from None
        raise FramesRunOutError(times_from_first(stamps, unit, rate))

    def _by_jumping(self, indices: Sequence[int], give_up_at: float) -> Iterator[VideoFrame]:
        """The frames up to the first that is not where it should be, or to the end."""
        stamps = self._measures.stamps
        last_decoded = -1
        with open_clip(self._file, self._demuxer, self._limits) as (container, stream):
            frames = container.decode(stream)
            for index in indices:
                key = self._measures.key_frame_before(index)
                try:
                    if key > last_decoded + 1:
                        container.seek(stamps[key], stream=stream)
                        frames = container.decode(stream)
                    found = self._decode_until(stamps[index], frames, give_up_at)
                except (FFmpegError, MemoryError):
                    return
                if found is None:
                    return
                yield found
                last_decoded = index

    def _decode_until(self, stamp: int, frames: Iterator[VideoFrame], give_up_at: float) -> VideoFrame | None:
        for frame in frames:
            self._check(frame, give_up_at)
            if frame.pts is None or frame.pts > stamp:
                return None
            if frame.pts == stamp:
                return frame
        return None

    def _check(self, frame: VideoFrame, give_up_at: float) -> None:
        if time.monotonic() > give_up_at:
            raise ClipRefused(
                Reason.VIDEO_TOO_LARGE,
                f"decoding its frames takes longer than {self._limits.decode_seconds} seconds; send a shorter or "
                "smaller clip, or set an earlier end",
            )
        refuse_frame_size(frame.width, frame.height, self._limits)
