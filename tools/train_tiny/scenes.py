"""Pictures of simple shapes and handwritten digits, drawn from a seed, with the facts that questions are asked about.

Knows how scenes look. Does not know any question, tokens or models. Needs Pillow, NumPy and, for digits, scikit-learn.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from tools.train_tiny.digits import digit_picture

SHAPES = ("circle", "square", "triangle", "star", "cross")
DIGIT = "digit"
COLOURS = {
    "red": (215, 35, 35),
    "orange": (245, 135, 15),
    "yellow": (240, 220, 30),
    "green": (30, 150, 50),
    "blue": (35, 70, 215),
    "purple": (140, 45, 165),
}
REGIONS = (
    *("at the top left", "at the top", "at the top right"),
    *("on the left", "in the centre", "on the right"),
    *("at the bottom left", "at the bottom", "at the bottom right"),
)
SHORTEST_SIDE = 48
LONGEST_SIDE = 160
LARGEST_COUNT = 5

Size = tuple[int, int]  # width, height in pixels


@dataclass(frozen=True)
class Thing:
    """One shape or digit in a scene. `centre` and `radius` are in pixels; `region` is one of REGIONS, by thirds."""

    shape: str
    colour: str
    centre: tuple[float, float]
    radius: float
    region: str
    digit: int | None = None


@dataclass(frozen=True)
class Scene:
    """A picture and what is in it. `layout` is single, count, pair or digit."""

    image: Image.Image
    layout: str
    things: tuple[Thing, ...]


def random_size(rng: random.Random) -> Size:
    """Width and height of 48 to 160 pixels, smaller ones more often, no side more than 2.5 times the other."""
    while True:
        width, height = (round(48 * (160 / 48) ** (rng.random() ** 1.3)) for _ in range(2))
        if max(width, height) <= 2.5 * min(width, height):
            return width, height


def draw_scene(rng: random.Random, layout: str, size: Size, *, held_out: bool) -> Scene:
    """A scene of one layout. `held_out` chooses which split its handwritten digit comes from."""
    if layout == "digit":
        return _digit_scene(rng, size, held_out)
    things = {"single": _single_thing, "count": _equal_things, "pair": _two_things}[layout](rng, size)
    return Scene(_paint(rng, size, things), layout, things)


def region_of(centre: tuple[float, float], size: Size) -> str:
    """The ninth of the picture that a point lies in."""
    column, row = (min(2, int(3 * at / extent)) for at, extent in zip(centre, size, strict=True))
    return REGIONS[3 * row + column]


def _single_thing(rng: random.Random, size: Size) -> tuple[Thing, ...]:
    radius = rng.uniform(8.0, max(9.0, 0.24 * min(size)))
    return (_thing(rng.choice(SHAPES), rng.choice(list(COLOURS)), _clear_place(rng, size, radius), radius, size),)


def _two_things(rng: random.Random, size: Size) -> tuple[Thing, ...]:
    """Two things of different shape and colour, the first to the left of the second."""
    shapes, colours = rng.sample(SHAPES, 2), rng.sample(list(COLOURS), 2)
    radius = rng.uniform(7.5, max(8.0, 0.18 * min(size)))
    columns = sorted(rng.sample(range(3), 2)) if size[0] > 5.5 * radius else [0, 2]
    places = [_clear_place(rng, size, radius, column=column) for column in columns]
    return tuple(_thing(*what, radius, size) for what in zip(shapes, colours, places, strict=True))


def _equal_things(rng: random.Random, size: Size) -> tuple[Thing, ...]:
    """One to five things of the same shape, colour and size that do not touch."""
    count = rng.randint(1, LARGEST_COUNT)
    if count == 1:
        return _single_thing(rng, size)  # so that one thing is described alike wherever it comes from
    shape, colour = rng.choice(SHAPES), rng.choice(list(COLOURS))
    radius = rng.uniform(7.0, min(18.0, max(8.0, math.sqrt(size[0] * size[1] / (9.0 * count)))))
    while True:
        centres = _scatter(rng, size, radius, count)
        if centres:
            return tuple(_thing(shape, colour, centre, radius, size) for centre in centres)
        radius = max(6.0, 0.93 * radius)


def _scatter(rng: random.Random, size: Size, radius: float, count: int) -> list[tuple[float, float]]:
    """`count` centres at least 2.6 radii apart (squares reach 1.25); nothing when sixty throws find too few."""
    centres: list[tuple[float, float]] = []
    for _ in range(60):
        new = (rng.uniform(radius + 1, size[0] - radius - 1), rng.uniform(radius + 1, size[1] - radius - 1))
        if all(math.dist(new, old) >= 2.6 * radius for old in centres):
            centres.append(new)
            if len(centres) == count:
                return centres
    return []


def _clear_place(rng: random.Random, size: Size, radius: float, column: int | None = None) -> tuple[float, float]:
    """A centre well inside one ninth of the picture, so that its region is never a matter of taste."""
    column = rng.randrange(3) if column is None else column
    x, y = (_along(rng, third, extent, radius) for third, extent in zip((column, rng.randrange(3)), size, strict=True))
    return x, y


def _along(rng: random.Random, third: int, extent: int, radius: float) -> float:
    near_edge = radius + 1.0
    if third == 1:
        return rng.uniform(0.43 * extent, 0.57 * extent)
    at = rng.uniform(near_edge, max(near_edge + 0.5, 0.27 * extent))
    return at if third == 0 else extent - at


def _thing(shape: str, colour: str, centre: tuple[float, float], radius: float, size: Size) -> Thing:
    return Thing(shape, colour, centre, radius, region_of(centre, size))


def _digit_scene(rng: random.Random, size: Size, held_out: bool) -> Scene:
    side = rng.uniform(28.0, 0.95 * min(size))
    ink, digit = digit_picture(rng, round(side), held_out=held_out)
    centre = tuple(rng.uniform(side / 2, extent - side / 2) for extent in size)
    corner = tuple(round(at - side / 2) for at in centre)
    colour = rng.choice(list(COLOURS))
    background = _background(rng)
    canvas = Image.new("RGB", size, background)
    canvas.paste(Image.new("RGB", ink.size, _shade(rng, colour)), (corner[0], corner[1]), ink)
    thing = Thing(DIGIT, colour, (centre[0], centre[1]), side / 2, region_of((centre[0], centre[1]), size), digit)
    return Scene(_with_grain(rng, canvas), "digit", (thing,))


def _paint(rng: random.Random, size: Size, things: tuple[Thing, ...]) -> Image.Image:
    """Draws at three times the size and shrinks, which gives smooth edges."""
    scale = 3
    background = _background(rng)
    canvas = Image.new("RGB", (size[0] * scale, size[1] * scale), background)
    brush = ImageDraw.Draw(canvas)
    inks = {thing.colour: _shade(rng, thing.colour) for thing in things}
    for thing in things:
        x, y = (at * scale for at in thing.centre)
        _OUTLINES[thing.shape](brush, x, y, thing.radius * scale, inks[thing.colour])
    return _with_grain(rng, canvas.resize(size, Image.Resampling.BOX))


def _background(rng: random.Random) -> tuple[int, int, int]:
    """A light or a dark grey with a faint tint, so that no colour of COLOURS drowns in it."""
    level = rng.randint(215, 250) if rng.random() < 0.6 else rng.randint(5, 45)
    red, green, blue = (max(0, min(255, level + rng.randint(-5, 5))) for _ in range(3))
    return red, green, blue


def _shade(rng: random.Random, colour: str) -> tuple[int, int, int]:
    red, green, blue = (max(0, min(255, value + rng.randint(-14, 14))) for value in COLOURS[colour])
    return red, green, blue


def _with_grain(rng: random.Random, image: Image.Image) -> Image.Image:
    """Adds up to four levels of noise to every second picture."""
    strength = rng.choice((0, 0, 2, 4))
    if not strength:
        return image
    noise = np.random.default_rng(rng.getrandbits(32)).integers(-strength, strength + 1, (*image.size[::-1], 3))
    return Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))


Ink = tuple[int, int, int]
Outline = Callable[[ImageDraw.ImageDraw, float, float, float, Ink], None]


def _circle(brush: ImageDraw.ImageDraw, x: float, y: float, radius: float, ink: Ink) -> None:
    brush.ellipse((x - radius, y - radius, x + radius, y + radius), fill=ink)


def _square(brush: ImageDraw.ImageDraw, x: float, y: float, radius: float, ink: Ink) -> None:
    half = 0.88 * radius
    brush.rectangle((x - half, y - half, x + half, y + half), fill=ink)


def _triangle(brush: ImageDraw.ImageDraw, x: float, y: float, radius: float, ink: Ink) -> None:
    brush.polygon([(x, y - radius), (x + radius, y + 0.8 * radius), (x - radius, y + 0.8 * radius)], fill=ink)


def _star(brush: ImageDraw.ImageDraw, x: float, y: float, radius: float, ink: Ink) -> None:
    """Five points; the inner corners lie at 0.4 of the radius."""
    corners = []
    for corner in range(10):
        reach, angle = radius * (0.4 if corner % 2 else 1.05), math.pi * (corner / 5 - 0.5)
        corners.append((x + reach * math.cos(angle), y + reach * math.sin(angle)))
    brush.polygon(corners, fill=ink)


def _cross(brush: ImageDraw.ImageDraw, x: float, y: float, radius: float, ink: Ink) -> None:
    """A plus sign."""
    arm = 0.28 * radius
    brush.rectangle((x - radius, y - arm, x + radius, y + arm), fill=ink)
    brush.rectangle((x - arm, y - radius, x + arm, y + radius), fill=ink)


_OUTLINES: dict[str, Outline] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
}
