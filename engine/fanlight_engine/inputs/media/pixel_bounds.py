"""What a caller asks of a picture's size -> bounds of its area, for encoders that scale pictures to a grid.

Knows areas and counts only. `cell` is the area that one embedding covers, in pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.processing import MediaError
from fanlight_engine.request import Detail, PixelOptions

_MOST_TRIES = 6


@dataclass(frozen=True, slots=True)
class PixelBounds:
    """Area of one picture or frame after resizing, in pixels, both ends included."""

    low: int
    high: int


def bounds_for(
    options: PixelOptions, own: PixelBounds, cell: int, low_detail_tokens: int, steps: int = 1
) -> PixelBounds:
    """The checkpoint's `own` bounds, narrowed as asked; `steps` grids of a clip share max_tokens.

    Raises MediaError where the request contradicts itself, or wants what no size can give.
    """
    high = own.high
    if options.max_pixels is not None:
        high = min(high, options.max_pixels)
    if options.max_tokens is not None:
        high = min(high, options.max_tokens // steps * cell)
    if options.detail is Detail.LOW:
        high = min(high, low_detail_tokens * cell)
    if high < cell:
        raise MediaError(
            Reason.IMAGE_OPTION_INVALID,
            f"{_asked(options)} leaves less than one embedding of {cell} pixels"
            + (f" for each of {steps} steps in time" if steps > 1 else "")
            + "; ask for more",
            _binding_field(options, cell, steps),
        )
    low = min(own.low, high) if options.min_pixels is None else max(own.low, options.min_pixels)
    if options.detail is Detail.HIGH:
        low = high
    if low > high:
        raise MediaError(
            Reason.IMAGE_OPTION_INVALID,
            f"min_pixels is {options.min_pixels}, at most {high} pixels can be had with {_asked(options)}; lower "
            "min_pixels",
            ".min_pixels",
        )
    return PixelBounds(low, high)


def refuse_pixel_options(options: PixelOptions, why: str) -> None:
    """Raise MediaError when bounds in pixels are asked for where none can be set."""
    for name in ("min_pixels", "max_pixels"):
        if getattr(options, name) is not None:
            raise MediaError(Reason.IMAGE_OPTION_INVALID, f"{name} is set, but {why}; leave it out", f".{name}")


def refuse_too_many_rows(rows: int, options: PixelOptions) -> None:
    """Raise MediaError when a medium takes more embeddings than max_tokens allows."""
    if options.max_tokens is not None and rows > options.max_tokens:
        raise MediaError(
            Reason.IMAGE_OPTION_INVALID,
            f"it takes {rows} embeddings, max_tokens allows {options.max_tokens}, and it cannot be scaled further "
            "down; raise max_tokens or send another",
            ".max_tokens",
        )


def fitting_bounds(
    bounds: PixelBounds, area_within: Callable[[PixelBounds], int], options: PixelOptions
) -> PixelBounds:
    """What to ask of a processor that rounds past its bounds, so that the area stays within these.

    `area_within` tells the area that the processor makes of bounds. Raises MediaError where no bounds help, because the
    picture is too long and thin for them; low detail and the checkpoint's own bounds are then left as they are.
    """
    tried, area = bounds, area_within(bounds)
    for _ in range(_MOST_TRIES):
        high = min(tried.high - 1, int(tried.high * bounds.high / area))
        if area <= bounds.high or high < 1:
            break
        tried = PixelBounds(min(tried.low, high), high)
        area = area_within(tried)
    is_low_enough, is_high_enough = area <= bounds.high, area >= bounds.low
    if not is_low_enough and (options.max_pixels is not None or options.max_tokens is not None):
        raise MediaError(
            Reason.IMAGE_OPTION_INVALID,
            f"the smallest size of its shape has {area} pixels, {_asked(options)} allows {bounds.high}; allow more, or "
            "crop it",
            ".max_pixels" if options.max_pixels is not None else ".max_tokens",
        )
    if not is_high_enough and options.min_pixels is not None:
        raise MediaError(
            Reason.IMAGE_OPTION_INVALID,
            f"no size of its shape has between {bounds.low} and {bounds.high} pixels, the closest has {area}; lower "
            "min_pixels or raise max_pixels",
            ".min_pixels",
        )
    return tried if is_low_enough else bounds


def _binding_field(options: PixelOptions, cell: int, steps: int) -> str:
    """Which of the options leaves the least."""
    by_tokens = None if options.max_tokens is None else options.max_tokens // steps * cell
    if by_tokens is not None and (options.max_pixels is None or by_tokens <= options.max_pixels):
        return ".max_tokens"
    return ".max_pixels" if options.max_pixels is not None else ".detail"


def _asked(options: PixelOptions) -> str:
    asked = [f"{name} {getattr(options, name)}" for name in ("max_pixels", "max_tokens") if getattr(options, name)]
    return " and ".join([*asked, *(["low detail"] if options.detail is Detail.LOW else [])]) or "this model"
