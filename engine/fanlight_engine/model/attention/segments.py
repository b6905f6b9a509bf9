"""Which keys the queries of prefill chunks see, as one interval for each query. Knows neither pages nor backends.

Every rule that a decoder has is an interval: causal, a sliding window, and spans that see the whole of themselves. A
query at position p sees the keys [first, limit):

    limit   p + 1, or the end of its span
    first   0; with a window of W tokens p - W + 1, or the start of its span where that is lower and the window does
            not bound spans

so that a window changes nothing but `first`, and what is below serves every layer of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Segment:
    """Host-side facts of one sequence's queries: rows [query_start, query_start + query_length) of the packed step.

    The last of them sees `context_length` keys, the one before one less, and so on (causal). `spans` are the runs of
    positions [start, end) that besides see the whole of themselves: those that touch the queries, uncut and in order;
    none of them reaches beyond the context.
    """

    query_start: int
    query_length: int
    context_length: int
    spans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PrefillQueries:
    """The same facts on the device, for the Q queries of all N segments of a step."""

    starts: torch.Tensor
    """[N + 1] int32: where each segment's queries begin, counted from the first query of the first segment."""
    intervals: torch.Tensor
    """[3, Q] int32: each query's position, the key that no window hides from it nor any behind that one, its limit."""

    @classmethod
    def of(cls, segments: Sequence[Segment], window_bounds_spans: bool, device: torch.device) -> PrefillQueries:
        """`window_bounds_spans` is as in PagedBatch."""
        starts = np.cumsum([0, *(segment.query_length for segment in segments)], dtype=np.int32)
        intervals = np.concatenate([_intervals(segment, window_bounds_spans) for segment in segments], axis=1)
        return cls(_to_device(starts, device), _to_device(intervals, device))

    @property
    def limits(self) -> torch.Tensor:
        """[Q] int32: one behind the last key that each query sees."""
        return self.intervals[2]

    def first_keys(self, sliding_window: int | None) -> torch.Tensor:
        """[Q] int32: the first key that each query sees in a layer with that window."""
        positions, kept_from, _ = self.intervals
        if sliding_window is None:
            return torch.zeros_like(positions)
        return torch.minimum(positions - sliding_window + 1, kept_from).clamp(min=0)


def _intervals(segment: Segment, window_bounds_spans: bool) -> np.ndarray:
    """[3, query_length] int32 as in PrefillQueries."""
    first_position = segment.context_length - segment.query_length
    positions = np.arange(first_position, segment.context_length, dtype=np.int32)
    kept_from, limits = positions.copy(), positions + 1
    for start, end in segment.spans:
        inside = slice(max(0, start - first_position), max(0, end - first_position))
        limits[inside] = end
        if not window_bounds_spans:
            kept_from[inside] = start
    return np.stack([positions, kept_from, limits])


def _to_device(values: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values).to(device, non_blocking=True)
