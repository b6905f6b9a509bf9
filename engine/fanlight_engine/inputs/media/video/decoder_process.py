"""The process that opens one clip, and ends with it: limited in memory, processor time and files, talking to a socket.

    python -m ...decoder_process FILE_DESCRIPTOR SOCKET_DESCRIPTOR DEMUXER LIMITS

Run by `decode`; see `protocol` for what is said. Memory is limited to what reading headers takes, and once the size of
frames is known, to what decoding such frames takes.
"""

from __future__ import annotations

import importlib
import io
import json
import socket
import struct
import sys
from collections.abc import Sequence

from av.video.frame import VideoFrame

from fanlight_engine.errors import Reason
from fanlight_engine.inputs.channel import Channel
from fanlight_engine.inputs.confinement import forbid_files, limit_memory, limit_processor_seconds, mapped_bytes
from fanlight_engine.inputs.media.video.container import measure, open_clip
from fanlight_engine.inputs.media.video.protocol import ClipLimits, ClipRefused
from fanlight_engine.inputs.media.video.reader import ClipReader, FramesRunOutError

_IMPORTED_LATE = ("av.audio.stream", "av.subtitles.stream", "av.video.stream")
"""Modules that PyAV imports when it meets such a stream, when no file can be opened any more."""
_MEMORY_FOR_HEADERS = 96 << 20
"""Bytes that reading any file may add: indexes of 100,000 frames and sounds, packets, and the probing of a codec."""
_FRAMES_IN_A_DECODER = 24
"""16 that others may refer to, those that wait for their turn, and what is being made."""
_BYTES_OF_A_DECODED_PIXEL = 3
"""4:2:0 in 16 bits, or 4:4:4 in 8."""


def main(arguments: Sequence[str]) -> None:
    """Serve one clip until the server has what it wants, or closes the socket."""
    file_descriptor, socket_descriptor, demuxer, settings = arguments
    limits = ClipLimits(**json.loads(settings))
    file = io.FileIO(int(file_descriptor), "rb")
    channel = Channel(socket.socket(fileno=int(socket_descriptor)))
    for name in _IMPORTED_LATE:
        importlib.import_module(name)
    memory_at_start = mapped_bytes()
    forbid_files()
    limit_processor_seconds(2 * limits.decode_seconds + 5)  # nobody waits for it any more
    channel.send("ready")
    try:
        _serve(file, demuxer, limits, channel, memory_at_start)
    except ClipRefused as refused:
        channel.send("refused", reason=refused.reason, description=refused.description)
    except EOFError:
        return


def _serve(file: io.FileIO, demuxer: str, limits: ClipLimits, channel: Channel, memory_at_start: int) -> None:
    limit_memory(memory_at_start + _MEMORY_FOR_HEADERS)
    with open_clip(file, demuxer, limits) as (container, stream):
        measures = measure(container, stream, limits)
    if not measures.times:
        raise ClipRefused(Reason.VIDEO_UNREADABLE, "it has no frames; send a clip that has")
    channel.send(
        "facts",
        width=measures.width,
        height=measures.height,
        codec=measures.codec,
        declared_frames=measures.declared_frames,
        fps=measures.fps,
        times=measures.times,
    )
    frame_bytes = measures.width * measures.height * _BYTES_OF_A_DECODED_PIXEL
    limit_memory(memory_at_start + _MEMORY_FOR_HEADERS + _FRAMES_IN_A_DECODER * frame_bytes)
    reader = ClipReader(file, demuxer, limits, measures)
    while True:
        indices = channel.receive()["indices"]
        try:
            for index, frame in reader.frames(indices):
                _send_frame(index, frame, channel)
        except FramesRunOutError as short:
            channel.send("ended_early", times=short.times)
        else:
            channel.send("end")


def _send_frame(index: int, frame: VideoFrame, channel: Channel) -> None:
    """The frame as rows of RGB without padding, and how to turn it upright."""
    # Bilinear without any flag, as every reader that asks PyAV for RGB has it: the pixels must not differ.
    plane = frame.reformat(format="rgb24", threads=1).planes[0]
    row_bytes = frame.width * 3
    channel.send("frame", index=index, width=frame.width, height=frame.height, turn=_turn_of(frame))
    pixels = memoryview(plane)
    if plane.line_size == row_bytes:
        channel.send_bytes(pixels[: row_bytes * frame.height])
        return
    for row in range(frame.height):
        channel.send_bytes(pixels[row * plane.line_size : row * plane.line_size + row_bytes])


def _turn_of(frame: VideoFrame) -> tuple[bool, bool, bool]:
    """What the display matrix says: swap rows and columns, then mirror left to right, then top to bottom.

    The matrix sends the picture's unit vectors to (a, b) and (c, d); only right angles are understood.
    """
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None or matrix.buffer_size < 36:
        return False, False, False
    a, b, _, c, d = struct.unpack_from("=5i", bytes(matrix))
    if abs(b) + abs(c) > abs(a) + abs(d):
        return True, c < 0, b < 0
    return False, a < 0, d < 0


if __name__ == "__main__":
    main(sys.argv[1:])
