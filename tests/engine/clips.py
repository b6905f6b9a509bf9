"""Real clips, made on the spot with PyAV, and files that are broken in every way a clip can be.

Pictures of a clip differ from each other, and are the same for the same index and size, so that tests can tell frames
apart and compare them. `broken_clips` is the list that refusals are tested with.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import av
import numpy as np
from av.stream import Disposition

CODECS = {
    "mp4": "libx264",
    "mov": "mpeg4",
    "webm": "libvpx-vp9",
    "matroska": "mpeg4",
    "avi": "mpeg4",
}
"""A quick encoder for each container; all of them are in the PyAV wheel."""

_MICROSECOND = Fraction(1, 1_000_000)
_IDENTITY_MATRIX = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
_TURNS = {
    0: (1, 0, 0, 1),
    90: (0, 1, -1, 0),
    180: (-1, 0, 0, -1),
    270: (0, -1, 1, 0),
}
"""a, b, c, d of the display matrix that turns a picture clockwise by so many degrees."""


def picture(index: int, width: int = 64, height: int = 48) -> np.ndarray:
    """[height, width, 3] uint8: a gradient that moves, and a bright square in the upper left that does not."""
    column, row = np.arange(width), np.arange(height)[:, None]
    pixels = np.empty((height, width, 3), np.uint8)
    pixels[..., 0] = (column * 2 + index * 24) % 256
    pixels[..., 1] = (row * 3 + index * 12) % 256
    pixels[..., 2] = 40 + 20 * (index % 8)
    pixels[: height // 4, : width // 4] = 235
    return pixels


def clip(
    frames: int = 10,
    size: tuple[int, int] = (64, 48),
    fps: float = 10,
    container: str = "mp4",
    codec: str | None = None,
    pixel_format: str = "yuv420p",
    options: dict[str, str] | None = None,
) -> bytes:
    """A clip of so many pictures at a constant rate; `size` is (width, height)."""
    rate = Fraction(fps).limit_denominator(1001)
    times = [index / rate for index in range(frames)]
    return clip_at(times, size, container, codec, pixel_format, options, rate)


def clip_at(
    times: Sequence[float | Fraction],
    size: tuple[int, int] = (64, 48),
    container: str = "mp4",
    codec: str | None = None,
    pixel_format: str = "yuv420p",
    options: dict[str, str] | None = None,
    rate: Fraction = Fraction(25),
    muxer_options: dict[str, str] | None = None,
    sound: bool = False,
) -> bytes:
    """A clip with a picture at each of these times, in seconds: variable frame rate where they are uneven."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container, options=muxer_options or {}) as output:
        stream: Any = output.add_stream(codec or CODECS[container], rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = pixel_format
        stream.codec_context.thread_count = 1
        stream.options = {"threads": "1", "bf": "0", **(options or {})}
        constant = container in ("avi",)
        stream.codec_context.time_base = 1 / rate if constant else _time_base(times)
        audio = output.add_stream("aac", rate=16_000, layout="mono") if sound else None
        for index, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(picture(index, *size), "rgb24").reformat(format=pixel_format)
            frame.time_base = stream.codec_context.time_base
            frame.pts = round(Fraction(time).limit_denominator(1_000_000) / frame.time_base)
            output.mux(stream.encode(frame))
        if times:
            output.mux(stream.encode())
        else:
            output.start_encoding()
        if audio is not None:
            _add_sound(output, audio)
    return buffer.getvalue()


def clip_with_sound(frames: int = 10) -> bytes:
    """A clip with an audio stream beside the pictures."""
    return clip_at([index / 10 for index in range(frames)], sound=True)


def sound_only(container: str = "mp4") -> bytes:
    """A file of a clip's container that holds nothing but sound."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        _add_sound(output, output.add_stream("aac", rate=16_000, layout="mono"))
    return buffer.getvalue()


def turned_clip(degrees: int, frames: int = 3, size: tuple[int, int] = (64, 48)) -> bytes:
    """A clip whose display matrix says to turn it clockwise by 0, 90, 180 or 270 degrees, as telephones write it."""
    return clip_with_matrix(_TURNS[degrees], frames, size)


def clip_with_matrix(matrix: tuple[int, int, int, int], frames: int = 3, size: tuple[int, int] = (64, 48)) -> bytes:
    """A clip with this display matrix (a, b, c, d), each -1, 0 or 1."""
    a, b, c, d = (value << 16 for value in matrix)
    wanted = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    data = clip(frames, size)
    header = data.index(b"tkhd")
    place = data.index(_IDENTITY_MATRIX, header)
    return data[:place] + wanted + data[place + len(wanted) :]


def without_frames(container: str = "mp4") -> bytes:
    """A clip with a video stream and not one picture in it."""
    if container == "mp4":
        data = clip(1)
        count = data.index(b"stsz") + 12
        return data[:count] + bytes(4) + data[count + 4 :]
    return clip(0, container=container)


def with_declared_frames(data: bytes, count: int) -> bytes:
    """The MP4 file with another number of frames in its table of sizes than there are sizes."""
    place = data.index(b"stsz") + 12
    return data[:place] + struct.pack(">I", count) + data[place + 4 :]


def with_declared_seconds(data: bytes, seconds: int) -> bytes:
    """The MP4 file with another length in its movie, track and media headers than its frames have."""
    changed = bytearray(data)
    for name, time_scale, length in ((b"mvhd", 16, 20), (b"mdhd", 16, 20), (b"tkhd", None, 24)):
        start = data.index(name)
        scale = 1000 if time_scale is None else struct.unpack_from(">I", data, start + time_scale)[0]
        struct.pack_into(">I", changed, start + length, min(seconds * scale, 0xFFFF_FFFE))
    return bytes(changed)


def with_declared_size(data: bytes, width: int, height: int) -> bytes:
    """The MP4 file with another frame size in its sample description than its frames have."""
    changed = bytearray(data)
    entry = re.search(rb"avc1|mp4v", data)
    assert entry is not None
    struct.pack_into(">HH", changed, entry.start() + 28, width, height)
    return bytes(changed)


def frames_bomb(count: int = 10_000_000, frame_bytes: int = 1) -> bytes:
    """An MP4 file of 1.5 kilobytes whose tables promise so many frames of one size: 35 bytes of index for each."""
    data = clip(1)
    sizes = data.index(b"stsz")
    changed = bytearray(data)
    struct.pack_into(">II", changed, sizes + 8, frame_bytes, count)
    chunks = data.index(b"stsc")
    struct.pack_into(">I", changed, chunks + 16, count)
    durations = data.index(b"stts")
    struct.pack_into(">I", changed, durations + 12, count)
    return bytes(changed)


def fragment_bomb(count: int = 10_000_000) -> bytes:
    """A fragmented MP4 file with one fragment that promises so many frames without a byte for each."""
    data = clip_at([0, 0.1, 0.2], muxer_options={"movflags": "frag_keyframe+empty_moov"})
    run = data.index(b"trun")
    changed = bytearray(data)
    struct.pack_into(">II", changed, run + 4, 0x000001, count)
    return bytes(changed)


def track_bomb(count: int = 300_000) -> bytes:
    """A Matroska file whose header lists so many empty tracks of two bytes each."""
    tracks = b"\xae\x80" * count
    head = clip(1, container="matroska")
    start = head.index(b"\x16\x54\xae\x6b")
    return head[:start] + b"\x16\x54\xae\x6b" + _ebml_length(len(tracks)) + tracks + head[start:]


def compressed_header_bomb(megabytes: int = 512) -> bytes:
    """A QuickTime file whose header is compressed: a few hundred kilobytes that would fill so many megabytes."""
    import zlib

    squeezer = zlib.compressobj(9)
    block = bytes(1 << 20)
    packed = b"".join(squeezer.compress(block) for _ in range(megabytes)) + squeezer.flush()
    method = _box(b"dcom", b"zlib")
    content = _box(b"cmvd", struct.pack(">I", megabytes << 20) + packed)
    return _box(b"ftyp", b"qt  " + bytes(4) + b"qt  ") + _box(b"moov", _box(b"cmov", method + content))


def deeply_nested(depth: int = 20_000) -> bytes:
    """An MP4 file of boxes within boxes."""
    inner = b""
    for _ in range(depth):
        inner = _box(b"moov", inner)
    return _box(b"ftyp", b"isom" + bytes(4) + b"isom") + inner


def size_changes_midway(first: tuple[int, int] = (64, 48), second: tuple[int, int] = (96, 64)) -> bytes:
    """An AVI file of Motion JPEG whose last frames have another size than its first ones."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="avi") as output:
        stream: Any = output.add_stream("mjpeg", rate=10)
        stream.width, stream.height = first
        stream.pix_fmt = "yuvj420p"
        packets = [*_jpeg_packets(3, first), *_jpeg_packets(3, second)]
        for index, data in enumerate(packets):
            packet: Any = av.Packet(data)
            packet.stream, packet.time_base = stream, Fraction(1, 10)
            packet.pts = packet.dts = index
            packet.is_keyframe = True
            output.mux(packet)
    return buffer.getvalue()


def with_hidden_frames(frames: int = 12, hidden: int = 3) -> bytes:
    """A VP9 file of key frames, the last ones marked as not to be shown: more packets than pictures."""
    data = clip(frames, container="webm", options={"g": "1", "keyint_min": "1"})
    with av.open(io.BytesIO(data), "r") as container:
        packets = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    changed = bytearray(data)
    for packet in packets[frames - hidden :]:
        assert packet[0] == 0x82, "marker, profile 0, a key frame that is shown"
        changed[data.index(packet)] = 0x80
    return bytes(changed)


def huge_vp8_frame() -> bytes:
    """A WebM file with a small frame in its header, whose first picture then says it has 16,383 x 16,383 pixels."""
    data = clip(3, container="webm", codec="libvpx")
    place = data.index(b"\x9d\x01\x2a") + 3
    return data[:place] + struct.pack("<HH", 0x3FFF, 0x3FFF) + data[place + 4 :]


def huge_jpeg_frame() -> bytes:
    """An AVI file of Motion JPEG whose pictures say they have 65,500 x 65,500 pixels."""
    changed = bytearray(size_changes_midway())
    for start in re.finditer(rb"\xff\xc0\x00\x11\x08", bytes(changed)):
        struct.pack_into(">HH", changed, start.end(), 65_500, 65_500)
    return bytes(changed)


def cover_art_only() -> bytes:
    """An M4A-like file: sound, and a picture of the kind that players show while it plays."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as output:
        audio = output.add_stream("aac", rate=16_000, layout="mono")
        cover: Any = output.add_stream("mjpeg", rate=1)
        cover.width, cover.height = 64, 48
        cover.pix_fmt = "yuvj420p"
        cover.disposition = Disposition.attached_pic
        packet: Any = av.Packet(_jpeg_packets(1, (64, 48))[0])
        packet.stream, packet.time_base = cover, Fraction(1, 1)
        packet.pts = packet.dts = 0
        packet.is_keyframe = True
        output.mux(packet)
        _add_sound(output, audio)
    return buffer.getvalue()


@cache
def broken_clips() -> dict[str, bytes]:
    """Files that must be refused, by what is wrong with them."""
    good = clip(12)
    fast_start = clip_at([index / 10 for index in range(12)], muxer_options={"moov_size": "3000"})
    webm = clip(12, container="webm")
    random = np.random.default_rng(7).integers(0, 256, 4000, np.uint8).tobytes()
    head = good[: good.index(b"mdat") + 4]
    return {
        "nothing but a signature": good[:12],
        "random bytes": random,
        "zeros": bytes(4000),
        "signature and random bytes": good[:32] + random,
        "matroska signature and random bytes": webm[:4] + random,
        "avi signature and random bytes": b"RIFF\xff\xff\xff\xffAVI LIST" + random,
        "cut in half, index lost": good[: len(good) // 2],
        "cut in half, index first": fast_start[:-400],
        "webm cut in the header": webm[:100],
        "pictures overwritten": head + random * (len(good) // 4000 + 1),
        "no frames": without_frames(),
        "no frames, webm": without_frames("webm"),
        "sound only": sound_only(),
        "cover art only": cover_art_only(),
        "frames bomb": frames_bomb(),
        "frames bomb that just fits": frames_bomb(2_500_000),
        "frames bomb of frames beyond the file": frames_bomb(2_500_000, frame_bytes=0x7FFF_FFFF),
        "fragment bomb": fragment_bomb(),
        "fragment bomb that just fits": fragment_bomb(2_500_000),
        "track bomb": track_bomb(),
        "compressed header bomb": compressed_header_bomb(),
        "deeply nested boxes": deeply_nested(),
        "huge frame in the header": with_declared_size(without_frames(), 65_500, 65_500),
        "zero frame in the header": with_declared_size(without_frames(), 0, 0),
        "huge frame in a VP8 picture": huge_vp8_frame(),
        "huge frame in a JPEG picture": huge_jpeg_frame(),
        "endless box": b"\0\0\0\x18ftypisom\0\0\0\0isommp42" + b"\0\0\0\x01moov" + b"\x7f" + b"\xff" * 7,
        "playlist": b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
        "concat list": b"ffconcat version 1.0\nfile /etc/passwd\n",
        "dash manifest": b'<?xml version="1.0"?><MPD><BaseURL>http://127.0.0.1/</BaseURL></MPD>',
        "session description": b"v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\n",
        "still picture": b"\x89PNG\r\n\x1a\n" + bytes(40),
        "avif picture": b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf" + bytes(40),
    }


def box_types(data: bytes) -> Iterator[bytes]:
    """Names of the outermost boxes of an ISO file, in order."""
    place = 0
    while place + 8 <= len(data):
        size, name = struct.unpack_from(">I4s", data, place)
        yield name
        place += size if size >= 8 else len(data)


def _time_base(times: Iterable[float | Fraction]) -> Fraction:
    """The coarsest of some usual units that every time is a multiple of."""
    for unit in (Fraction(1, 1000), Fraction(1, 90_000), Fraction(1, 15_360)):
        if all((Fraction(time).limit_denominator(100_000) / unit).denominator == 1 for time in times):
            return unit
    return _MICROSECOND


def _add_sound(output: Any, stream: Any, seconds: float = 1.0) -> None:
    wave = (np.sin(np.arange(1024) / 20) * 8000).astype(np.int16)[None]
    for index in range(int(seconds * 16_000 / 1024)):
        frame = av.AudioFrame.from_ndarray(wave, format="s16", layout="mono")
        frame.sample_rate = 16_000
        frame.time_base = Fraction(1, 16_000)
        frame.pts = index * 1024
        output.mux(stream.encode(frame))
    output.mux(stream.encode())


def _jpeg_packets(count: int, size: tuple[int, int]) -> list[bytes]:
    from PIL import Image

    packets = []
    for index in range(count):
        buffer = io.BytesIO()
        Image.fromarray(picture(index, *size)).save(buffer, "JPEG")
        packets.append(buffer.getvalue())
    return packets


def _box(name: bytes, payload: bytes) -> bytes:
    return struct.pack(">I4s", len(payload) + 8, name) + payload


def _ebml_length(length: int) -> bytes:
    return (length | 1 << 56).to_bytes(8, "big")
