"""Pictures as encoded files: drawn scenes by number, odd but fine ones, and a very large photograph."""

from __future__ import annotations

import io
import random

import numpy as np
from PIL import Image

from tools.train_tiny.scenes import Scene, draw_scene, random_size

LAYOUTS = ("single", "count", "pair")


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> bytes:
    """The image as a file."""
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def scene(number: int) -> Scene:
    """The scene of a number: always the same one, and another for every other number."""
    rng = random.Random(f"e2e/{number}")
    return draw_scene(rng, LAYOUTS[number % len(LAYOUTS)], random_size(rng), held_out=True)


def picture(number: int) -> bytes:
    """The scene of a number as a PNG file."""
    return encoded(scene(number).image)


def pictures(first: int, count: int) -> list[bytes]:
    """Pictures of consecutive numbers."""
    return [picture(first + offset) for offset in range(count)]


def large_picture(number: int, side: int = 160) -> bytes:
    """A picture that no scene equals, of as many pixels as the embedded model takes in without shrinking it."""
    noise = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return encoded(Image.fromarray(noise))


def photograph_of_20_megapixels(number: int) -> bytes:
    """A JPEG of 5,500 x 3,640 pixels with detail everywhere, as a camera writes it."""
    noise = np.random.default_rng(number).integers(0, 256, (910, 1375, 3), dtype=np.uint8)
    return encoded(Image.fromarray(noise).resize((5500, 3640), Image.Resampling.BILINEAR), "JPEG", quality=85)


def odd_but_fine_pictures() -> dict[str, bytes]:
    """Smallest sizes, every mode and every orientation: each is a picture, and must be taken as one."""
    base = scene(0).image.resize((48, 48))
    found = {f"{width}x{height}": encoded(Image.new("RGB", (width, height), "red")) for width, height in ODD_SIZES}
    for mode in ("1", "L", "LA", "P", "PA", "I;16", "CMYK", "RGBA"):
        found[f"mode {mode}"] = encoded(_in_mode(base, mode), "JPEG" if mode == "CMYK" else "PNG")
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        found[f"EXIF {orientation}"] = encoded(base, "JPEG", exif=exif)
    return found | {format: encoded(base, format) for format in ("WebP", "GIF")}


ODD_SIZES = ((1, 1), (1, 150), (150, 1), (3, 1), (2, 2))


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    if mode == "I;16":
        return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    if mode == "PA":
        palette = image.convert("P")
        palette.info["transparency"] = 0  # PNG writes a palette with alpha as a palette and its transparency
        return palette
    return image.convert("L").convert(mode) if mode == "LA" else image.convert(mode)
