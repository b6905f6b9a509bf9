"""Encoded bytes -> the RGB picture a person would see, within limits judged before anything is decoded.

    sniff (allow-list) -> header and limits -> decode -> EXIF orientation -> alpha over white -> RGB

Knows Pillow and the limits; knows nothing of models, requests or field paths: a refusal is an ImageError, to which the
caller adds the path. Texts of refusals never quote Pillow, whose messages hold object addresses.
"""

from __future__ import annotations

import io
import struct
import warnings
from dataclasses import dataclass

import numpy as np
from PIL import Image

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import Reason

ALLOWED_FORMATS = ("JPEG", "PNG", "WebP", "GIF")
DECODE_VERSION = 1
"""Part of every digest: raise it when the same bytes would give other pixels than before."""

_SIGNATURES = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
)
_REFUSED_SIGNATURES = (
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"8BPS", "PSD"),
    (b"%PDF", "PDF"),
    (b"%!PS", "PostScript"),
    (b"\xc5\xd0\xd3\xc6", "EPS"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\x01\0", "ICO"),
    (b"<svg", "SVG"),
    (b"<?xml", "SVG or other XML"),
)
_EXIF_ORIENTATION = 0x0112
_TRANSPOSITIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_UNREADABLE = "it cannot be decoded as {name}: the file is damaged or cut short; encode it again"


class ImageError(Exception):
    """One image was refused; `reason` and `description` are those of the RequestError to come."""

    def __init__(self, reason: Reason, description: str) -> None:
        super().__init__(description)
        self.reason = reason
        self.description = description


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What the header says. Sides are pixels, before orientation."""

    format: str
    width: int
    height: int


def make_decompression_bombs_errors() -> None:
    """Pillow warns above its own limit of pixels; make that an error too. For the worker's initializer."""
    warnings.simplefilter("error", Image.DecompressionBombWarning)


def inspect(data: bytes, config: EngineConfig) -> ImageFacts:
    """Format and size from the header, judged against the limits. Decodes nothing. Raises ImageError."""
    name = sniff(data)
    if name == "WebP":
        # Pillow's WebP reader allocates the canvas when it opens a file, so the size is read by hand first.
        width, height = _webp_size(data)
        _check_size(width, height, config)
    with _open(data, name, config) as image:
        width, height = image.size
    _check_size(width, height, config)
    return ImageFacts(name, width, height)


def decode(data: bytes, config: EngineConfig) -> Image.Image:
    """The first frame in mode RGB, upright, over white. Raises ImageError."""
    name = inspect(data, config).format
    with _open(data, name, config) as image:
        try:
            image.load()
            return to_rgb(_upright(image))
        except Exception as error:  # decoders fail in every way there is: OSError, SyntaxError, struct.error, ...
            raise _as_image_error(error, name, config) from None


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode to RGB: transparency over white, 16-bit grey scaled to 8 bits, the rest as Pillow converts it."""
    if image.mode.startswith("I"):
        return _grey_16_to_rgb(image)
    has_alpha = image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info
    if not has_alpha:
        return image.convert("RGB")
    straight = image.convert("RGBA")
    canvas = Image.new("RGBA", straight.size, (255, 255, 255, 255))
    return Image.alpha_composite(canvas, straight).convert("RGB")


def sniff(data: bytes) -> str:
    """The allowed format that the first bytes announce. Raises ImageError."""
    for signature, name in _SIGNATURES:
        if data.startswith(signature):
            return name
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP"
    allowed = ", ".join(ALLOWED_FORMATS)
    for signature, name in _REFUSED_SIGNATURES:
        if data.lstrip().startswith(signature) or data.startswith(signature):
            raise ImageError(Reason.IMAGE_FORMAT_UNSUPPORTED, f"it is {name}, only {allowed} are allowed; convert it")
    if data[4:8] == b"ftyp":
        raise ImageError(
            Reason.IMAGE_FORMAT_UNSUPPORTED, f"it is AVIF, HEIC or video, only {allowed} are allowed; convert it"
        )
    raise ImageError(Reason.IMAGE_UNREADABLE, f"it is no image; send the bytes of one file of {allowed}")


def _open(data: bytes, name: str, config: EngineConfig) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data), formats=[name.upper()])
    except Exception as error:  # as above: a damaged header can fail in any way
        raise _as_image_error(error, name, config) from None


def _as_image_error(error: Exception, name: str, config: EngineConfig) -> ImageError:
    if isinstance(error, ImageError):
        return error
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        got = Image.MAX_IMAGE_PIXELS or 0
        limit = min(got, config.max_image_pixels)
        return ImageError(
            Reason.IMAGE_TOO_LARGE, f"it has over {got} pixels, {limit} in all are allowed; scale it down"
        )
    return ImageError(Reason.IMAGE_UNREADABLE, _UNREADABLE.format(name=name))


def _check_size(width: int, height: int, config: EngineConfig) -> None:
    size = f"{width} x {height} pixels"
    if width < 1 or height < 1:
        raise ImageError(Reason.IMAGE_UNREADABLE, f"its header says {size}; encode it again")
    if max(width, height) > config.max_image_side:
        limit = f"a side may have {config.max_image_side}"
    elif width * height > config.max_image_pixels:
        limit = f"{config.max_image_pixels} pixels in all are allowed"
    elif max(width, height) > config.max_image_aspect_ratio * min(width, height):
        limit = f"the longer side may be {config.max_image_aspect_ratio} times the shorter one"
    else:
        return
    raise ImageError(Reason.IMAGE_TOO_LARGE, f"it has {size}, {limit}; scale or crop it")


def _webp_size(data: bytes) -> tuple[int, int]:
    """Width and height from the first chunk (VP8, VP8L or VP8X) of a WebP file."""
    chunk, body = data[12:16], data[20:30]
    if chunk == b"VP8X" and len(body) == 10:
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if chunk == b"VP8L" and len(body) >= 5 and body[0] == 0x2F:
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if chunk == b"VP8 " and body[3:6] == b"\x9d\x01\x2a":
        width, height = struct.unpack("<HH", body[6:10])
        return width & 0x3FFF, height & 0x3FFF
    raise ImageError(Reason.IMAGE_UNREADABLE, _UNREADABLE.format(name="WebP"))


def _upright(image: Image.Image) -> Image.Image:
    """Turned and mirrored as its EXIF orientation says."""
    method = _TRANSPOSITIONS.get(image.getexif().get(_EXIF_ORIENTATION, 1))
    return image if method is None else image.transpose(method)


def _grey_16_to_rgb(image: Image.Image) -> Image.Image:
    """Pillow would clip 16-bit grey at 255; scale it, and show the one transparent grey (tRNS) as white."""
    grey = np.asarray(image).astype(np.uint32) & 0xFFFF
    scaled = ((grey * 255 + 32767) // 65535).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        scaled[grey == transparent] = 255
    return Image.fromarray(scaled).convert("RGB")
