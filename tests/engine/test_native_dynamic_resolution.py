"""Grids of pictures and frames: the reference's vectors, and no size that breaks a budget."""

from __future__ import annotations

import math

import pytest

from fanlight_engine.inputs.media.native.dynamic_resolution import (
    Grid,
    PatchBudget,
    embeddings_of,
    image_grid,
    largest_grid,
    video_grid,
)
from tests.engine.native_sizes import SIZES, sampled_sizes

PATCH = 16

# (width, height): grids (height, width) for at most 128 patches, for 128 merged 2 x 2, for 1024 merged 2 x 2
IMAGE_VECTORS = {
    (640, 480): ((9, 13), (8, 14), (28, 36)),
    (1920, 1080): ((8, 15), (8, 16), (24, 42)),
    (1, 1): ((1, 1), (2, 2), (2, 2)),
    (17, 17): ((2, 2), (2, 2), (2, 2)),
    (100, 100): ((7, 7), (8, 8), (8, 8)),
    (2048, 2048): ((11, 11), (10, 12), (32, 32)),
}


def reference_image_grid(width: int, height: int, low: int, high: int, merge: int) -> Grid | None:
    """The reference's formula as its facts state it; None where it asserts, or leaves its own bounds."""
    ph, pw = math.ceil(height / PATCH), math.ceil(width / PATCH)
    factor = min(math.sqrt(high / (ph * pw)), 1.0)
    th, tw = math.floor(factor * ph), math.floor(factor * pw)
    if th * tw < low:
        up = math.sqrt(low / max(th * tw, 1))
        th, tw = math.ceil(up * th), math.ceil(up * tw)
    if merge > 1:
        if th % merge:
            increment = merge - th % merge
            th = th + increment if (th + increment) * tw <= high else th - th % merge
        if tw % merge:
            increment = merge - tw % merge
            tw = tw + increment if (tw + increment) * th <= high else tw - tw % merge
        th, tw = max(merge, th), max(merge, tw)
    return (th, tw) if low <= th * tw <= high else None


