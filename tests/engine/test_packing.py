"""A packed step says for every token where it stands, where its K/V go, and what it may see."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fanlight_engine.checkpoints.families import Bidirectional
from fanlight_engine.core.block_pool import DUMMY_PAGE
from fanlight_engine.core.scheduler import Chunk
from fanlight_engine.core.sequence import Sequence
from fanlight_engine.model.attention.interface import Segment
from fanlight_engine.model.packing import LONG_FACTORS, PackedStep, PromptPositions, pack
from tests.engine.builders import picture, sequence, words

PAGE = 4


def placed(one: Sequence, pages: list[int], generated: int = 0) -> Sequence:
    """The sequence with pages and some generated tokens."""
    one.pages = pages
    one.tokens.extend(range(1000, 1000 + generated))
    return one


def positions_of(one: Sequence, rows: int = 1) -> PromptPositions:
    """Positions that tell request, row and index apart: index + 100 x row."""
    return PromptPositions(np.arange(one.prompt_length) + 100 * np.arange(rows)[:, None])


def packed(chunks: list[Chunk], columns: int = 8) -> PackedStep:
    return pack(chunks, [positions_of(chunk.sequence) for chunk in chunks], PAGE, columns)


def test_tokens_stand_in_a_row_with_their_positions_and_slots() -> None:
    stream = placed(sequence("stream", words(6)), [3, 9], generated=1)
    prompt = placed(sequence("prompt", words(7, seed=1)), [5, 2])
    step = packed([Chunk(stream, 6, 1, is_decode=True), Chunk(prompt, 2, 4)])
    assert step.ids.tolist() == [1000, *words(7, seed=1)[2:6]]
    assert step.positions.tolist() == [[6, 2, 3, 4, 5]]
    assert step.slots.tolist() == [9 * PAGE + 2, 5 * PAGE + 2, 5 * PAGE + 3, 2 * PAGE, 2 * PAGE + 1]
    assert step.context_lengths.tolist() == [7, 6]
    assert step.decode_rows == 1
    assert step.prefill_segments == (Segment(1, 4, 6),)
    assert step.page_tables.tolist() == [[3, 9] + [DUMMY_PAGE] * 6, [5, 2] + [DUMMY_PAGE] * 6]


def test_only_chunks_that_reach_the_end_are_sampled_at_their_last_row() -> None:
    stream = placed(sequence("stream", words(6)), [1, 2], generated=2)
    half, whole = placed(sequence("half", words(7)), [3, 4]), placed(sequence("whole", words(3)), [5])
    step = packed([Chunk(stream, 7, 1, is_decode=True), Chunk(half, 0, 5), Chunk(whole, 0, 3)])
    assert step.sampled_rows.tolist() == [0, 8]


def test_ids_at_image_positions_are_zero_whatever_the_prompt_says_there() -> None:
    one = placed(sequence("images", [5, 6], picture("a", 3), [8], picture("b", 2), [9]), [1, 2, 3])
    assert packed([Chunk(one, 0, 9)]).ids.tolist() == [5, 6, 0, 0, 0, 8, 0, 0, 9]
    assert packed([Chunk(one, 3, 4)]).ids.tolist() == [0, 0, 8, 0]


@pytest.mark.parametrize("rows", [1, 3])
def test_positions_go_on_behind_the_prompt_from_its_last_token(rows: int) -> None:
    """Also where a clip before it reached further: 40 is its greatest position here."""
    positions = PromptPositions(np.array([0, 1, 40, 2, 3]) + 100 * np.arange(rows)[:, None])
    expected = {(2, 4): [40, 2], (4, 7): [3, 4, 5], (5, 6): [4], (9, 10): [8]}
    for (start, end), row in expected.items():
        assert positions.between(start, end).tolist() == [[100 * one + at for at in row] for one in range(rows)]


def test_positions_say_which_tokens_take_the_long_rotary_factors() -> None:
    short = placed(sequence("short", words(6)), [3, 9], generated=1)
    long = placed(sequence("long", words(7, seed=1)), [5, 2])
    short.take_factors(7)
    long.take_factors(6)
    step = packed([Chunk(short, 6, 1, is_decode=True), Chunk(long, 0, 3)])
    assert step.positions.tolist() == [[6, LONG_FACTORS, LONG_FACTORS + 1, LONG_FACTORS + 2]]


def test_spans_that_a_chunk_touches_are_told_whole() -> None:
    parts = (words(2), picture("a", 3), words(2), picture("b", 3), words(1))
    one = placed(sequence("one", *parts, bidirectional=Bidirectional.MEDIA), [1, 2, 3])
    other = placed(sequence("other", words(3), bidirectional=Bidirectional.PROMPT), [4, 5], generated=2)
    step = packed([Chunk(one, 3, 7), Chunk(other, 3, 1), Chunk(other, 0, 4)])
    assert step.prefill_segments == (
        Segment(0, 7, 10, ((2, 5), (7, 10))),
        Segment(7, 1, 4),
        Segment(8, 4, 4, ((0, 3),)),
    )
    if __debug__:
        with pytest.raises(AssertionError, match="ends inside a span"):
            packed([Chunk(one, 0, 4)])


def test_all_slots_of_a_step_are_different_and_inside_their_own_pages() -> None:
    rng = random.Random(1)
    free = rng.sample(range(1, 200), 199)
    chunks = []
    for number in range(12):
        one = sequence(str(number), words(rng.randint(1, 30), seed=number))
        placed(one, [free.pop() for _ in range(-(-one.length // PAGE))])
        start = rng.randrange(one.length)
        chunks.append(Chunk(one, start, rng.randint(1, one.length - start)))
    step = packed(chunks)
    assert len(set(step.slots.tolist())) == len(step.slots) == len(step.ids)
    assert [segment.query_length for segment in step.prefill_segments] == [chunk.length for chunk in chunks]
    for chunk, segment in zip(chunks, step.prefill_segments, strict=True):
        own = step.slots[segment.query_start : segment.query_start + segment.query_length]
        assert [slot // PAGE for slot in own] == [
            chunk.sequence.pages[index // PAGE] for index in range(chunk.start, chunk.end)
        ]
        assert [slot % PAGE for slot in own] == [index % PAGE for index in range(chunk.start, chunk.end)]


def test_arrays_have_the_types_that_the_device_side_expects() -> None:
    step = packed([Chunk(placed(sequence("any", words(3)), [1]), 0, 3)])
    assert {
        name: getattr(step, name).dtype.name for name in ("ids", "positions", "slots", "sampled_rows")
    } == dict.fromkeys(("ids", "positions", "slots", "sampled_rows"), "int64")
    assert step.page_tables.dtype == step.context_lengths.dtype == np.int32
