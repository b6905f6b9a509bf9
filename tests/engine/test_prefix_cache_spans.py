"""A page inside a span is shared only where the whole span is the same: its keys and values depend on all of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlight_engine.checkpoints.families import Bidirectional
from fanlight_engine.core.image_mask import ImageMask
from fanlight_engine.core.messages import AddRequest, MaskRun, MediaInput, SamplingParams
from fanlight_engine.core.sequence import Sequence
from fanlight_engine.core.spans import spans_of
from tests.engine.builders import Part, picture, sequence, words
from tests.engine.test_prefix_cache import PAGE, shared_pages

prompts = st.lists(
    st.one_of(
        st.lists(st.integers(0, 2), min_size=1, max_size=6),
        st.builds(picture, st.sampled_from(["cat", "dog"]), st.integers(1, 5)),
    ),
    min_size=1,
    max_size=5,
)


def keys(bidirectional: Bidirectional, *parts: Part, generated: int = 0) -> list[bytes]:
    """Keys of all full pages of a prompt and so many generated tokens."""
    one = sequence("any", *parts, bidirectional=bidirectional)
    one.tokens.extend(words(generated, seed=9))
    return one.page_keys(PAGE, one.length // PAGE)


def what_each_position_depends_on(one: Sequence) -> list[tuple[object, ...]]:
    """Per position all that keys and values there are computed from: contents up to it, and to the end of its span."""
    media, contents = one.request.media, [(token, b"", -1) for token in one.tokens]
    for piece in one.mask.pieces_in_order:
        for offset in range(piece.length):
            place = piece.position + offset
            contents[place] = (one.tokens[place], media[piece.medium].digest, piece.row + offset)
    spans = [span for span in one.spans.in_order if span.length > 1]  # what sees only itself is as good as no span
    return [
        (
            tuple(contents[: max([place + 1, *(span.end for span in spans if span.start <= place)])]),
            tuple(span for span in spans if span.start <= place),
        )
        for place in range(one.length)
    ]


@pytest.mark.parametrize("bidirectional", [Bidirectional.MEDIA, Bidirectional.PROMPT])
@given(beginning=prompts, left=prompts, right=prompts)
def test_pages_are_shared_just_where_all_that_their_values_come_from_is_equal(
    bidirectional: Bidirectional, beginning: list[Part], left: list[Part], right: list[Part]
) -> None:
    both = [sequence("any", *beginning, *rest, bidirectional=bidirectional) for rest in (left, right)]
    sources = [what_each_position_depends_on(one) for one in both]
    equal = 0
    while equal < min(map(len, sources)) and sources[0][equal] == sources[1][equal]:
        equal += 1
    left_keys, right_keys = (one.page_keys(PAGE, one.length // PAGE) for one in both)
    assert shared_pages(left_keys, right_keys) == equal // PAGE


def test_a_picture_that_touches_another_one_shares_no_page_with_the_same_picture_alone() -> None:
    text, cat, dog, bird = words(PAGE), picture("cat", 2 * PAGE), picture("dog", PAGE), picture("bird", PAGE)
    alone = keys(Bidirectional.MEDIA, text, cat, words(PAGE))
    with_dog, with_bird = (keys(Bidirectional.MEDIA, text, cat, other, words(PAGE)) for other in (dog, bird))
    assert shared_pages(alone, with_dog) == shared_pages(with_dog, with_bird) == 1
    apart = keys(Bidirectional.MEDIA, text, cat, words(PAGE), dog, words(PAGE))
    assert shared_pages(alone, apart) == 4


def test_the_same_picture_in_other_pieces_shares_no_page_of_them() -> None:
    cat = picture("cat", 2 * PAGE)
    whole, parted = (_page_keys((cat,), runs) for runs in ((MaskRun(0, 0, 8),), (MaskRun(0, 0, 4), MaskRun(5, 4, 4))))
    assert whole[0] != parted[0]


def test_only_equal_whole_prompts_share_where_a_prompt_sees_all_of_itself() -> None:
    cat, text = picture("cat", PAGE), words(3 * PAGE)
    whole = keys(Bidirectional.PROMPT, cat, text)
    assert keys(Bidirectional.PROMPT, cat, text) == whole
    assert shared_pages(whole, keys(Bidirectional.PROMPT, cat, [*text, 1])) == 0
    assert shared_pages(whole, keys(Bidirectional.PROMPT, cat, text[:-1])) == 0
    assert shared_pages(whole, keys(Bidirectional.PROMPT, picture("dog", PAGE), text)) == 0


def test_an_answer_is_not_taken_for_the_end_of_a_prompt() -> None:
    answered = keys(Bidirectional.PROMPT, words(PAGE + 1), generated=2 * PAGE - 1)
    asked = keys(Bidirectional.PROMPT, words(PAGE + 1), words(2 * PAGE - 1, seed=9))
    assert shared_pages(answered, asked) == 0
    assert len(answered) == len(asked) == 3
    inside_a_page = keys(Bidirectional.PROMPT, words(PAGE - 2), generated=2)
    assert inside_a_page != keys(Bidirectional.PROMPT, words(PAGE - 2), words(2, seed=9))


def _page_keys(media: tuple[MediaInput, ...], runs: tuple[MaskRun, ...]) -> list[bytes]:
    prompt = tuple([7] * 4 + [3] + [7] * 4) if len(runs) > 1 else tuple([7] * 8 + [3])
    made = AddRequest("any", prompt, SamplingParams(max_new_tokens=1), media, runs)
    mask = ImageMask(media, runs, len(prompt))
    one = Sequence(made, mask, spans_of(Bidirectional.MEDIA, mask, len(prompt)))
    return one.page_keys(PAGE, one.length // PAGE)
