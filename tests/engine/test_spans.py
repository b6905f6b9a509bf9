"""Which positions see each other, where chunks may end, and what of it can never be computed."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlight_engine.checkpoints.families import Bidirectional
from fanlight_engine.client import CoreFacts
from fanlight_engine.core.image_mask import ImageMask
from fanlight_engine.core.messages import MaskRun
from fanlight_engine.core.spans import NO_SPANS, Span, Spans, refusal_of_spans, spans_of
from fanlight_engine.errors import Reason
from tests.engine.builders import Part, picture, sequence, words


def spans(bidirectional: Bidirectional, *parts: Part) -> Spans:
    return sequence("any", *parts, bidirectional=bidirectional).spans


def facts(bidirectional: Bidirectional, longest_span: int, vision_cache_bytes: int = 1 << 20) -> CoreFacts:
    """Of a core whose embedding rows are ten bytes."""
    return CoreFacts(1024, 16, 64, vision_cache_bytes, 10, bidirectional=bidirectional, longest_span=longest_span)


PICTURES: tuple[Part, ...] = ([5], picture("I", 2), picture("J", 2), [5], picture("K", 2), [5])


@pytest.mark.parametrize(
    ("bidirectional", "expected"),
    [(Bidirectional.NONE, ()), (Bidirectional.MEDIA, ((1, 5), (6, 8))), (Bidirectional.PROMPT, ((0, 9),))],
)
def test_a_family_says_what_sees_the_whole_of_itself(
    bidirectional: Bidirectional, expected: tuple[tuple[int, int], ...]
) -> None:
    assert spans(bidirectional, *PICTURES).in_order == expected


def test_a_prompt_without_media_has_no_spans_of_media() -> None:
    assert spans(Bidirectional.MEDIA, words(5)).in_order == ()
    assert spans(Bidirectional.PROMPT, words(5)).in_order == ((0, 5),)


def test_runs_that_touch_are_one_span_however_the_request_cut_them() -> None:
    media = (picture("I", 2), picture("J", 3))
    mask = ImageMask(media, [MaskRun(1, 0, 1), MaskRun(2, 1, 3), MaskRun(7, 4, 1)], 9)
    assert spans_of(Bidirectional.MEDIA, mask, 9).in_order == ((1, 5), (7, 8))


@pytest.mark.parametrize(
    ("chunk", "end"),
    [
        ((0, 9), 9),
        ((0, 8), 8),
        ((0, 7), 6),
        ((0, 6), 6),
        ((0, 5), 5),
        ((0, 3), 1),
        ((1, 3), 1),
        ((2, 4), 2),
        ((2, 5), 5),
    ],
)
def test_a_chunk_is_cut_before_the_span_that_it_would_have_ended_inside_of(chunk: tuple[int, int], end: int) -> None:
    assert spans(Bidirectional.MEDIA, *PICTURES).cut(*chunk) == end


borders = st.lists(st.integers(0, 40), unique=True, max_size=10).map(sorted)


@given(borders=borders, start=st.integers(0, 40), length=st.integers(0, 40))
def test_cutting_and_finding_agree_with_looking_at_every_span(borders: list[int], start: int, length: int) -> None:
    pairs = [Span(first, end) for first, end in zip(borders[::2], borders[1::2], strict=False)]
    end = start + length
    found = Spans(pairs)
    inside = [span for span in pairs if span.start < end < span.end]
    assert found.cut(start, end) == (max(start, inside[0].start) if inside else end)
    if length:
        assert list(found.touching(start, end)) == [one for one in pairs if one.start < end and one.end > start]
    assert list(found.beginning_between(start, end)) == [one for one in pairs if start <= one.start < end]


def test_media_that_share_a_span_go_together_also_over_others() -> None:
    media = (picture("I", 2), picture("J", 4), picture("K", 2), picture("L", 1))
    mask = ImageMask(media, [MaskRun(0, 0, 4), MaskRun(6, 4, 4), MaskRun(12, 8, 1)], 14)
    found = spans_of(Bidirectional.MEDIA, mask, 14)
    assert [found.media_with(number) for number in range(4)] == [(0, 1, 2), (0, 1, 2), (0, 1, 2), (3,)]
    assert found.media_groups == ((0, 1, 2), (3,))
    assert NO_SPANS.media_with(2) == (2,)


@pytest.mark.parametrize(
    ("bidirectional", "parts", "length", "reason"),
    [
        (Bidirectional.MEDIA, ([5], picture("I", 4), picture("J", 5), [5]), 9, Reason.IMAGE_TOO_LARGE),
        (Bidirectional.PROMPT, (picture("I", 4), words(5)), 9, Reason.PROMPT_TOO_LONG),
    ],
)
def test_a_span_that_no_step_has_room_for_is_refused_with_its_length_and_the_fix(
    bidirectional: Bidirectional, parts: SequenceOf[Part], length: int, reason: Reason
) -> None:
    one = sequence("any", *parts, bidirectional=bidirectional)
    assert refusal_of_spans(one.spans, one.request.media, facts(bidirectional, length)) is None
    refusal = refusal_of_spans(one.spans, one.request.media, facts(bidirectional, length - 2))
    assert refusal is not None
    assert refusal[0] is reason
    assert f"{length} of " in refusal[1]
    assert f"room for {length - 2} of one request" in refusal[1]
    assert "raise max_step_tokens by 2" in refusal[1]


def test_media_that_are_held_together_must_fit_the_vision_cache_together() -> None:
    one = sequence("any", picture("I", 4), picture("J", 5), [5], picture("K", 9), bidirectional=Bidirectional.MEDIA)
    media = one.request.media
    assert refusal_of_spans(one.spans, media, facts(Bidirectional.MEDIA, 20, vision_cache_bytes=90)) is None
    refusal = refusal_of_spans(one.spans, media, facts(Bidirectional.MEDIA, 20, vision_cache_bytes=89))
    assert refusal is not None
    assert refusal[0] is Reason.IMAGE_TOO_LARGE
    assert "2 media whose positions see each other take 90 bytes" in refusal[1]
    assert "raise vision_cache_bytes" in refusal[1]


def test_a_picture_shown_twice_in_one_span_is_held_once() -> None:
    one = sequence("any", picture("I", 4), picture("I", 4), bidirectional=Bidirectional.MEDIA)
    few = facts(Bidirectional.MEDIA, 20, vision_cache_bytes=40)
    assert refusal_of_spans(one.spans, one.request.media, few) is None
