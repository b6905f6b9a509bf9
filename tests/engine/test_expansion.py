"""Placeholders become the positions an image takes; every position knows its row of the embeddings."""

from __future__ import annotations

import pytest

from fanlight_engine.core.messages import MaskRun
from fanlight_engine.errors import InvalidRequestError, Reason
from fanlight_engine.inputs.expansion import Replacement, expand, replacement_from

IMAGE, ROW_END, START = 9, 8, 7


def test_separators_between_rows_keep_their_own_ids():
    replacement = replacement_from([START, IMAGE, IMAGE, ROW_END, IMAGE, IMAGE, ROW_END], IMAGE)
    assert replacement.runs == ((1, 2), (4, 2))
    assert replacement.rows == 4


def test_each_placeholder_becomes_its_own_image():
    first = replacement_from([IMAGE] * 3, IMAGE)
    second = replacement_from([IMAGE, ROW_END, IMAGE], IMAGE)
    expanded = expand([1, IMAGE, 2, IMAGE, 3], [1, 3], [first, second], [3, 2], "raw")
    assert expanded.ids == (1, 9, 9, 9, 2, 9, 8, 9, 3)
    assert expanded.mask_runs == (MaskRun(1, 0, 3), MaskRun(5, 3, 1), MaskRun(7, 4, 1))
    assert expanded.image_tokens == 5


def test_neighbouring_images_are_one_run():
    two = replacement_from([IMAGE] * 2, IMAGE)
    expanded = expand([IMAGE, IMAGE], [0, 1], [two, two], [2, 2], "raw")
    assert expanded.mask_runs == (MaskRun(0, 0, 4),)


def test_an_image_token_that_is_no_placeholder_takes_no_row():
    """A model can generate one; only the placeholders given are expanded."""
    expanded = expand([IMAGE, 1, IMAGE], [2], [Replacement((IMAGE,), ((0, 1),))], [1], "raw")
    assert expanded.ids == (IMAGE, 1, IMAGE)
    assert expanded.mask_runs == (MaskRun(2, 0, 1),)


def test_text_stays_as_it_is():
    expanded = expand([1, 2, 3], [], [], [], "raw")
    assert (expanded.ids, expanded.mask_runs, expanded.image_tokens) == ((1, 2, 3), (), 0)


def test_more_images_than_placeholders_are_refused_with_both_counts():
    with pytest.raises(InvalidRequestError, match=r"raw: it has 1 image placeholder\(s\) for 2 image\(s\)") as caught:
        expand([IMAGE], [0], [Replacement((IMAGE,), ((0, 1),))] * 2, [1, 1], "raw")
    assert caught.value.reason is Reason.IMAGE_COUNT_MISMATCH


def test_embeddings_without_positions_are_refused_with_both_counts():
    with pytest.raises(InvalidRequestError, match="4 embedding rows for 3 positions"):
        expand([IMAGE], [0], [replacement_from([IMAGE] * 3, IMAGE)], [4], "raw")
