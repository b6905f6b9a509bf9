"""Size of a picture or frame -> the grid of patches that it is resized to, within a budget of patches.

Pictures are scaled down to the budget and only up where they have too few patches; frames always fill their budget.
Sides of a grid are multiples of `merge`, at least one, and their product is within the budget, for every size there is:
where rounding would leave the budget, the longer side gives way. Knows no pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fanlight_engine.inputs.media.native.image_processing_config import is_reachable

Grid = tuple[int, int]
"""(height, width) in patches, before they are merged."""


@dataclass(frozen=True, slots=True)
class PatchBudget:
    """How many patches a grid may have, both ends included; its sides are multiples of `merge`."""

    low: int
    high: int
    merge: int

    def __post_init__(self) -> None:
        assert is_reachable(self.low, self.high, self.merge), "nobody asks for a grid that cannot be"

    def holds(self, grid: Grid) -> bool:
        """Whether the grid is within the budget."""
        return self.low <= grid[0] * grid[1] <= self.high


def image_grid(width: int, height: int, patch_dim: int, budget: PatchBudget) -> Grid:
    """The grid of a picture of `width` x `height` pixels."""
    rows, columns = -(-height // patch_dim), -(-width // patch_dim)
    shrink = min(math.sqrt(budget.high / (rows * columns)), 1.0)
    rows, columns = max(math.floor(shrink * rows), 1), max(math.floor(shrink * columns), 1)
    if rows * columns < budget.low:
        grow = math.sqrt(budget.low / (rows * columns))
        rows, columns = math.ceil(grow * rows), math.ceil(grow * columns)
    # Height goes first, width then fits to the new height: a square picture can get a grid that is not square.
    rows = _rounded(rows, columns, budget)
    columns = _rounded(columns, rows, budget)
    return _within(rows, columns, width / height, budget)


def video_grid(width: int, height: int, budget: PatchBudget, keep_aspect_ratio: bool = True) -> Grid:
    """The grid of every frame of a clip with frames of `width` x `height` pixels; square ones if asked.

    The budget's lower end counts for nothing: what a frame gets is as near to the upper end as whole patches allow.
    """
    most, merge = budget.high, budget.merge
    if keep_aspect_ratio:
        aspect = width / height
        rows, columns = max(round(math.sqrt(most / aspect)), 1), max(round(math.sqrt(most * aspect)), 1)
    else:
        rows = columns = max(math.isqrt(most), 1)
    # Both sides go the same way, unlike those of a picture.
    up = -(-rows // merge) * merge, -(-columns // merge) * merge
    down = max(rows // merge * merge, merge), max(columns // merge * merge, merge)
    return _shrunk(*(up if up[0] * up[1] <= most else down), budget)


def largest_grid(width: int, height: int, budget: PatchBudget) -> Grid:
    """The grid of a picture that is to be seen as large as the budget allows."""
    rows, columns = video_grid(width, height, budget)
    return _within(rows, columns, width / height, budget)


def embeddings_of(grid: Grid, merge: int) -> int:
    """Embeddings that a picture with this grid takes. Raises ValueError where the sides are not whole merge groups."""
    rows, columns = grid
    if rows % merge or columns % merge:
        raise ValueError(f"a grid of {rows} x {columns} patches cannot be merged {merge} x {merge}")
    return (rows // merge) * (columns // merge)


def _rounded(side: int, other: int, budget: PatchBudget) -> int:
    """To a multiple of merge: up where the budget allows it, else down, but never to nothing."""
    up = -(-side // budget.merge) * budget.merge
    if up * other <= budget.high:
        return up
    return max(side // budget.merge * budget.merge, budget.merge)


def _within(rows: int, columns: int, aspect: float, budget: PatchBudget) -> Grid:
    grid = _shrunk(rows, columns, budget)
    return grid if budget.holds(grid) else _closest_aspect(aspect, budget)


def _shrunk(rows: int, columns: int, budget: PatchBudget) -> Grid:
    """The longer side gives way until the budget holds; it never becomes the shorter one by more than a merge group."""
    while rows * columns > budget.high:
        if rows > columns:
            rows -= budget.merge
        else:
            columns -= budget.merge
    return rows, columns


def _closest_aspect(aspect: float, budget: PatchBudget) -> Grid:
    """Of all grids within the budget, the one whose aspect ratio is closest; the larger one of two equals.

    For budgets so narrow that rounding jumps over them.
    """
    cell = budget.merge**2
    low, high = -(-budget.low // cell), budget.high // cell
    best, best_error = (budget.merge, budget.merge), math.inf
    for rows in range(1, high + 1):
        fewest, most = max(-(-low // rows), 1), high // rows
        if fewest > most:
            continue
        columns = min(max(round(rows * aspect), fewest), most)
        error = abs(math.log(columns / rows / aspect))
        if error <= best_error:
            best, best_error = (rows * budget.merge, columns * budget.merge), error
    return best
