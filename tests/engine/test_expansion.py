"""Placeholders become the positions an image takes; every position knows its row of the embeddings."""

from __future__ import annotations

import pytest

from fanlight_engine.core.messages import MaskRun
from fanlight_engine.errors import InvalidRequestError, Reason
from fanlight_engine.inputs.expansion import (
    Replacement,
    assign,
    expand,
    refuse_touching,
    replacement_from,
    rows_of_expanded,
)
from fanlight_engine.request import Modality

IMAGE, ROW_END, START, VIDEO = 9, 8, 7, 6


def test_separators_between_rows_keep_their_own_ids():
    replacement = replacement_from([START, IMAGE, IMAGE, ROW_END, IMAGE, IMAGE, ROW_END], IMAGE)
    assert replacement.runs == ((1, 2), (4, 2))
    assert replacement.rows == 4


def test_each_placeholder_becomes_its_own_image():
    first = replacement_from([IMAGE] * 3, IMAGE)
    second = replacement_from([IMAGE, ROW_END, IMAGE], IMAGE)
    expanded = expand([1, IMAGE, 2, IMAGE, 3], [1, 3], [first, second])
    assert expanded.ids == (1, 9, 9, 9, 2, 9, 8, 9, 3)
    assert expanded.mask_runs == (MaskRun(1, 0, 3), MaskRun(5, 3, 1), MaskRun(7, 4, 1))
    assert expanded.image_tokens == 5


def test_neighbouring_images_are_one_run():
    two = replacement_from([IMAGE] * 2, IMAGE)
    expanded = expand([IMAGE, IMAGE], [0, 1], [two, two])
    assert expanded.mask_runs == (MaskRun(0, 0, 4),)


def test_an_image_token_that_is_no_placeholder_takes_no_row():
    """A model can generate one; only the placeholders given are expanded."""
    expanded = expand([IMAGE, 1, IMAGE], [2], [Replacement((IMAGE,), ((0, 1),))])
    assert expanded.ids == (IMAGE, 1, IMAGE)
    assert expanded.mask_runs == (MaskRun(2, 0, 1),)


def test_text_stays_as_it_is():
    expanded = expand([1, 2, 3], [], [])
    assert (expanded.ids, expanded.mask_runs, expanded.image_tokens) == ((1, 2, 3), (), 0)


def test_each_medium_keeps_the_ranges_of_its_own_rows():
    first = replacement_from([START, IMAGE, ROW_END, IMAGE], IMAGE)
    second = replacement_from([IMAGE], IMAGE)
    expanded = expand([IMAGE, IMAGE], [0, 1], [first, second])
    assert expanded.ranges == ((MaskRun(1, 0, 1), MaskRun(3, 1, 1)), (MaskRun(4, 2, 1),))


class TestTouching:
    """Two media of one kind without anything between them are refused; what stands inside of one does not matter."""

    CLIP = replacement_from([START, VIDEO, VIDEO, ROW_END, START, VIDEO, VIDEO, ROW_END], VIDEO)
    PICTURE = replacement_from([IMAGE] * 2, IMAGE)

    def test_clips_in_pieces_have_text_at_both_ends(self):
        two_clips = expand([VIDEO, VIDEO], [0, 1], [self.CLIP, self.CLIP])
        assert two_clips.ranges[0] == (MaskRun(1, 0, 2), MaskRun(5, 2, 2))
        refuse_touching(two_clips, [Modality.VIDEO] * 2, "raw")

    def test_pictures_side_by_side_are_refused(self):
        two_pictures = expand([IMAGE, IMAGE], [0, 1], [self.PICTURE, self.PICTURE])
        with pytest.raises(InvalidRequestError, match="two images touch at position 2"):
            refuse_touching(two_pictures, [Modality.IMAGE] * 2, "raw")
        refuse_touching(two_pictures, [Modality.IMAGE, Modality.VIDEO], "raw")


def test_rows_are_found_in_a_text_that_was_expanded_before_it_was_tokenised():
    """What stands around a medium may have become one token with what stands at its border: lengths may differ."""
    picture = replacement_from([5, START, IMAGE, IMAGE, 5], IMAGE)
    clip = replacement_from([VIDEO, ROW_END, VIDEO], VIDEO)
    expanded = rows_of_expanded([55, START, IMAGE, IMAGE, 5, VIDEO, ROW_END, VIDEO, 2], [picture, clip], "raw")
    assert expanded.mask_runs == (MaskRun(2, 0, 2), MaskRun(5, 2, 1), MaskRun(7, 3, 1))
    assert expanded.ranges == ((MaskRun(2, 0, 2),), (MaskRun(5, 2, 1), MaskRun(7, 3, 1)))


def test_both_ways_of_expanding_give_the_same_where_nothing_merges():
    ids, places = [1, IMAGE, IMAGE, 2, VIDEO], [1, 2, 4]
    media = [replacement_from(one, one[0]) for one in ([IMAGE] * 3, [IMAGE, ROW_END, IMAGE], [VIDEO, START, VIDEO])]
    expanded = expand(ids, places, media)
    assert rows_of_expanded(expanded.ids, media, "raw") == expanded


def test_ids_that_only_media_may_have_are_refused_with_both_counts():
    with pytest.raises(InvalidRequestError, match=r"raw: it has 3 of the tokens .* its media have 2") as caught:
        rows_of_expanded([IMAGE, 1, IMAGE, IMAGE], [replacement_from([IMAGE] * 2, IMAGE)], "raw")
    assert caught.value.reason is Reason.IMAGE_COUNT_MISMATCH


def test_pictures_and_clips_find_their_placeholders_in_any_order():
    media = [(Modality.IMAGE, IMAGE), (Modality.IMAGE, IMAGE), (Modality.VIDEO, VIDEO)]
    assert assign([(3, VIDEO), (5, IMAGE), (8, IMAGE)], media, "raw") == [(3, 2), (5, 0), (8, 1)]


def test_a_clip_without_a_token_of_its_own_stands_among_the_pictures():
    media = [(Modality.IMAGE, IMAGE), (Modality.VIDEO, IMAGE), (Modality.IMAGE, IMAGE)]
    assert assign([(1, IMAGE), (2, IMAGE), (3, IMAGE)], media, "raw") == [(1, 0), (2, 1), (3, 2)]


@pytest.mark.parametrize(
    ("placeholders", "media", "text"),
    [
        ([(0, IMAGE)], [(Modality.IMAGE, IMAGE)] * 2, r"raw: it has 1 image placeholder\(s\) for 2 image\(s\)"),
        ([(0, IMAGE)], [], r"raw: it has 1 image placeholder\(s\) for 0 image\(s\)"),
        ([], [(Modality.VIDEO, VIDEO)], r"raw: it has 0 video placeholder\(s\) for 1 video\(s\)"),
    ],
)
def test_other_counts_of_media_than_placeholders_are_refused_with_both(
    placeholders: list[tuple[int, int]], media: list[tuple[Modality, int]], text: str
):
    with pytest.raises(InvalidRequestError, match=text) as caught:
        assign(placeholders, media, "raw")
    assert caught.value.reason is Reason.IMAGE_COUNT_MISMATCH
