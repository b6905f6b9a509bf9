"""A file opened by PyAV within limits, and measured without decoding its pictures. Lives in the decoder process.

Only the demuxer that the first bytes called for is tried, only decoders of the allow-list are opened, nothing else is
ever opened for the file, and of its streams only the first of pictures is read; cover art is none.
"""

from __future__ import annotations

import io
import math
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import av
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.stream import Discard, Disposition
from av.video.stream import VideoStream

from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.video.protocol import RATE_UNLESS_KNOWN, ClipLimits, ClipRefused

DECODERS = (
    "h264",
    "hevc",
    "libdav1d",
    "vp8",
    "vp9",
    "mpeg4",
    "h263",
    "mpeg1video",
    "mpeg2video",
    "mjpeg",
    "msmpeg4v2",
    "msmpeg4v3",
)
DECODERS_IN_WORDS = "H.264, HEVC, AV1, VP8, VP9, MPEG-1, MPEG-2, MPEG-4 and Motion JPEG"
DAMAGED = "it cannot be decoded: the file is damaged or cut short; encode it again"

_NO_PICTURES_TO_SHOW = Disposition.attached_pic | Disposition.timed_thumbnails
_READ_SIZE = 1 << 18
_MOST_STREAMS = 64
_CODED_SIDE_PADDING = 128
"""Codecs work in blocks: the frame that a decoder allocates is larger than the one that is shown, by at most this on
each side."""


@dataclass(frozen=True, slots=True)
class ClipMeasures:
    """What demuxing tells. `times` are seconds from the first frame, ascending; `fps` is the file's average rate.

    `stamps` are the times in the file's own unit, in the same order, and `key_frames` the indices of those that can be
    decoded without any frame before them. Both are empty where the file does not give every frame a time of its own.
    """

    width: int
    height: int
    codec: str
    declared_frames: int
    times: tuple[float, ...]
    fps: float
    stamps: tuple[int, ...] = ()
    key_frames: tuple[int, ...] = ()

    @property
    def stamps_are_certain(self) -> bool:
        """Whether a frame can be told by its stamp."""
        return len(self.stamps) > 0

    def key_frame_before(self, index: int) -> int:
        """The last key frame at or before a frame; 0 where there is none."""
        place = bisect_right(self.key_frames, index)
        return self.key_frames[place - 1] if place else 0


