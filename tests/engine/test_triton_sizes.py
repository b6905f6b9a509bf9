"""Launches follow from shapes and the device alone: they keep it busy, stay bounded, and are fixed where asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton", reason="needs the package triton")

from fanlight_engine.model.attention.triton_sizes import (
    FIXED_SPLITS,
    MOST_PROGRAMS_PER_PROCESSOR,
    PROGRAMS_PER_PROCESSOR,
    SHORTEST_SPLIT,
    Heads,
    Processors,
    decode_launch,
    prefill_launch,
)

EIGHT_BILLION = Heads(heads=32, kv_heads=8, head_dim=128, itemsize=2)
H100 = Processors(132)
HEADS = st.builds(
    lambda kv_heads, group, head_dim, itemsize: Heads(kv_heads * group, kv_heads, head_dim, itemsize),
    st.sampled_from([1, 2, 4, 8, 32]),
    st.integers(1, 16),
    st.sampled_from([8, 64, 80, 128, 256]),
    st.sampled_from([2, 4]),
)


def test_one_long_request_occupies_the_whole_device() -> None:
    launch = decode_launch(EIGHT_BILLION, 1, 32_768, H100)
    assert launch.splits * EIGHT_BILLION.kv_heads >= PROGRAMS_PER_PROCESSOR * H100.count


def test_a_full_batch_of_short_requests_is_not_split() -> None:
    assert decode_launch(EIGHT_BILLION, 256, 1024, H100).splits == 1


def test_tiles_of_keys_have_the_same_bytes_whatever_heads_are_wide() -> None:
    assert [Heads(8, 8, head_dim, 2).block_n for head_dim in (64, 128, 256)] == [128, 64, 32]


@given(HEADS, st.integers(1, 512), st.integers(1, 1 << 17), st.integers(1, 200))
def test_launches_stay_bounded_and_splits_are_whole_tiles(heads: Heads, rows: int, longest: int, count: int) -> None:
    launch = decode_launch(heads, rows, longest, Processors(count))
    programs = launch.splits * rows * heads.kv_heads
    assert launch.splits >= 1
    assert launch.splits == 1 or programs <= MOST_PROGRAMS_PER_PROCESSOR * count
    assert launch.splits == 1 or launch.splits <= -(-longest // SHORTEST_SPLIT)
    assert launch.shortest_split % heads.block_n == 0


@given(HEADS, st.integers(1, 512), st.integers(1, 1 << 17))
def test_fixed_splits_are_those_of_a_row_alone(heads: Heads, rows: int, longest: int) -> None:
    fixed = Processors.with_fixed_splits(132, 1 << 17)
    together, alone = decode_launch(heads, rows, longest, fixed), decode_launch(heads, 1, longest, fixed)
    assert (together.splits, together.shortest_split) == (alone.splits, alone.shortest_split)
    assert together.splits <= FIXED_SPLITS
    assert together.shortest_split * together.splits >= longest, "no split is longer than the fixed length"
    assert together.shortest_split % heads.block_n == 0


@given(HEADS, st.lists(st.integers(1, 300), min_size=1, max_size=8), st.integers(1, 1 << 17), st.booleans())
def test_every_query_of_every_segment_has_a_tile(
    heads: Heads, lengths: list[int], longest: int, is_deterministic: bool
) -> None:
    processors = Processors.with_fixed_splits(132, 1 << 17) if is_deterministic else H100
    launch = prefill_launch(heads, sum(lengths), len(lengths), longest, processors)
    queries_of_a_tile = launch.block_m // heads.group
    assert queries_of_a_tile >= 1
    starts = [sum(lengths[:index]) for index in range(len(lengths) + 1)]
    tiles_of = [start // queries_of_a_tile + index for index, start in enumerate(starts)]
    for index, length in enumerate(lengths):
        assert (tiles_of[index + 1] - tiles_of[index]) * queries_of_a_tile >= length
    assert tiles_of[-1] <= launch.tiles, "the last segment has its tiles, too"
    assert not is_deterministic or launch.splits == 1
