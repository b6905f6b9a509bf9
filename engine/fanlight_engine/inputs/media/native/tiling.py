"""Size of a picture -> columns and rows of square tiles that it is resized to and cut into.

Every pair whose product is within the limits is a candidate, ordered by product, and by columns where products are
equal. Knows no pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_AREA_SHARE_THAT_IS_ENOUGH = 0.6
"""Area-weighted choice: beyond this share of the picture's own area, more tiles are no longer better."""


@dataclass(frozen=True, slots=True)
class TileLayout:
    """Tiles of one picture. The thumbnail, the whole picture as one more tile, is the last."""

    columns: int
    rows: int
    has_thumbnail: bool = False

    @property
    def tiles(self) -> int:
        """All tiles, the thumbnail counted."""
        return self.columns * self.rows + self.has_thumbnail


@dataclass(frozen=True, slots=True)
class TilingRule:
    """How many tiles a picture may be cut into, the thumbnail not counted, and how they are chosen."""

    tile_size: int
    min_tiles: int
    max_tiles: int
    use_thumbnail: bool = False
    area_weighted: bool = False
    prefer_more: bool = False
    """Of pairs with one aspect ratio, take the larger even where the picture is small."""


def tile_layout(width: int, height: int, rule: TilingRule) -> TileLayout:
    """The layout of a picture of `width` x `height` pixels."""
    choose = _closest_by_area_and_aspect if rule.area_weighted else _closest_by_aspect
    columns, rows = choose(width, height, rule)
    return TileLayout(columns, rows, rule.use_thumbnail and columns * rows > 1)


def _candidates(rule: TilingRule) -> Iterator[tuple[int, int]]:
    """(columns, rows), smallest product first; of equal products, fewest columns first."""
    for product in range(rule.min_tiles, rule.max_tiles + 1):
        yield from ((columns, product // columns) for columns in range(1, product + 1) if product % columns == 0)


def _closest_by_aspect(width: int, height: int, rule: TilingRule) -> tuple[int, int]:
    """Least difference of aspect ratios; of equal differences the later, if the picture half fills its tiles."""
    aspect, area = width / height, width * height
    best, least = (1, 1), float("inf")
    for columns, rows in _candidates(rule):
        difference = abs(aspect - columns / rows)
        half_full = area > 0.5 * rule.tile_size**2 * columns * rows
        if difference < least or (difference == least and (half_full or rule.prefer_more)):
            best, least = (columns, rows), difference
    return best


def _closest_by_area_and_aspect(width: int, height: int, rule: TilingRule) -> tuple[int, int]:
    """Greatest product of area share, up to a share that is enough, and likeness of aspect ratios."""
    aspect, area = width / height, width * height
    best, greatest = (1, 1), 0.0
    for columns, rows in _candidates(rule):
        share = columns * rows * rule.tile_size**2 / area
        target = columns / rows
        score = min(share, _AREA_SHARE_THAT_IS_ENOUGH) * min(target / aspect, aspect / target)
        if score > greatest or (rule.prefer_more and score == greatest):
            best, greatest = (columns, rows), score
    return best
