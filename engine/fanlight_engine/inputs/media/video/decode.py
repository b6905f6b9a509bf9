"""A clip's facts and its chosen frames, from its encoded bytes, by a decoder process of its own.

    bytes -> process: facts -> the caller chooses -> process: frames, upright, RGB

Functions may be called from several threads: each call has its own process. Texts of refusals never quote FFmpeg.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import IO, Any

import numpy as np

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import Reason
from fanlight_engine.inputs.channel import Channel
from fanlight_engine.inputs.confinement import start_confined
from fanlight_engine.inputs.media.abandonment import Abandonment
from fanlight_engine.inputs.media.processing import Clip, ClipFacts, MediaError
from fanlight_engine.inputs.media.video.formats import ClipFormat, clip_format
from fanlight_engine.inputs.media.video.frames import ChooseFrames, chosen_frames, of_first_size, refuse_many_bytes
from fanlight_engine.inputs.media.video.protocol import MOST_BYTES_OF_FRAMES, ClipLimits

VIDEO_DECODE_VERSION = 1
"""Part of every digest: raise it when the same bytes would give other frames than before."""

_PROCESS = "fanlight_engine.inputs.media.video.decoder_process"
_SECONDS_TO_START = 60
_DAMAGED = "it cannot be decoded as {name}: the file is damaged or cut short; encode it again"


@dataclass(frozen=True, slots=True)
class FileFacts(ClipFacts):
    """ClipFacts, and what else a file's headers tell. `size` is (width, height) before frames are turned upright.

    `declared_frames` is what the file says it has, 0 where it does not; `frame_times` are those it has.
    """

    size: tuple[int, int]
    codec: str
    content_type: str
    declared_frames: int


def inspect_clip(data: bytes, config: EngineConfig) -> FileFacts:
    """Facts of a clip, judged against the limits, without decoding its frames. Raises MediaError."""
    kind = clip_format(data)
    with _decoder(data, kind, config) as channel:
        return _facts_from(channel, kind)


def decode_clip(
    data: bytes, choose: ChooseFrames, config: EngineConfig, abandonment: Abandonment | None = None
) -> Clip:
    """The frames that `choose` wants, each [height, width, 3] uint8, upright, of the size of the first of them.

    Where decoding shows that the file has fewer frames than its packets promised, `choose` is asked once more, with
    what was seen. Raises MediaError; memory is bounded by MOST_BYTES_OF_FRAMES. Abandoned, it ends at once and
    raises something.
    """
    kind = clip_format(data)
    with _decoder(data, kind, config, abandonment) as channel:
        promised = _facts_from(channel, kind)
        facts: ClipFacts = promised
        for _ in range(2):
            indices = chosen_frames(choose, facts)
            refuse_many_bytes(len(indices), promised.size)
            channel.send("indices", indices=indices)
            frames, seen = _frames_from(channel, len(indices), config)
            if seen is None:
                return Clip(frames, indices, facts)
            if not seen:
                break
            facts = ClipFacts(seen, facts.fps)
    raise MediaError(Reason.VIDEO_UNREADABLE, _DAMAGED.format(name=kind.name))


@contextmanager
def _decoder(
    data: bytes, kind: ClipFormat, config: EngineConfig, abandonment: Abandonment | None = None
) -> Iterator[Channel]:
    """A process that has opened the clip. Whatever becomes of it is a MediaError; it ends with the block, or sooner
    when the work is abandoned."""
    seconds = config.video_decode_seconds
    limits = ClipLimits(
        config.max_video_file_frames, config.max_video_seconds, config.max_video_pixels, config.max_image_side, seconds
    )
    if len(data) > config.max_video_bytes:
        raise MediaError(
            Reason.VIDEO_TOO_LARGE,
            f"got {len(data)} encoded bytes, at most {config.max_video_bytes} are allowed; scale it down or cut it",
        )
    ours, theirs = socket.socketpair()
    with ours, theirs, _unnamed_file(data) as file:
        process = _start(file.fileno(), theirs.fileno(), kind, limits)
        theirs.close()
        try:
            with (abandonment or Abandonment()).ending_with(process.kill):
                _wait_until_ready(ours)
                yield Channel(ours, time.monotonic() + 2 * seconds)
        except TimeoutError:
            raise MediaError(
                Reason.VIDEO_TOO_LARGE,
                f"reading it takes longer than {seconds} seconds; send a shorter or smaller clip",
            ) from None
        except (EOFError, ConnectionError, json.JSONDecodeError):
            # The process ran out of memory in a place that cannot tell, or crashed: the file is to blame.
            raise MediaError(Reason.VIDEO_UNREADABLE, _DAMAGED.format(name=kind.name)) from None
        finally:
            process.kill()
            process.wait()


def _start(file: int, end: int, kind: ClipFormat, limits: ClipLimits) -> subprocess.Popen[bytes]:
    return start_confined(_PROCESS, [str(file), str(end), kind.demuxer, json.dumps(asdict(limits))], (file, end))


def _wait_until_ready(ours: socket.socket) -> None:
    """Until the process has begun, before it has read a byte of the file. Raises RuntimeError: no file is to blame."""
    try:
        Channel(ours, time.monotonic() + _SECONDS_TO_START).receive()
    except (EOFError, OSError) as error:
        raise RuntimeError("the process that decodes clips did not start") from error


@contextmanager
def _unnamed_file(data: bytes) -> Iterator[IO[bytes]]:
    """The bytes as a file without a name, in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        opened: IO[bytes] = os.fdopen(os.memfd_create("clip"), "w+b", buffering=0)
    else:
        opened = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115, closed by the next line
    with opened as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        yield file


def _facts_from(channel: Channel, kind: ClipFormat) -> FileFacts:
    message = _next_message(channel)
    return FileFacts(
        frame_times=tuple(message["times"]),
        fps=message["fps"],
        size=(message["width"], message["height"]),
        codec=message["codec"],
        content_type=kind.content_type,
        declared_frames=message["declared_frames"],
    )


def _next_message(channel: Channel) -> dict[str, Any]:
    message = channel.receive()
    if message["kind"] == "refused":
        raise MediaError(Reason(message["reason"]), message["description"])
    return message


def _frames_from(
    channel: Channel, wanted: int, config: EngineConfig
) -> tuple[list[np.ndarray], tuple[float, ...] | None]:
    """The frames, and None; or what came of them, and the times of all frames where the file has too few."""
    frames: list[np.ndarray] = []
    while True:
        message = _next_message(channel)
        if message["kind"] == "ended_early":
            return frames, tuple(message["times"])
        if message["kind"] == "end":
            assert len(frames) == wanted
            return frames, None
        width, height = message["width"], message["height"]
        if len(frames) * width * height * 3 > MOST_BYTES_OF_FRAMES or width * height > config.max_video_pixels:
            raise EOFError
        pixels = np.empty((height, width, 3), np.uint8)
        channel.receive_into(pixels.data.cast("B"))
        frame = _upright(pixels, *message["turn"])
        frames.append(of_first_size(frame, frames[0]) if frames else frame)


def _upright(frame: np.ndarray, swap: bool, mirror: bool, flip: bool) -> np.ndarray:
    turned = frame.swapaxes(0, 1) if swap else frame
    turned = turned[:, ::-1] if mirror else turned
    turned = turned[::-1] if flip else turned
    return np.ascontiguousarray(turned)
