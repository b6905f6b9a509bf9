"""Encoded bytes -> the RGB picture a person would see, within limits judged before anything is decoded.

    sniff (allow-list) -> header and limits -> decode -> transparency over white -> RGB -> EXIF orientation

Knows Pillow and the limits; knows nothing of models, requests or field paths: a refusal is an MediaError, to which the
caller adds the path. Texts of refusals never quote Pillow, whose messages hold object addresses.
"""

from __future__ import annotations

import io
import struct
import warnings
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageFile

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.processing import MediaError
from fanlight_engine.inputs.media.video.formats import clip_format

ALLOWED_FORMATS = ("JPEG", "PNG", "WebP", "GIF")
DECODE_VERSION = 2
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
_GREY_STEPS = {"L;2": 85, "L;4": 17}
"""What one step of a grey of fewer bits is in 8."""
_UNREADABLE = "it cannot be decoded as {name}: the file is damaged or cut short; encode it again"


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
    """Format and size from the header, judged against the limits. Decodes nothing. Raises MediaError."""
    name = sniff(data)
    if name == "WebP":
        # Pillow's WebP reader allocates the canvas when it opens a file, so the size is read by hand.
        width, height = _webp_size(data)
    else:
        with _open(data, name, config) as image:
            width, height = image.size
    _check_size(width, height, config)
    return ImageFacts(name, width, height)


def decode(data: bytes, config: EngineConfig) -> Image.Image:
    """The first frame in mode RGB, upright, over white. Raises MediaError."""
    name = inspect(data, config).format
    with _open(data, name, config) as image:
        try:
            covered = _covered_part(image)
            _scale_transparency(image)
            image.load()
            return _upright(_on_white(to_rgb(image), covered), _orientation_of(image))
        except Exception as error:  # decoders fail in every way there is: OSError, SyntaxError, struct.error, ...
            raise _as_image_error(error, name, config) from None


def to_rgb(image: Image.Image) -> Image.Image:
    """Any mode to RGB: transparency over white, 16-bit grey scaled to 8 bits, the rest as Pillow converts it.

    A picture that is RGB already is returned as it is.
    """
    if image.mode.startswith("I"):
        return _grey_16_to_rgb(image)
    has_alpha = image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info
    if not has_alpha:
        return image if image.mode == "RGB" else image.convert("RGB")
    straight = image.convert("RGBA")
    canvas = Image.new("RGB", straight.size, (255, 255, 255))
    canvas.paste(straight, mask=straight.getchannel("A"))
    return canvas


def sniff(data: bytes) -> str:
    """The allowed format that the first bytes announce. Raises MediaError."""
    for signature, name in _SIGNATURES:
        if data.startswith(signature):
            return name
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP"
    allowed = ", ".join(ALLOWED_FORMATS)
    for signature, name in _REFUSED_SIGNATURES:
        if data.lstrip().startswith(signature) or data.startswith(signature):
            raise MediaError(Reason.IMAGE_FORMAT_UNSUPPORTED, f"it is {name}, only {allowed} are allowed; convert it")
    _refuse_clip(data)
    if data[4:8] == b"ftyp":
        raise MediaError(Reason.IMAGE_FORMAT_UNSUPPORTED, f"it is AVIF or HEIC, only {allowed} are allowed; convert it")
    raise MediaError(Reason.IMAGE_UNREADABLE, f"it is no image; send the bytes of one file of {allowed}")


def _refuse_clip(data: bytes) -> None:
    """Raise MediaError where a picture is wanted and the file is a clip that could be sent as one."""
    try:
        kind = clip_format(data)
    except MediaError:
        return
    raise MediaError(Reason.IMAGE_FORMAT_UNSUPPORTED, f"it is a clip ({kind.name}), not an image; send it as a video")