@contextmanager
def open_clip(file: io.FileIO, demuxer: str, limits: ClipLimits) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The container, and its first stream of pictures with a decoder that is set up but not opened.

    Raises ClipRefused.
    """
    file.seek(0)
    try:
        container = av.open(
            file,
            "r",
            format=demuxer,
            options={
                "codec_whitelist": ",".join(DECODERS),
                "format_whitelist": "mov,matroska,avi",
                "max_streams": str(_MOST_STREAMS),
                **_decoder_options(limits),
            },
            metadata_errors="replace",
            buffer_size=_READ_SIZE,
            io_open=_open_nothing,
        )
    except Exception:  # demuxers fail in every way there is, MemoryError among them
        raise ClipRefused(Reason.VIDEO_UNREADABLE, DAMAGED) from None
    with container:
        stream = _first_stream_of_pictures(container)
        refuse_frame_size(stream.codec_context.width, stream.codec_context.height, limits)
        for other in container.streams:
            if other.index != stream.index:
                other.discard = Discard.all
        # One thread per clip: the server already decodes several clips at once.
        stream.codec_context.thread_count = 1
        stream.codec_context.options = _decoder_options(limits)
        yield container, stream


def measure(container: InputContainer, stream: VideoStream, limits: ClipLimits) -> ClipMeasures:
    """Count and date the frames by reading packets. Raises ClipRefused."""
    context = stream.codec_context
    stamps: list[int | None] = []
    keys: set[int | None] = set()
    try:
        for packet in _packets_with_frames(container, stream):
            stamps.append(packet.dts if packet.pts is None else packet.pts)
            if packet.is_keyframe:
                keys.add(packet.pts)
            if len(stamps) > limits.frames:
                raise ClipRefused(
                    Reason.VIDEO_TOO_LARGE, f"it has over {limits.frames} frames, more are not read; cut it"
                )
    except FFmpegError:
        raise ClipRefused(Reason.VIDEO_UNREADABLE, DAMAGED) from None
    rate = average_rate(stream)
    times = times_from_first(stamps, float(stream.time_base or 0), rate)
    _refuse_length(times, limits)
    certain = tuple(sorted({stamp for stamp in stamps if stamp is not None}))
    if len(certain) < len(stamps) or None in keys:
        certain = ()
    return ClipMeasures(
        width=context.width,
        height=context.height,
        codec=context.name,
        declared_frames=stream.frames,
        times=times,
        fps=rate or _rate_of(times),
        stamps=certain,
        key_frames=tuple(index for index, stamp in enumerate(certain) if stamp in keys),
    )


def _packets_with_frames(container: InputContainer, stream: VideoStream) -> Iterator[Packet[VideoStream]]:
    """Packets that are to be shown: not those that only end the stream, nor those that an edit list leaves out."""
    for packet in container.demux(stream):
        if packet.is_corrupt:
            raise ClipRefused(Reason.VIDEO_UNREADABLE, DAMAGED)
        if packet.size and not packet.is_discard:
            yield packet


def times_from_first(stamps: list[int | None], unit: float, rate: float | None) -> tuple[float, ...]:
    """Seconds from the first frame, ascending. Where a stamp is missing, none is believed: frames are evenly spaced."""
    known = sorted(stamp for stamp in stamps if stamp is not None)
    if len(known) < len(stamps) or not 0 < unit < math.inf:
        return tuple(index / (rate or RATE_UNLESS_KNOWN) for index in range(len(stamps)))
    return tuple((stamp - known[0]) * unit for stamp in known)


def average_rate(stream: VideoStream) -> float | None:
    """Frames per second that the file says it has on average; None where it says nothing of use."""
    for rate in (stream.average_rate, stream.guessed_rate):
        if rate is not None and rate.denominator and 0 < float(rate) < math.inf:
            return float(rate)
    return None


def refuse_frame_size(width: int, height: int, limits: ClipLimits) -> None:
    """Raise ClipRefused for a frame outside the limits; frames of one stream need not be of one size."""
    size = f"{width} x {height} pixels"
    if width < 1 or height < 1:
        raise ClipRefused(Reason.VIDEO_UNREADABLE, f"its header says {size}; encode it again")
    if max(width, height) > limits.side:
        allowed = f"a side may have {limits.side}"
    elif width * height > limits.pixels:
        allowed = f"{limits.pixels} pixels in all are allowed"
    else:
        return
    raise ClipRefused(Reason.VIDEO_TOO_LARGE, f"its frames have {size}, {allowed}; scale it down")


def _rate_of(times: tuple[float, ...]) -> float:
    span = times[-1] if times else 0.0
    return (len(times) - 1) / span if span > 0 else RATE_UNLESS_KNOWN


def _decoder_options(limits: ClipLimits) -> dict[str, str]:
    side = math.isqrt(limits.pixels)
    padding = _CODED_SIDE_PADDING * (2 * max(side, limits.side) + _CODED_SIDE_PADDING)
    return {"max_pixels": str(min(limits.pixels + padding, 2**31 - 1)), "threads": "1"}


def _open_nothing(url: str, flags: int, options: dict[str, Any]) -> NoReturn:
    raise PermissionError("a clip may not name other files")


def _first_stream_of_pictures(container: InputContainer) -> VideoStream:
    streams = [one for one in container.streams.video if not one.disposition & _NO_PICTURES_TO_SHOW]
    if not streams:
        raise ClipRefused(Reason.VIDEO_UNREADABLE, "it has no stream of pictures; send a clip that has")
    stream = streams[0]
    if stream.codec_context is None or stream.codec_context.name not in DECODERS:
        raise ClipRefused(
            Reason.VIDEO_UNREADABLE,
            f"its pictures are of a codec that is not decoded, only {DECODERS_IN_WORDS} are, or the file "
            "is damaged; encode it again",
        )
    return stream


def _refuse_length(times: tuple[float, ...], limits: ClipLimits) -> None:
    if times and times[-1] > limits.seconds:
        raise ClipRefused(
            Reason.VIDEO_TOO_LARGE, f"it lasts over {limits.seconds} seconds, longer clips are not read; cut it"
        )
