"""Picture files that are broken, or far larger than they look, made on the spot.

`pictures_to_refuse` is by name, each with the reason that it is refused for. `pictures_to_bear` look like bombs too,
and must be answered: what is large in them is never decoded.
"""

from __future__ import annotations

import random
import struct
import zlib
from functools import cache

import numpy as np
from PIL import Image

from tests.e2e.bad_input import png, png_chunk, png_header
from tests.e2e.pictures import encoded, picture

TOO_LARGE = "IMAGE_TOO_LARGE"
UNDECODABLE = "IMAGE_UNDECODABLE"
UNSUPPORTED = "IMAGE_FORMAT_UNSUPPORTED"

_MEBIBYTE = 1 << 20


@cache
def pictures_to_refuse() -> dict[str, tuple[bytes, str]]:
    """File and reason by what is wrong."""
    return {**_pixel_bombs(), **_metadata_bombs(), **_damaged(), **_other_formats()}


def pictures_to_bear() -> dict[str, bytes]:
    """Files that must be answered, because only their first frame and none of their comments is decoded."""
    return {
        "a GIF of 20,000 frames": _gif(8, 8, frames=20_000),
        "a JPEG with 12 MiB of comments": _jpeg_with_segments(b"\xff\xfe", b"c" * 65_000, 12 * _MEBIBYTE // 65_000),
        "a PNG with 10,000 unknown chunks": _png_with(png_chunk(b"abCd", b"x" * 100) * 10_000),
    }


def _pixel_bombs() -> dict[str, tuple[bytes, str]]:
    most = 16_383
    bombs = {
        "a PNG that says 50,000 x 50,000": png_header(50_000, 50_000),
        "a PNG that says 2^31 x 2^31": png_header(0x7FFF_FFFF, 0x7FFF_FFFF),
        "a PNG of 12,000 x 12,000, all of it there": _black_png(12_000),
        "a PNG of 20,000 x 200": png_header(20_000, 200),
        "a PNG of 1 x 300": encoded(Image.new("RGB", (1, 300))),
        "a JPEG that says 65,500 x 65,500": _jpeg_of_size(65_500, 65_500),
        "a GIF that says 65,535 x 65,535": _gif(65_535, 65_535),
        "a GIF of 8 x 8 whose frame says 60,000 x 60,000": _gif(8, 8, frame_side=60_000),
        "a WebP that says 16,384 x 16,384": _webp(b"VP8X", bytes(4) + 2 * struct.pack("<I", most)[:3]),
        "a lossless WebP that says 16,384 x 16,384": _webp(b"VP8L", b"\x2f" + struct.pack("<I", most | most << 14)),
        "a lossy WebP that says 16,383 x 16,383": _webp(
            b"VP8 ", b"\x10\0\0\x9d\x01\x2a" + struct.pack("<HH", most, most)
        ),
        "a file of 21 MiB": encoded(_noise(), "JPEG") + bytes(21 * _MEBIBYTE),
    }
    return {name: (data, TOO_LARGE) for name, data in bombs.items()}


def _metadata_bombs() -> dict[str, tuple[bytes, str]]:
    large = _squeezed_zeros(256)
    one_text = b"Comment\0\0" + _squeezed_zeros(1)
    bombs = {
        "a PNG with a text of 256 MiB": _png_with(png_chunk(b"zTXt", b"Comment\0\0" + large)),
        "a PNG with an international text of 256 MiB": _png_with(png_chunk(b"iTXt", b"Comment\0\1\0\0\0" + large)),
        "a PNG with 1,000 texts of 1 MiB": _png_with(png_chunk(b"zTXt", one_text) * 1000),
        "a PNG with a colour profile of 256 MiB": _png_with(png_chunk(b"iCCP", b"profile\0\0" + large)),
        "a JPEG with garbage for EXIF": _jpeg_with_exif(b"garbage that is no TIFF at all"),
        "a WebP with garbage for EXIF": encoded(_noise(), "WebP", exif=b"Exif\0\0garbage that is no TIFF at all"),
    }
    return {name: (data, UNDECODABLE) for name, data in bombs.items()}


def _damaged() -> dict[str, tuple[bytes, str]]:
    drawn, photograph = picture(0), encoded(_noise(), "JPEG")
    gif, webp = encoded(_noise(), "GIF"), encoded(_noise(), "WebP")
    files = {
        "text with the name of a picture": b"This is no image, whatever its name says.",
        "random bytes": random.Random(3).randbytes(5000),
        "nothing": b"",
        "a PNG signature and nothing else": drawn[:8],
        "a PNG signature and random bytes": drawn[:8] + random.Random(4).randbytes(5000),
        "a PNG of 0 x 0": png_header(0, 0),
        "a PNG cut short": drawn[: len(drawn) // 2],
        "a PNG of 7,000 x 7,000 whose pixels are missing": png_header(7_000, 7_000),
        "a PNG whose pixels do not unpack": png(64, 64, png_chunk(b"IDAT", b"x\x9c" + bytes(range(200)))),
        "a PNG whose header has a wrong checksum": _with_wrong_header_checksum(drawn),
        "a JPEG cut short": photograph[: len(photograph) // 2],
        "a JPEG of its first two bytes": b"\xff\xd8\xff",
        "a JPEG whose tables are overwritten": photograph[:160] + bytes(600) + photograph[760:],
        "a GIF cut short": gif[: len(gif) // 2],
        "a WebP cut short": webp[: len(webp) // 2],
        "a WebP that is another file inside": b"RIFF\x40\0\0\0WEBP" + drawn[:64],
    }
    return {name: (data, UNDECODABLE) for name, data in files.items()}


def _other_formats() -> dict[str, tuple[bytes, str]]:
    laughs = "".join(f'<!ENTITY l{level} "{f"&l{level - 1};" * 10}">' for level in range(1, 10))
    svg = f'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY l0 "ha">{laughs}]><svg>&l9;</svg>'
    files = {
        "an SVG of a billion laughs": svg.encode(),
        "a TIFF that says 2^31 x 2^31": _tiff(0x7FFF_FFFF),
        "a PostScript program": b"%!PS-Adobe-3.0 EPSF-3.0\n{ } loop\n",
        "a PDF": b"%PDF-1.7\n",
        "a PSD": b"8BPS\0\1" + bytes(40),
        "an AVIF": b"\0\0\0\x1cftypavif" + bytes(40),
        "a BMP": encoded(Image.new("RGB", (8, 8)), "BMP"),
    }
    return {name: (data, UNSUPPORTED) for name, data in files.items()}


def _noise(side: int = 200) -> Image.Image:
    pixels = np.random.default_rng(1).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@cache
def _squeezed_zeros(mebibytes: int) -> bytes:
    squeezer = zlib.compressobj(9)
    block = bytes(_MEBIBYTE)
    return b"".join(squeezer.compress(block) for _ in range(mebibytes)) + squeezer.flush()


def _black_png(side: int) -> bytes:
    """A grey PNG with all of its pixels: a hundred kilobytes for hundreds of megabytes."""
    squeezer = zlib.compressobj(9)
    rows = b"".join(squeezer.compress(bytes(1 + side)) for _ in range(side)) + squeezer.flush()
    return png(side, side, png_chunk(b"IDAT", rows), color_type=0)


def _png_with(chunks: bytes) -> bytes:
    """A good PNG with more chunks after its header."""
    drawn = picture(0)
    after_header = 8 + 25
    return drawn[:after_header] + chunks + drawn[after_header:]


def _with_wrong_header_checksum(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[29] ^= 0xFF
    return bytes(changed)


def _jpeg_of_size(width: int, height: int) -> bytes:
    data = bytearray(encoded(_noise(), "JPEG"))
    frame = data.index(b"\xff\xc0")
    struct.pack_into(">HH", data, frame + 5, height, width)
    return bytes(data)


def _jpeg_with_exif(payload: bytes) -> bytes:
    return _jpeg_with_segments(b"\xff\xe1", b"Exif\0\0" + payload, 1)


def _jpeg_with_segments(marker: bytes, payload: bytes, count: int) -> bytes:
    data = encoded(_noise(), "JPEG")
    segment = marker + struct.pack(">H", len(payload) + 2) + payload
    return data[:2] + segment * count + data[2:]


def _gif(width: int, height: int, frames: int = 1, frame_side: int = 8) -> bytes:
    """A GIF with so many equal frames of 8 x 8 pixels, which may say that they are larger."""
    drawn = encoded(Image.new("P", (8, 8)), "GIF")
    start = drawn.index(b",", 13 + 3 * (2 << (drawn[10] & 7)))
    frame = bytearray(drawn[start:-1])
    struct.pack_into("<HH", frame, 5, frame_side, frame_side)
    header = bytearray(drawn[:start])
    struct.pack_into("<HH", header, 6, width, height)
    return bytes(header) + bytes(frame) * frames + b";"


def _webp(kind: bytes, body: bytes) -> bytes:
    chunk = kind + struct.pack("<I", len(body)) + body + bytes(len(body) % 2)
    return b"RIFF" + struct.pack("<I", len(chunk) + 4) + b"WEBP" + chunk


def _tiff(side: int) -> bytes:
    entries = [(256, 4, 1, side), (257, 4, 1, side)]
    packed = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + packed + bytes(4)