def _open(data: bytes, name: str, config: EngineConfig) -> Image.Image:
    try:
        return Image.open(io.BytesIO(data), formats=[name.upper()])
    except Exception as error:  # as above: a damaged header can fail in any way
        raise _as_image_error(error, name, config) from None


def _as_image_error(error: Exception, name: str, config: EngineConfig) -> MediaError:
    if isinstance(error, MediaError):
        return error
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        got = Image.MAX_IMAGE_PIXELS or 0
        limit = min(got, config.max_image_pixels)
        return MediaError(
            Reason.IMAGE_TOO_LARGE, f"it has over {got} pixels, {limit} in all are allowed; scale it down"
        )
    return MediaError(Reason.IMAGE_UNREADABLE, _UNREADABLE.format(name=name))


def _check_size(width: int, height: int, config: EngineConfig) -> None:
    size = f"{width} x {height} pixels"
    if width < 1 or height < 1:
        raise MediaError(Reason.IMAGE_UNREADABLE, f"its header says {size}; encode it again")
    if max(width, height) > config.max_image_side:
        limit = f"a side may have {config.max_image_side}"
    elif width * height > config.max_image_pixels:
        limit = f"{config.max_image_pixels} pixels in all are allowed"
    elif max(width, height) > config.max_image_aspect_ratio * min(width, height):
        limit = f"the longer side may be {config.max_image_aspect_ratio} times the shorter one"
    else:
        return
    raise MediaError(Reason.IMAGE_TOO_LARGE, f"it has {size}, {limit}; scale or crop it")


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
    raise MediaError(Reason.IMAGE_UNREADABLE, _UNREADABLE.format(name="WebP"))


def _covered_part(image: Image.Image) -> tuple[int, int, int, int] | None:
    """What the first frame of a GIF covers of its screen, if not all: Pillow shows the rest in the palette's colour 0.

    (left, top, right, bottom), read before the pixels are.
    """
    if image.format != "GIF" or not isinstance(image, ImageFile.ImageFile):
        return None
    extents = image.tile[0].extents
    return None if extents is None or extents == (0, 0, *image.size) else extents


def _on_white(image: Image.Image, covered: tuple[int, int, int, int] | None) -> Image.Image:
    if covered is None:
        return image
    canvas = Image.new("RGB", image.size, (255, 255, 255))
    canvas.paste(image.crop(covered), covered[:2])
    return canvas


def _scale_transparency(image: Image.Image) -> None:
    """Pillow scales samples of 2, 4 and 16 bits to 8, but not the one transparent colour (tRNS) that they equal."""
    colour = image.info.get("transparency")
    if image.format != "PNG" or colour is None or not isinstance(image, ImageFile.ImageFile):
        return
    raw_mode = image.tile[0].args if image.tile else None
    if isinstance(colour, int) and raw_mode in _GREY_STEPS:
        image.info["transparency"] = colour * _GREY_STEPS[raw_mode]
    elif isinstance(colour, tuple) and raw_mode == "RGB;16B":
        image.info["transparency"] = tuple(sample >> 8 for sample in colour)


def _orientation_of(image: Image.Image) -> int:
    """As EXIF numbers it, 1 where there is none. Raises whatever Pillow does for EXIF that cannot be read."""
    Image.Exif().load(image.info.get("exif", b""))  # while it opens some formats, Pillow takes unreadable for absent
    return image.getexif().get(_EXIF_ORIENTATION, 1)


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    """Turned and mirrored as its EXIF orientation says."""
    method = _TRANSPOSITIONS.get(orientation)
    return image if method is None else image.transpose(method)


def _grey_16_to_rgb(image: Image.Image) -> Image.Image:
    """Pillow would clip 16-bit grey at 255; scale it, and show the one transparent grey (tRNS) as white."""
    grey = np.asarray(image).astype(np.uint32) & 0xFFFF
    scaled = ((grey * 255 + 32767) // 65535).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        scaled[grey == transparent] = 255
    return Image.fromarray(scaled).convert("RGB")
