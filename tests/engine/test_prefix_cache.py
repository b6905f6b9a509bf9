"""Pages are shared exactly between prompts that begin alike: tokens, images, where they lie, and salt."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanlight_engine.core.block_pool import BlockPool
from fanlight_engine.core.messages import MediaInput
from fanlight_engine.core.prefix_cache import PrefixCache
from fanlight_engine.core.sequence import Sequence
from fanlight_engine.request import Modality
from tests.engine.builders import Part, data, embedded, picture, qwen_clip, request, sequence, words

PAGE = 4


def test_pages_under_other_rotary_factors_are_never_shared() -> None:
    short, long = sequence("short", words(12)), sequence("long", words(12))
    before = list(short.page_keys(PAGE, 3))
    assert long.page_keys(PAGE, 3) == before
    assert long.take_factors(11)
    assert not set(long.page_keys(PAGE, 3)) & set(before)
    assert not short.take_factors(12), "as long as the border is short"
    assert short.page_keys(PAGE, 3) == before


def keys(*parts: Part, cache_salt: bytes = b"") -> list[bytes]:
    """Keys of all full pages of a prompt."""
    one = sequence("any", *parts, cache_salt=cache_salt)
    return one.page_keys(PAGE, one.length // PAGE)


def shared_pages(left: list[bytes], right: list[bytes]) -> int:
    """How many leading pages of two prompts have the same key; behind the first difference none may."""
    same = [one == other for one, other in zip(left, right, strict=False)]
    leading = same.index(False) if False in same else len(same)
    assert not any(same[leading:])
    return leading


prompts = st.lists(
    st.one_of(
        st.lists(st.integers(0, 2), min_size=1, max_size=6),
        st.builds(picture, st.sampled_from(["cat", "dog"]), st.integers(1, 5)),
    ),
    min_size=1,
    max_size=5,
)


@given(beginning=prompts, left=prompts, right=prompts)
def test_pages_are_shared_as_far_as_contents_are_equal_and_no_further(
    beginning: list[Part], left: list[Part], right: list[Part]
) -> None:
    contents = [_content(beginning + one) for one in (left, right)]
    equal = 0
    while equal < min(map(len, contents)) and contents[0][equal] == contents[1][equal]:
        equal += 1
    assert shared_pages(keys(*beginning, *left), keys(*beginning, *right)) == equal // PAGE


def _content(parts: list[Part]) -> list[tuple[int, bytes, int]]:
    """Per position: the id, and which row of which image it takes."""
    whole = request("any", *parts)
    content = [(token, b"", -1) for token in whole.prompt_ids]
    owner = [(image, row) for image in whole.media for row in range(image.embedding_rows)]
    for run in whole.mask_runs:
        for offset in range(run.length):
            image, row = owner[run.row + offset]
            content[run.start + offset] = (whole.prompt_ids[run.start + offset], image.digest, row)
    return content


@pytest.mark.parametrize(
    "other",
    [
        picture("dog", 8),
        qwen_clip("cat", 2, 4, 4),
        embedded("cat", data(np.zeros((8, 1), dtype=np.float32))),
        MediaInput(picture("cat", 8).digest, 8, {}, modality=Modality.VIDEO),
        MediaInput(picture("cat", 8).digest, 8, {}, grid=(1, 4, 8)),
        MediaInput(picture("cat", 8).digest, 8, {}, seconds_per_grid=0.5),
    ],
    ids=["picture", "clip", "embeddings", "equal digest, a clip", "equal digest, grid", "equal digest, speed"],
)
def test_the_same_text_with_another_medium_shares_only_the_text_before_it(other: MediaInput) -> None:
    text, question = words(2 * PAGE), words(3 * PAGE, seed=1)
    cat, another = keys(text, picture("cat", 8), question), keys(text, other, question)
    assert shared_pages(cat, another) == 2
    assert not set(cat[2:]) & set(another[2:])


def test_an_image_page_differs_from_a_page_of_the_same_ids_as_text() -> None:
    image = picture("cat", PAGE)
    ids = list(request("any", image).prompt_ids)
    assert keys(image) != keys(ids)


def test_the_same_image_at_another_offset_is_another_page() -> None:
    image = picture("cat", PAGE)
    assert keys([7, 7], image, [7, 7])[0] != keys([7, 7, 7], image, [7])[0]


def test_different_salts_never_share() -> None:
    text = words(4 * PAGE)
    salted = [keys(text, cache_salt=salt) for salt in (b"", b"alice", b"bob")]
    assert not set(salted[0]) & set(salted[1])
    assert not set(salted[1]) & set(salted[2])
    assert keys(text, cache_salt=b"alice") == salted[1]


def test_a_page_depends_on_everything_before_it() -> None:
    tail = words(PAGE)
    assert keys([1, 2, 3, 4], tail)[1] != keys([1, 2, 3, 5], tail)[1]


class Filled:
    """A prefix cache over a small pool, with one prompt of three pages in it."""

    def __init__(self, enabled: bool = True) -> None:
        self.pool = BlockPool(5)
        self.cache = PrefixCache(self.pool, enabled)
        self.keys = keys(words(3 * PAGE))
        self.pages = self.pool.allocate(3) or []
        for key, page in zip(self.keys, self.pages, strict=True):
            self.cache.register(key, page)


def test_the_longest_known_beginning_is_found() -> None:
    filled = Filled()
    longer = keys(words(3 * PAGE), words(2 * PAGE, seed=9))
    assert filled.cache.match(longer) == filled.pages
    assert filled.cache.match(longer[:2]) == filled.pages[:2]
    assert filled.cache.match(keys(words(3 * PAGE, seed=9))) == []


def test_a_beginning_that_was_evicted_hides_what_follows_it() -> None:
    filled = Filled()
    filled.pool.release(filled.pages)  # head first: the wrong order on purpose
    filled.pool.allocate(2)  # one is free, so this evicts the head
    assert filled.cache.match(filled.keys) == []
    assert filled.cache.match(filled.keys[1:]) == filled.pages[1:]


def test_released_pages_are_found_until_they_are_evicted() -> None:
    filled = Filled()
    filled.pool.release(reversed(filled.pages))
    assert filled.cache.match(filled.keys) == filled.pages
    filled.pool.allocate(2)
    assert filled.cache.match(filled.keys) == filled.pages[:2]
    filled.pool.allocate(2)
    assert filled.cache.match(filled.keys) == []


def test_the_first_page_for_a_key_stays_and_the_second_is_not_kept() -> None:
    filled = Filled()
    (twin,) = filled.pool.allocate(1) or []
    filled.cache.register(filled.keys[0], twin)
    filled.pool.release([twin])
    assert not filled.pool.is_kept(twin)
    assert filled.cache.match(filled.keys[:1]) == filled.pages[:1]


def test_a_disabled_cache_finds_and_keeps_nothing() -> None:
    filled = Filled(enabled=False)
    assert filled.cache.match(filled.keys) == []
    filled.pool.release(filled.pages)
    assert not any(filled.pool.is_kept(page) for page in filled.pages)


def test_keys_of_generated_tokens_continue_those_of_the_prompt() -> None:
    text, answer = words(PAGE + 1), words(PAGE, seed=3)
    talking: Sequence = sequence("any", text)
    first = talking.page_keys(PAGE, 1)
    talking.tokens.extend(answer)
    assert talking.page_keys(PAGE, 2) == keys(text, answer)
    assert first == keys(text)


def test_images_are_told_apart_by_digest_not_by_object() -> None:
    again: MediaInput = picture("cat", PAGE)
    assert keys(picture("cat", PAGE), [1]) == keys(again, [1])
