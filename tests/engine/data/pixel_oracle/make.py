"""Writes the pixel oracle beside itself: encoded files, and the pixels that a person would see of each.

Run once; what it wrote is data. Where a format loses nothing, the expected pixels are the numbers that the file was
made from; where it does (JPEG, lossy WebP), they are what Pillow's documented `Image.open` gives, unconverted. numpy
does the rest: orientation, transparency over white, inks to colours. Nothing here knows how Fanlight decodes.

    python tests/engine/data/pixel_oracle/make.py
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
HEIGHT, WIDTH = 9, 12
ORIENTATION = 0x0112

Pixels = np.ndarray
RNG = np.random.default_rng(20_260)

ORIENTED: dict[int, Callable[[Pixels], Pixels]] = {
    1: lambda pixels: pixels,
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: np.rot90(pixels, 2).swapaxes(0, 1),
    8: lambda pixels: np.rot90(pixels),
}
"""What has to be done to the stored pixels, by the EXIF standard: where row 0 and column 0 belong."""


def over_white(colours: Pixels, alpha: Pixels) -> Pixels:
    """Colours [h, w, 3] with alpha [h, w], 0 to 255, as they look on white; rounded to the nearest."""
    share = alpha[..., None].astype(np.float64) / 255
    return np.rint(colours * share + 255 * (1 - share)).astype(np.uint8)


def grey(values: Pixels) -> Pixels:
    """One channel as three."""
    return np.repeat(values[..., None], 3, axis=-1).astype(np.uint8)


def random(*shape: int, below: int = 256) -> Pixels:
    """Seeded noise, in which every mistake of orientation or order shows."""
    return RNG.integers(0, below, shape).astype(np.uint8)


def smooth(height: int, width: int) -> Pixels:
    """Colours that lossy formats keep well: four patches in four colours."""
    quarters = np.array([[[220, 40, 40], [40, 200, 60]], [[40, 60, 220], [230, 220, 70]]], np.uint8)
    return quarters.repeat(-(-height // 2), axis=0).repeat(-(-width // 2), axis=1)[:height, :width]


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The image as a file."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def stored(data: bytes) -> Pixels:
    """What is in a file, unconverted."""
    return np.array(Image.open(io.BytesIO(data)))


def exif(orientation: int) -> Image.Exif:
    """EXIF with an orientation."""
    made = Image.Exif()
    made[ORIENTATION] = orientation
    return made


def png(height: int, width: int, depth: int, colour: int, packed: list[bytes], *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG by hand, for what Pillow does not write: rows of packed samples, and more chunks before them."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in packed)))
    extra = b"".join(chunk(kind, content) for kind, content in chunks)
    return b"\x89PNG\r\n\x1a\n" + header + extra + body + chunk(b"IEND", b"")


def orientations() -> dict[str, tuple[bytes, Pixels]]:
    """All eight as JPEG; one each as PNG and WebP, which carry EXIF too."""
    image = Image.fromarray(smooth(HEIGHT, WIDTH))
    cases = {}
    for orientation, turn in ORIENTED.items():
        data = encoded(image, "JPEG", quality=95, subsampling=0, exif=exif(orientation))
        cases[f"exif_{orientation}.jpg"] = (data, turn(stored(data)))
    noise = random(HEIGHT, WIDTH, 3)
    cases["exif_6.png"] = (encoded(Image.fromarray(noise), "PNG", exif=exif(6)), ORIENTED[6](noise))
    webp = encoded(Image.fromarray(noise), "WEBP", lossless=True, exif=exif(7))
    cases["exif_7.webp"] = (webp, ORIENTED[7](noise))
    return cases


def palettes() -> dict[str, tuple[bytes, Pixels]]:
    """Palette pictures: opaque, with one transparent colour, with an alpha for each colour."""
    palette, indices = random(16, 3), random(HEIGHT, WIDTH, below=16)
    image = Image.fromarray(indices).convert("L")
    image.putpalette(palette.tobytes())
    colours = palette[indices]
    alphas = random(16)
    opaque_but_five = np.where(indices == 5, 0, 255)
    return {
        "p.png": (encoded(image, "PNG"), colours),
        "p_one_transparent.png": (encoded(image, "PNG", transparency=5), over_white(colours, opaque_but_five)),
        "p_alphas.png": (encoded(image, "PNG", transparency=alphas.tobytes()), over_white(colours, alphas[indices])),
        "p.gif": (encoded(image, "GIF"), colours),
        "p_transparent.gif": (encoded(image, "GIF", transparency=5), over_white(colours, opaque_but_five)),
    }


def greys() -> dict[str, tuple[bytes, Pixels]]:
    """One channel at 1, 2, 8 and 16 bits, with and without alpha or one transparent grey."""
    eight, alpha = random(HEIGHT, WIDTH), random(HEIGHT, WIDTH)
    bits = RNG.integers(0, 2, (HEIGHT, WIDTH)).astype(bool)
    sixteen = RNG.integers(0, 65536, (HEIGHT, WIDTH)).astype(np.uint16)
    sixteen[0, :4] = (0, 255, 256, 65535)
    scaled = np.rint(sixteen / 257).astype(np.uint8)
    two = np.array([[0, 1, 2, 3], [3, 2, 1, 0]])
    packed_two = [bytes([0b00011011]), bytes([0b11100100])]
    packed_bits = [np.packbits(row).tobytes() for row in bits]
    hidden = int(eight[0, 0])
    big = sixteen.astype(">u2")
    return {
        "l.png": (encoded(Image.fromarray(eight), "PNG"), grey(eight)),
        "l_transparent.png": (
            encoded(Image.fromarray(eight), "PNG", transparency=hidden),
            grey(np.where(eight == hidden, 255, eight)),
        ),
        "la.png": (
            encoded(Image.fromarray(np.dstack((eight, alpha)), "LA"), "PNG"),
            over_white(grey(eight), alpha),
        ),
        "1.png": (encoded(Image.fromarray(bits), "PNG"), grey(bits * 255)),
        "1_transparent.png": (
            png(HEIGHT, WIDTH, 1, 0, packed_bits, (b"tRNS", struct.pack(">H", 0))),
            np.full((HEIGHT, WIDTH, 3), 255, np.uint8),
        ),
        "l2.png": (png(2, 4, 2, 0, packed_two), grey(two * 85)),
        "l2_transparent.png": (
            png(2, 4, 2, 0, packed_two, (b"tRNS", struct.pack(">H", 1))),
            grey(np.where(two == 1, 255, two * 85)),
        ),
        "i16.png": (encoded(Image.fromarray(sixteen), "PNG"), grey(scaled)),
        "i16_transparent.png": (
            png(HEIGHT, WIDTH, 16, 0, [row.tobytes() for row in big], (b"tRNS", struct.pack(">H", int(sixteen[2, 3])))),
            grey(np.where(sixteen == sixteen[2, 3], 255, scaled)),
        ),
        "l.jpg": (data := encoded(Image.fromarray(eight), "JPEG", quality=90), grey(stored(data))),
    }


def colours() -> dict[str, tuple[bytes, Pixels]]:
    """Three channels and more: alpha, one transparent colour, 16 bits, inks."""
    rgb, alpha = random(HEIGHT, WIDTH, 3), random(HEIGHT, WIDTH)
    alpha[0] = 0  # hidden colours must not shine through
    alpha[1] = 255
    rgba = Image.fromarray(np.dstack((rgb, alpha)))
    hidden = struct.pack(">HHH", *rgb[4, 4].tolist())
    deep = RNG.integers(0, 65536, (3, 4, 3)).astype(np.uint16)
    deep[0, 0], deep[0, 1] = (1, 2, 3), (0x0100, 0x0200, 0x0300)
    deep_rows = [row.astype(">u2").tobytes() for row in deep]
    white_at = (deep >> 8 == deep[2, 3] >> 8).all(axis=-1)
    photo = encoded(Image.fromarray(smooth(HEIGHT, WIDTH)), "JPEG", quality=90)
    lossy = encoded(Image.fromarray(smooth(16, 16)), "WEBP", quality=80)
    return {
        "rgb.jpg": (photo, stored(photo)),
        "rgb.webp": (lossy, stored(lossy)),
        "rgba.png": (encoded(rgba, "PNG"), over_white(rgb, alpha)),
        "rgba.webp": (encoded(rgba, "WEBP", lossless=True, exact=True), over_white(rgb, alpha)),
        "rgb_transparent.png": (
            png(HEIGHT, WIDTH, 8, 2, [row.tobytes() for row in rgb], (b"tRNS", hidden)),
            np.where((rgb == rgb[4, 4]).all(axis=-1)[..., None], 255, rgb).astype(np.uint8),
        ),
        "rgb16_transparent.png": (
            png(3, 4, 16, 2, deep_rows, (b"tRNS", struct.pack(">HHH", *deep[2, 3].tolist()))),
            np.where(white_at[..., None], 255, deep >> 8).astype(np.uint8),
        ),
        **inks(),
    }


def inks() -> dict[str, tuple[bytes, Pixels]]:
    """CMYK JPEG as image editors write it, inverted and so marked; without the mark viewers invert it all the same."""
    four = np.array([[[0, 180, 180, 20], [200, 0, 160, 40]], [[210, 150, 0, 10], [0, 10, 190, 0]]], np.uint8)
    wanted = four.repeat(8, axis=0).repeat(8, axis=1)
    marked = encoded(Image.fromarray(wanted, "CMYK"), "JPEG", quality=100, subsampling=0)
    kept = stored(marked)
    assert np.abs(kept.astype(int) - wanted).max() <= 3, "the file must hold the inks that it was made from"
    marker = marked.index(b"\xff\xee")
    length = int.from_bytes(marked[marker + 2 : marker + 4], "big") + 2
    unmarked = marked[:marker] + marked[marker + length :]
    return {"cmyk.jpg": (marked, printed(kept)), "cmyk_unmarked.jpg": (unmarked, printed(kept))}


def printed(four: Pixels) -> Pixels:
    """Inks [h, w, 4] on white paper: each takes its share of what the black leaves."""
    light = 255 - four.astype(np.float64)
    return np.rint(light[..., :3] * light[..., 3:] / 255).astype(np.uint8)


def animations() -> dict[str, tuple[bytes, Pixels]]:
    """The first frame is what counts, whatever follows, and whatever of its screen it covers."""
    palette = random(8, 3)
    layers = [random(HEIGHT, WIDTH, below=8) for _ in range(3)]
    frames = []
    for indices in layers:
        frame = Image.fromarray(indices)
        frame.putpalette(palette.tobytes())
        frames.append(frame)
    first, later = frames[0], frames[1:]
    shown = palette[layers[0]]
    moving = {"save_all": True, "append_images": later, "duration": 40}
    cases = {
        "animated.gif": (encoded(first, "GIF", **moving), shown),
        "animated_transparent.gif": (
            encoded(first, "GIF", transparency=3, disposal=2, **moving),
            over_white(shown, np.where(layers[0] == 3, 0, 255)),
        ),
    }
    noise = [random(HEIGHT, WIDTH, 4) for _ in range(3)]
    pictures = [Image.fromarray(one) for one in noise]
    webp = encoded(
        pictures[0], "WEBP", save_all=True, append_images=pictures[1:], duration=40, lossless=True, exact=True
    )
    cases["animated.webp"] = (webp, over_white(noise[0][..., :3], noise[0][..., 3]))
    solid = [Image.fromarray(one[..., :3]) for one in noise]
    apng = encoded(solid[0], "PNG", save_all=True, append_images=solid[1:], duration=40)
    cases["animated.png"] = (apng, noise[0][..., :3])
    cases["smaller_than_screen.gif"] = smaller_than_screen(first, shown)
    return cases


def smaller_than_screen(frame: Image.Image, shown: Pixels) -> tuple[bytes, Pixels]:
    """A GIF whose only frame leaves a margin of its screen free: 2 and 1 pixels before it, 3 and 4 behind."""
    data = bytearray(encoded(frame, "GIF"))
    palette_bytes = 3 << ((data[10] & 7) + 1) if data[10] & 128 else 0
    position = 13 + palette_bytes
    while data[position] == 0x21:  # extensions: label, then blocks that begin with their length
        position += 2
        while data[position]:
            position += data[position] + 1
        position += 1
    assert data[position] == 0x2C, "an image must follow"
    data[6:10] = struct.pack("<HH", WIDTH + 5, HEIGHT + 5)
    data[position + 1 : position + 5] = struct.pack("<HH", 2, 1)
    screen = np.full((HEIGHT + 5, WIDTH + 5, 3), 255, np.uint8)
    screen[1 : 1 + HEIGHT, 2 : 2 + WIDTH] = shown
    return bytes(data), screen


def odd_sizes() -> dict[str, tuple[bytes, Pixels]]:
    """Sizes at which a channel axis can be mistaken for a side."""
    cases = {}
    for width, height in ((1, 1), (2, 2), (3, 1), (1, 3), (1, 17), (17, 1), (4, 3), (3, 4)):
        noise = random(height, width, 3)
        cases[f"size_{width}x{height}.png"] = (encoded(Image.fromarray(noise), "PNG"), noise)
    return cases


def main() -> None:
    """Write every file and all expected pixels."""
    cases = {**orientations(), **palettes(), **greys(), **colours(), **animations(), **odd_sizes()}
    for name, (data, _) in cases.items():
        (HERE / name).write_bytes(data)
    expected: dict[str, Any] = {name: np.ascontiguousarray(pixels, np.uint8) for name, (_, pixels) in cases.items()}
    np.savez_compressed(HERE / "expected.npz", **expected)
    print(f"{len(cases)} pictures, {sum(file.stat().st_size for file in HERE.iterdir() if file.is_file())} bytes")


if __name__ == "__main__":
    main()
