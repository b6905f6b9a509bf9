"""What a caller asks of a picture's size -> bounds of its area, for encoders that scale pictures to a grid.

Knows areas and counts only. `cell` is the area that one embedding covers, in pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.processing import MediaError
from fanlight_engine.request import Detail, PixelOptions


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
        )
    low = min(own.low, high) if options.min_pixels is None else options.min_pixels
    if low > high:
        raise MediaError(
            Reason.IMAGE_OPTION_INVALID,
            f"min_pixels is {low}, at most {high} pixels can be had with {_asked(options)}; lower min_pixels",
        )
    return PixelBounds(low, high)


def refuse_pixel_options(options: PixelOptions, why: str) -> None:
    """Raise MediaError when bounds in pixels are asked for where none can be set."""
    for name in ("min_pixels", "max_pixels"):
        if getattr(options, name) is not None:
            raise MediaError(Reason.IMAGE_OPTION_INVALID, f"{name} is set, but {why}; leave it out")


def refuse_too_many_rows(rows: int, options: PixelOptions) -> None:
    """Raise MediaError when a medium takes more embeddings than max_tokens allows."""
    if options.max_tokens is not None and rows > options.max_tokens:
        raise MediaError(
            Reason.IMAGE_OPTION_INVALID,
            f"it takes {rows} embeddings, max_tokens allows {options.max_tokens}, and it cannot be scaled further "
            "down; raise max_tokens or send another",
        )


def _asked(options: PixelOptions) -> str:
    asked = [f"{name} {getattr(options, name)}" for name in ("max_pixels", "max_tokens") if getattr(options, name)]
    return " and ".join([*asked, *(["low detail"] if options.detail is Detail.LOW else [])]) or "this model"
