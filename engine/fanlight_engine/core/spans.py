"""Runs of prompt positions that see the whole of themselves, and what that means for chunks. Knows no tensors.

Where a family has such spans, keys and values of each of their positions depend on all of them. Worked example:

    position   0  1  2  3  4  5  6  7  8
    prompt     a  I  I  J  J  b  K  K  c      I, J, K take rows of three pictures

    MEDIA      spans [1, 5) and [6, 8); the pictures I and J touch, so they see each other
    PROMPT     span [0, 9)
    NONE       no spans

A chunk never ends inside a span. It may begin inside one, where the prefix cache holds the span's beginning.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from fanlight_engine.checkpoints.families import Bidirectional
from fanlight_engine.client import CoreFacts
from fanlight_engine.core.image_mask import ImageMask
from fanlight_engine.core.messages import MediaInput
from fanlight_engine.errors import Reason


class Span(NamedTuple):
    """Positions [start, end)."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """How many positions it has."""
        return self.end - self.start


class Spans:
    """The spans of one prompt, in order."""

    def __init__(self, spans: Iterable[Span], mask: ImageMask | None = None) -> None:
        """`mask` says which media lie in them; None where no medium does."""
        self.in_order = tuple(spans)
        self._starts = [span.start for span in self.in_order]
        self._ends = [span.end for span in self.in_order]
        self._groups = {} if mask is None else _media_groups(self.in_order, mask)

    @property
    def longest(self) -> Span:
        """The first of the longest ones; an empty span where there are none."""
        return max(self.in_order, key=lambda span: span.length, default=Span(0, 0))

    def cut(self, start: int, end: int) -> int:
        """Where a chunk [start, end) has to end so that it ends inside no span; `start` when nothing is left of it."""
        index = bisect_right(self._ends, end)
        if index < len(self.in_order) and self._starts[index] < end:
            return max(start, self._starts[index])
        return end

    def touching(self, start: int, end: int) -> tuple[Span, ...]:
        """The spans, uncut, that have a position inside [start, end)."""
        return self.in_order[bisect_right(self._ends, start) : bisect_left(self._starts, end)]

    def beginning_between(self, start: int, end: int) -> tuple[Span, ...]:
        """The spans, uncut, that begin inside [start, end)."""
        return self.in_order[bisect_left(self._starts, start) : bisect_left(self._starts, end)]

    @property
    def media_groups(self) -> tuple[tuple[int, ...], ...]:
        """The media of all spans, each once, as `media_with` puts them together."""
        return tuple(dict.fromkeys(self._groups.values()))

    def media_with(self, number: int) -> tuple[int, ...]:
        """A medium and those that have to be computed with it, in order: they share a span, or are linked by others."""
        return self._groups.get(number, (number,))


NO_SPANS = Spans(())


def spans_of(bidirectional: Bidirectional, mask: ImageMask, prompt_length: int) -> Spans:
    """The spans of a prompt of a family."""
    if bidirectional is Bidirectional.PROMPT:
        return Spans([Span(0, prompt_length)], mask)
    if bidirectional is Bidirectional.MEDIA:
        return Spans(_unbroken_runs(mask), mask)
    return NO_SPANS


def refusal_of_spans(spans: Spans, media: Sequence[MediaInput], facts: CoreFacts) -> tuple[Reason, str] | None:
    """Why these spans of a prompt could never be computed, with the limit and the fix; None where they can."""
    longest, room = spans.longest, facts.longest_span
    if longest.length > room:
        is_prompt = facts.bidirectional is Bidirectional.PROMPT
        seen = "its tokens" if is_prompt else f"embeddings from position {longest.start} on"
        return (
            Reason.PROMPT_TOO_LONG if is_prompt else Reason.IMAGE_TOO_LARGE,
            f"{longest.length} of {seen} see each other and are computed in one step, which has room for {room} of one "
            f"request (max_step_tokens - max_running_requests + 1); raise max_step_tokens by {longest.length - room} "
            + ("or shorten the prompt" if is_prompt else "or put text between the pictures"),
        )
    for group in spans.media_groups:
        rows = {media[number].digest: media[number].embedding_rows for number in group}
        needed = sum(rows.values()) * facts.embedding_row_bytes
        if needed > facts.vision_cache_bytes:
            return (
                Reason.IMAGE_TOO_LARGE,
                f"{len(group)} media whose positions see each other take {needed} bytes of embeddings, which are held "
                f"together; the vision cache holds {facts.vision_cache_bytes}; raise vision_cache_bytes, or send fewer",
            )
    return None


def _unbroken_runs(mask: ImageMask) -> list[Span]:
    runs: list[Span] = []
    for piece in mask.pieces_in_order:
        end = piece.position + piece.length
        if runs and runs[-1].end == piece.position:
            runs[-1] = Span(runs[-1].start, end)
        else:
            runs.append(Span(piece.position, end))
    return runs


def _media_groups(spans: Iterable[Span], mask: ImageMask) -> dict[int, tuple[int, ...]]:
    """For each medium of a span the group it is in. Media are numbered in the prompt's order, so groups are runs."""
    linked = {pair for span in spans for pair in pairwise(mask.media(*span))}
    groups: list[list[int]] = []
    for number in range(len(mask.last_positions)):
        if (number - 1, number) in linked:
            groups[-1].append(number)
        else:
            groups.append([number])
    return {number: tuple(group) for group in groups for number in group}
