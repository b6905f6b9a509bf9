"""How large the tiles of the Triton kernels are, and how many splits a launch has. Arithmetic on facts of the host.

What a launch depends on is the shape of a step and the device; how long each sequence is only the device knows. Speed
on a chip is unmeasured so far: the reasons are figures of memories and of what the compiler reports.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton

KEY_TILE_BYTES = 16_384
"""Bytes of one tile of keys. Some 26 KiB per SM must be on their way to keep 4.3 TB/s busy. A decode program has two
such tiles and two of values on their way and takes 72 KiB of shared memory: three share an SM of an H100, two one of an
A100."""
LARGEST_KEY_BLOCK = 128
PROGRAMS_PER_PROCESSOR = 2
SHORTEST_SPLIT = 128
"""Keys; two tiles of the usual size. Shorter runs spend their time on starting and joining."""
LONG_SPLIT = 2048
"""Keys that one program walks over at most, so that a full batch does not wait for its longest sequence: a program
alone draws perhaps 50 GB/s, and this many keys are 1 MB."""
MOST_PROGRAMS_PER_PROCESSOR = 16
"""A launch does not grow beyond it for long sequences: that there are any, the host does not know."""
FIXED_SPLITS, SHORTEST_FIXED_SPLIT = 16, 512
"""Where answers must not depend on the batch the longest context has so many splits, of so many keys at least."""
_IS_AMD = torch.version.hip is not None


@dataclass(frozen=True, slots=True)
class Processors:
    """What the device is like, and what is asked of it."""

    count: int
    """Streaming multiprocessors, or compute units."""
    fixed_split: int = 0
    """Keys of every split of a decode row, whatever the batch; 0 lets splits follow from the batch."""

    @classmethod
    def with_fixed_splits(cls, count: int, longest_context: int) -> Processors:
        """Splits that are the same in every batch, for contexts up to that many tokens."""
        fixed = max(SHORTEST_FIXED_SPLIT, triton.cdiv(longest_context, FIXED_SPLITS))
        return cls(count, triton.cdiv(fixed, LARGEST_KEY_BLOCK) * LARGEST_KEY_BLOCK)


@dataclass(frozen=True, slots=True)
class Launch:
    """Sizes of one launch of the attention kernel."""

    is_decode: bool
    tiles: int
    block_m: int
    """Rows of a tile: queries x query heads of one K/V head."""
    splits: int = 1
    shortest_split: int = SHORTEST_SPLIT

    @property
    def warps(self) -> int:
        """With fewer, the sums of a chunk's tile do not fit the registers: ptxas counts spills."""
        return 4 if self.is_decode else 8

    @property
    def stages(self) -> int:
        """Of the pipeline. Looking up pages takes some; decodes want what then still fits, see KEY_TILE_BYTES."""
        if _IS_AMD:
            return 2  # 64 KiB of local memory in all
        return 5 if self.is_decode else 3


@dataclass(frozen=True, slots=True)
class Heads:
    """What the sizes of tiles follow from, besides the step."""

    heads: int
    kv_heads: int
    head_dim: int
    itemsize: int

    @property
    def group(self) -> int:
        """Query heads of one K/V head."""
        return self.heads // self.kv_heads

    @property
    def block_d(self) -> int:
        """The power of two that tiles have for head_dim; 16 at least, for tensor cores."""
        return max(16, triton.next_power_of_2(self.head_dim))

    @property
    def block_n(self) -> int:
        """Keys of a tile: KEY_TILE_BYTES of them, a power of two."""
        return min(LARGEST_KEY_BLOCK, max(16, KEY_TILE_BYTES // (self.block_d * self.itemsize)))


def decode_launch(heads: Heads, rows: int, longest: int, processors: Processors) -> Launch:
    """`rows` sequences of one query each, none of which sees more than `longest` keys."""
    block_m = max(16, triton.next_power_of_2(heads.group))  # 16 rows are the least that tensor cores take
    launch = Launch(True, rows, block_m)
    if processors.fixed_split:
        splits = triton.cdiv(longest, processors.fixed_split)
        return replace(launch, splits=splits, shortest_split=processors.fixed_split)
    return _split(launch, longest, heads.kv_heads, processors.count)


def prefill_launch(heads: Heads, queries: int, segments: int, longest: int, processors: Processors) -> Launch:
    """`queries` of some segments, none of which sees more than `longest` keys.

    A segment's last tile may be filled in part, so that tiles are counted as if each segment had one more.
    """

    def launch(rows: int) -> Launch:
        block_m = max(rows, triton.next_power_of_2(heads.group))
        return Launch(False, queries // (block_m // heads.group) + segments, block_m)

    is_half = heads.itemsize == 2
    small = launch(64 if is_half else 16)  # float32 has no tensor cores here, and its sums must fit the registers
    if processors.fixed_split:
        return small
    large = launch(128)  # keys are read half as often, where enough tiles remain
    if is_half and heads.head_dim <= 128 and large.tiles * heads.kv_heads >= processors.count:
        return large
    return _split(small, longest, heads.kv_heads, processors.count)


def _split(launch: Launch, longest: int, kv_heads: int, processors: int) -> Launch:
    """As many splits as keep all processors busy, and besides so many that none has more than LONG_SPLIT keys.

    The kernel gives each split an even share of the keys that a sequence really has, but not less than
    `shortest_split`; splits that are left without one end at once.
    """
    programs, wanted = launch.tiles * kv_heads, PROGRAMS_PER_PROCESSOR * processors
    for_long_ones = min(triton.cdiv(longest, LONG_SPLIT), MOST_PROGRAMS_PER_PROCESSOR * processors // programs)
    splits = max(triton.cdiv(wanted, programs), for_long_ones)
    shortest = SHORTEST_SPLIT if programs < wanted else LONG_SPLIT // 2
    return replace(launch, splits=min(splits, triton.cdiv(longest, shortest)), shortest_split=shortest)
