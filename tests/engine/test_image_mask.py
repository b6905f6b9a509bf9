"""Prompt positions and embedding rows match exactly, however a prompt is cut."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlight_engine.core.image_mask import ImageMask, MaskMismatchError, Piece
from fanlight_engine.core.messages import MaskRun, MediaInput
from tests.engine.builders import picture

Layout = tuple[list[MediaInput], list[MaskRun], list[tuple[int, int] | None]]
"""Images, mask runs, and per position what the docstring's table says: (image, row of it), or None for text."""


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Images of a few rows, their positions cut into runs at random places with text between some of them."""
    rows = draw(st.lists(st.integers(1, 5), max_size=4))
    taken = [(image, row) for image, count in enumerate(rows) for row in range(count)]
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(taken) - 1))))) if taken else []
    borders = [0, *(cut for cut in cuts if cut < len(taken)), len(taken)]
    runs: list[MaskRun] = []
    table: list[tuple[int, int] | None] = []
    for start, end in pairwise(borders):
        table.extend([None] * draw(st.integers(0, 3)))
        if end > start:
            runs.append(MaskRun(len(table), start, end - start))
            table.extend(taken[start:end])
    table.extend([None] * draw(st.integers(0, 3)))
    return [picture(str(number), count) for number, count in enumerate(rows)], runs, table


@given(layout=layouts(), data=st.data())
def test_a_slice_says_of_each_position_what_the_whole_says(layout: Layout, data: st.DataObject) -> None:
    images, runs, table = layout
    start = data.draw(st.integers(0, len(table)))
    end = data.draw(st.integers(start, len(table)))
    mask = ImageMask(images, runs, len(table))
    found: list[tuple[int, int] | None] = [None] * len(table)
    for piece in mask.pieces(start, end):
        assert piece.length > 0
        for offset in range(piece.length):
            assert start <= piece.position + offset < end
            assert found[piece.position + offset] is None
            found[piece.position + offset] = (piece.medium, piece.row + offset)
    assert found[start:end] == table[start:end]
    assert mask.media(start, end) == list(dict.fromkeys(one[0] for one in table[start:end] if one))


@given(layout=layouts())
def test_each_image_knows_its_first_and_last_position(layout: Layout) -> None:
    images, runs, table = layout
    mask = ImageMask(images, runs, len(table))
    assert mask.rows == sum(one is not None for one in table)
    for number in range(len(images)):
        positions = [position for position, one in enumerate(table) if one and one[0] == number]
        assert mask.first_position(number) == positions[0]
        assert mask.last_positions[number] == positions[-1]


@given(layout=layouts(), data=st.data())
def test_a_missing_or_surplus_image_position_is_refused(layout: Layout, data: st.DataObject) -> None:
    images, runs, table = layout
    rows = sum(image.embedding_rows for image in images)
    with pytest.raises(MaskMismatchError, match=f"{rows} image positions for {rows + 1} rows"):
        ImageMask([*images, picture("surplus", 1)], runs, len(table))
    if runs:
        victim = data.draw(st.integers(0, len(runs) - 1))
        with pytest.raises(MaskMismatchError):
            ImageMask(images, runs[:victim] + runs[victim + 1 :], len(table))


def test_the_worked_example_of_the_documentation_holds() -> None:
    mask = ImageMask([picture("I", 3), picture("J", 2)], [MaskRun(1, 0, 3), MaskRun(6, 3, 2)], 9)
    assert list(mask.pieces(2, 7)) == [Piece(2, 0, 1, 2), Piece(6, 1, 0, 1)]
    assert mask.media(2, 7) == [0, 1]
    assert mask.media(4, 6) == []


def test_two_images_that_touch_are_told_apart() -> None:
    mask = ImageMask([picture("I", 3), picture("J", 2)], [MaskRun(2, 0, 5)], 8)
    assert list(mask.pieces(0, 8)) == [Piece(2, 0, 0, 3), Piece(5, 1, 0, 2)]


def test_an_empty_chunk_inside_an_image_needs_nothing() -> None:
    mask = ImageMask([picture("I", 4)], [MaskRun(1, 0, 4)], 6)
    assert list(mask.pieces(3, 3)) == []
    assert mask.media(3, 3) == []


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ([], "0 image positions for 5 rows"),
        ([MaskRun(1, 0, 4)], "4 image positions for 5 rows"),
        ([MaskRun(1, 0, 6)], "6 image positions for 5 rows"),
        ([MaskRun(8, 0, 5)], "reach 13, the prompt has 12"),
        ([MaskRun(1, 0, 3), MaskRun(3, 3, 2)], "position 4 in order"),
        ([MaskRun(6, 3, 2), MaskRun(1, 0, 3)], "does not follow row 0"),
        ([MaskRun(1, 0, 3), MaskRun(6, 2, 2)], "does not follow row 3"),
        ([MaskRun(1, 0, 5), MaskRun(7, 5, 0)], "does not follow"),
        ([MaskRun(-1, 0, 5)], "does not follow row 0 and position 0"),
    ],
)
def test_runs_that_do_not_cover_each_row_once_in_order_are_refused(runs: list[MaskRun], why: str) -> None:
    with pytest.raises(MaskMismatchError, match=why):
        ImageMask([picture("I", 3), picture("J", 2)], runs, 12)


def test_positions_of_a_text_prompt_take_no_rows() -> None:
    mask = ImageMask([], [], 5)
    assert (mask.rows, list(mask.pieces(0, 5)), mask.last_positions) == (0, [], ())


def test_rows_are_numbered_over_all_images() -> None:
    rows = [3, 1, 4]
    firsts = [0, *accumulate(rows)]
    runs = [MaskRun(10 * number, firsts[number], count) for number, count in enumerate(rows)]
    mask = ImageMask([picture(str(number), count) for number, count in enumerate(rows)], runs, 30)
    assert [(piece.medium, piece.row) for piece in mask.pieces(0, 30)] == [(0, 0), (1, 0), (2, 0)]
