"""Pictures decode to what a person sees, within the limits; bad files are refused in words."""

from __future__ import annotations

import contextlib
import io
import random
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media import images
from fanlight_engine.inputs.media.processing import MediaError
from tests.engine.conversations import encoded

CONFIG = EngineConfig()
GRADIENT = Image.fromarray(
    np.stack(np.meshgrid(np.arange(40) * 6, np.arange(30) * 8, indexing="xy"), axis=-1).astype(np.uint8)[..., [0, 1, 0]]
)


def pixels(data: bytes) -> np.ndarray:
    image = images.decode(data, CONFIG)
    assert image.mode == "RGB"
    return np.asarray(image)


def refusal(data: bytes, config: EngineConfig = CONFIG) -> MediaError:
    with pytest.raises(MediaError) as caught:
        images.decode(data, config)
    assert "0x" not in caught.value.description
    assert "/" not in caught.value.description.replace("PNG/", "")
    return caught.value


@pytest.mark.parametrize("image_format", ["PNG", "JPEG", "WEBP", "GIF"])
def test_plain_pictures_are_what_pillow_makes_of_them(image_format: str):
    data = encoded(GRADIENT, image_format)
    assert (pixels(data) == np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1), (3, 1), (2, 2), (1, 200)])
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "I;16", "CMYK"])
def test_all_modes_and_tiny_sizes_decode(mode: str, size: tuple[int, int]):
    if mode == "CMYK":
        data = encoded(Image.new("CMYK", size, (0, 0, 0, 255)), "JPEG")
    elif mode == "PA":
        data = encoded(Image.new("P", size, 0), "PNG", transparency=0)
    else:
        data = encoded(Image.new(mode, size), "PNG")
    transparent = mode in ("LA", "RGBA", "PA")
    assert pixels(data).shape == (size[1], size[0], 3)
    assert (pixels(data) == (255 if transparent else 0)).all()


def test_transparency_shows_white_behind_it():
    half = Image.new("RGBA", (2, 1), (255, 0, 0, 255))
    half.putpixel((1, 0), (255, 0, 0, 0))
    assert pixels(encoded(half, "PNG")).tolist() == [[[255, 0, 0], [255, 255, 255]]]
    assert pixels(encoded(half, "WEBP", lossless=True)).tolist() == [[[255, 0, 0], [255, 255, 255]]]
    assert pixels(encoded(Image.new("LA", (1, 1), (0, 51)), "PNG")).tolist() == [[[204] * 3]]


def test_a_palette_or_grey_with_one_transparent_value_shows_it_white():
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putpixel((1, 0), 1)
    for image_format in ("PNG", "GIF"):
        assert pixels(encoded(palette, image_format, transparency=1)).tolist() == [[[10, 20, 30], [255, 255, 255]]]
    grey = Image.fromarray(np.array([[7, 9]], np.uint8))
    assert pixels(encoded(grey, "PNG", transparency=9)).tolist() == [[[7] * 3, [255] * 3]]


def test_16_bit_grey_is_scaled_not_clipped():
    grey = Image.fromarray(np.array([[0, 257, 32768, 65535]], np.uint16))
    assert pixels(encoded(grey, "PNG")).tolist() == [[[0] * 3, [1] * 3, [128] * 3, [255] * 3]]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_exif_orientation_is_applied(orientation: int):
    exif = Image.Exif()
    exif[0x0112] = orientation
    undo = {
        6: Image.Transpose.ROTATE_90,
        8: Image.Transpose.ROTATE_270,
        **{k: v for k, v in images._TRANSPOSITIONS.items() if k not in (6, 8)},
    }
    stored = GRADIENT.transpose(undo[orientation]) if orientation > 1 else GRADIENT
    assert (pixels(encoded(stored, "PNG", exif=exif)) == np.asarray(GRADIENT)).all()