def reference_video_grid(width: int, height: int, high: int, merge: int, keep_aspect_ratio: bool) -> Grid | None:
    if keep_aspect_ratio:
        aspect = width / max(height, 1)
        th, tw = max(1, round(math.sqrt(high / aspect))), max(1, round(math.sqrt(high * aspect)))
    else:
        th = tw = max(1, math.isqrt(high))
    if merge > 1:
        up = math.ceil(th / merge) * merge, math.ceil(tw / merge) * merge
        down = max(merge, th // merge * merge), max(merge, tw // merge * merge)
        th, tw = up if up[0] * up[1] <= high else down
    return (th, tw) if th * tw <= high else None


@pytest.mark.parametrize(("size", "grids"), IMAGE_VECTORS.items())
def test_pictures_get_the_references_grids(size: tuple[int, int], grids: tuple[Grid, Grid, Grid]):
    budgets = (PatchBudget(1, 128, 1), PatchBudget(1, 128, 2), PatchBudget(1, 1024, 2))
    assert tuple(image_grid(*size, PATCH, budget) for budget in budgets) == grids


def test_a_small_picture_grows_to_the_fewest_patches():
    assert image_grid(1, 1, PATCH, PatchBudget(256, 1024, 2)) == (16, 16)


@pytest.mark.parametrize(
    ("size", "merge", "grid"),
    [
        ((4000, 30), 2, (2, 64)),
        ((30, 4000), 2, (64, 2)),
        ((32, 2048), 2, (64, 2)),
        ((2073, 5), 1, (1, 128)),
        ((5, 2073), 1, (128, 1)),
    ],
)
def test_thin_pictures_on_which_the_reference_fails_get_a_grid(size: tuple[int, int], merge: int, grid: Grid):
    reference = reference_image_grid(*size, 1, 128, merge)
    assert reference is None
    assert image_grid(*size, PATCH, PatchBudget(1, 128, merge)) == grid


def test_frames_get_the_references_grids():
    assert video_grid(1920, 1080, PatchBudget(1, 1024, 2)) == (24, 42)
    assert video_grid(640, 480, PatchBudget(1, 128, 2)) == (10, 12)
    assert video_grid(640, 480, PatchBudget(1, 128, 2), keep_aspect_ratio=False) == (10, 10)


def test_frames_on_which_the_reference_is_over_budget_stay_within_it():
    assert reference_video_grid(100, 3000, 1024, 2, True) is None
    assert video_grid(100, 3000, PatchBudget(1, 1024, 2)) == (170, 6)


def check(grid: Grid, budget: PatchBudget, low: int) -> None:
    rows, columns = grid
    assert rows >= budget.merge
    assert columns >= budget.merge
    assert rows % budget.merge == 0
    assert columns % budget.merge == 0
    assert low <= rows * columns <= budget.high


def aspect_error(grid: Grid, size: tuple[int, int], budget: PatchBudget) -> float:
    """By how many merge groups the sides miss those of the very aspect ratio, at the same number of patches.

    0 where the picture is thinner than any grid of the budget can be, and the grid is as thin as it gets.
    """
    (rows, columns), aspect = grid, size[0] / size[1]
    if min(rows, columns) == budget.merge and max(aspect, 1 / aspect) >= max(rows, columns) / min(rows, columns):
        return 0.0
    ideal_rows, ideal_columns = math.sqrt(rows * columns / aspect), math.sqrt(rows * columns * aspect)
    short = min((rows, ideal_rows), (columns, ideal_columns), key=lambda pair: pair[1])
    return abs(short[0] - short[1]) / budget.merge


IMAGE_BUDGETS = (
    PatchBudget(1, 128, 1),
    PatchBudget(1, 128, 2),
    PatchBudget(4, 1024, 2),
    PatchBudget(256, 1024, 2),
    PatchBudget(16, 4096, 2),
    PatchBudget(1, 12_100, 1),
    PatchBudget(9, 1000, 3),
)
NARROW_BUDGETS = (
    PatchBudget(128, 128, 1),
    PatchBudget(128, 128, 2),
    PatchBudget(250, 256, 2),
    PatchBudget(1, 1, 1),
    PatchBudget(4, 4, 2),
    PatchBudget(1, 7, 2),
)


@pytest.mark.parametrize("budget", IMAGE_BUDGETS, ids=str)
def test_every_picture_gets_a_grid_within_its_budget_as_the_reference_where_that_has_one(budget: PatchBudget):
    references = 0
    for size in sampled_sizes():
        grid = image_grid(*size, PATCH, budget)
        check(grid, budget, budget.low)
        in_patches = -(-size[0] // PATCH), -(-size[1] // PATCH)
        assert aspect_error(grid, in_patches, budget) < 1.5, (size, grid)
        reference = reference_image_grid(*size, budget.low, budget.high, budget.merge)
        references += reference is not None
        assert reference in (None, grid), size
    assert references > 0.6 * SIZES


@pytest.mark.parametrize("budget", NARROW_BUDGETS, ids=str)
def test_narrow_budgets_hold_for_every_picture_too(budget: PatchBudget):
    references = 0
    for size in sampled_sizes(4000):
        grid = image_grid(*size, PATCH, budget)
        check(grid, budget, budget.low)
        reference = reference_image_grid(*size, budget.low, budget.high, budget.merge)
        references += reference is not None
        assert reference in (None, grid), size
    assert references > 0


@pytest.mark.parametrize("budget", IMAGE_BUDGETS, ids=str)
def test_every_frame_gets_a_grid_within_its_budget_as_the_reference_where_that_has_one(budget: PatchBudget):
    over = 0
    for size in sampled_sizes():
        grid = video_grid(*size, budget)
        check(grid, budget, 1)
        assert aspect_error(grid, size, budget) < 1.5, (size, grid)
        assert grid[0] * grid[1] > budget.high - budget.merge * (max(grid) + min(grid) + budget.merge), (size, grid)
        reference = reference_video_grid(*size, budget.high, budget.merge, True)
        over += reference is None
        assert reference in (None, grid), size
    assert over > 0


@pytest.mark.parametrize("budget", [*IMAGE_BUDGETS, *NARROW_BUDGETS], ids=str)
def test_square_frames_are_square_whatever_their_size(budget: PatchBudget):
    grids = {video_grid(*size, budget, keep_aspect_ratio=False) for size in sampled_sizes(200)}
    assert grids == {reference_video_grid(1, 1, budget.high, budget.merge, False)}
    (grid,) = grids
    check(grid, budget, 1)


@pytest.mark.parametrize("budget", [*IMAGE_BUDGETS, *NARROW_BUDGETS], ids=str)
def test_the_largest_grid_is_within_the_budget_and_no_smaller_than_the_ordinary_one_needs(budget: PatchBudget):
    for size in sampled_sizes(2000):
        check(largest_grid(*size, budget), budget, budget.low)
    assert largest_grid(32, 32, PatchBudget(1, 1024, 2)) == (32, 32)


def test_where_rounding_jumps_over_a_narrow_budget_the_closest_aspect_ratio_in_it_is_taken():
    assert image_grid(1600, 1600, PATCH, PatchBudget(128, 128, 2)) == (16, 8)
    assert image_grid(4096, 16, PATCH, PatchBudget(128, 128, 2)) == (2, 64)
    assert image_grid(1600, 1600, PATCH, PatchBudget(144, 144, 2)) == (12, 12)


def test_embeddings_are_counted_in_whole_merge_groups():
    assert embeddings_of((24, 42), 2) == 12 * 21
    assert embeddings_of((9, 6), 3) == 6
    assert embeddings_of((7, 5), 1) == 35
    for grid in ((7, 6), (6, 7)):
        with pytest.raises(ValueError, match="7"):
            embeddings_of(grid, 2)