def test_the_first_frame_of_an_animation_is_taken():
    frames = [Image.new("RGB", (8, 8), color) for color in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    for image_format in ("GIF", "WEBP", "PNG"):
        data = encoded(
            frames[0],
            image_format,
            save_all=True,
            append_images=frames[1:],
            **({"lossless": True} if image_format == "WEBP" else {}),
        )
        assert (pixels(data) == [255, 0, 0]).all()


@pytest.mark.parametrize("image_format", ["PNG", "JPEG", "WEBP", "GIF"])
def test_damaged_files_are_refused_in_words(image_format: str):
    data = encoded(GRADIENT, image_format)
    rng = random.Random(1)
    for length in (0, 1, 4, 11, 12, 16, 20, 24, 30, len(data) // 2, len(data) * 2 // 3):
        assert refusal(data[:length]).reason is Reason.IMAGE_UNREADABLE
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        with contextlib.suppress(MediaError):  # whatever else is raised fails the test
            images.decode(bytes(damaged), CONFIG)


@pytest.mark.parametrize(
    ("data", "reason", "word"),
    [
        (b"garbage" * 9, Reason.IMAGE_UNREADABLE, "no image"),
        (b"", Reason.IMAGE_UNREADABLE, "no image"),
        (encoded(GRADIENT, "TIFF"), Reason.IMAGE_FORMAT_UNSUPPORTED, "TIFF"),
        (encoded(GRADIENT, "BMP"), Reason.IMAGE_FORMAT_UNSUPPORTED, "BMP"),
        (encoded(GRADIENT, "JPEG2000"), Reason.IMAGE_FORMAT_UNSUPPORTED, "JPEG 2000"),
        (encoded(GRADIENT, "PDF"), Reason.IMAGE_FORMAT_UNSUPPORTED, "PDF"),
        (encoded(GRADIENT, "EPS"), Reason.IMAGE_FORMAT_UNSUPPORTED, "PostScript"),
        (b"  <svg xmlns='http://www.w3.org/2000/svg'/>", Reason.IMAGE_FORMAT_UNSUPPORTED, "SVG"),
        (b"8BPS\0\1" + bytes(40), Reason.IMAGE_FORMAT_UNSUPPORTED, "PSD"),
        (b"\0\0\0\x1cftypavif" + bytes(40), Reason.IMAGE_FORMAT_UNSUPPORTED, "AVIF"),
    ],
)
def test_other_formats_are_refused_by_name(data: bytes, reason: Reason, word: str):
    error = refusal(data)
    assert error.reason is reason
    assert word in error.description


def png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def webp_header(width: int, height: int) -> bytes:
    body = bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF\xff\0\0\0WEBPVP8X\x0a\0\0\0" + body + bytes(30)


@pytest.mark.parametrize(
    ("data", "numbers"),
    [
        (png_header(50_000, 50_000), ("89478485", "50000000")),
        (png_header(12_000, 12_000), ("89478485", "50000000")),
        (png_header(9_000, 9_000), ("9000 x 9000", "50000000")),
        (png_header(17_000, 100), ("17000 x 100", "16384")),
        (png_header(2_000, 9), ("2000 x 9", "200")),
        (png_header(9, 2_000), ("9 x 2000", "200")),
        (webp_header(1 << 24, 1 << 7), ("16777216 x 128", "16384")),
        (webp_header(16_000, 16_000), ("16000 x 16000", "50000000")),
    ],
)
def test_sizes_are_judged_from_the_header(data: bytes, numbers: tuple[str, str]):
    with pytest.raises(MediaError) as caught:
        images.inspect(data, CONFIG)
    assert caught.value.reason is Reason.IMAGE_TOO_LARGE
    assert all(number in caught.value.description for number in numbers)


def test_the_size_of_every_kind_of_webp_is_read():
    alpha = GRADIENT.convert("RGBA")
    alpha.putalpha(128)
    for image, options in ((GRADIENT, {}), (GRADIENT, {"lossless": True}), (alpha, {})):
        assert images._webp_size(encoded(image, "WEBP", **options)) == GRADIENT.size


def test_pillows_own_limit_is_an_error_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    assert refusal(encoded(GRADIENT, "PNG")).reason is Reason.IMAGE_TOO_LARGE


def test_a_picture_can_be_used_after_its_file_was_closed():
    for image_format in ("PNG", "JPEG", "WEBP", "GIF"):
        image = images.decode(encoded(GRADIENT, image_format), CONFIG)
        assert image.resize((4, 3)).size == (4, 3)
        assert image.copy().getpixel((0, 0)) == image.getpixel((0, 0))


def test_corrupt_exif_is_refused_in_words_or_overlooked():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(GRADIENT, "JPEG", exif=exif)
    start = data.index(b"Exif\0\0") + 6
    for offset in range(24):
        damaged = bytearray(data)
        damaged[start + offset] ^= 0xFF
        with contextlib.suppress(MediaError):  # whatever else is raised fails the test
            assert images.decode(bytes(damaged), CONFIG).size in (GRADIENT.size, GRADIENT.size[::-1])
