"""Which prompt position takes which row of which medium's embedding; sliced per chunk, so media may straddle chunks.

Knows positions and rows only: no tensors, no pixels. Worked example, a request with two pictures of 3 and 2 rows:

    position   0  1  2  3  4  5  6  7  8
    prompt     a  I  I  I  b  c  J  J  d
    row       -1  0  1  2 -1 -1  3  4 -1      -1 is text, k >= 0 is row k of the concatenated embeddings

    runs       (start 1, row 0, length 3), (start 6, row 3, length 2)
    pieces(2, 7)  the chunk of positions 2..6:
               medium 0 rows 1..2 at positions 2..3, medium 1 row 0 at position 6
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from fanlight_engine.core.messages import MaskRun, MediaInput


class MaskMismatchError(ValueError):
    """Positions and embedding rows of a request's media do not match."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`length` prompt positions from `position` take rows from `row` of medium number `medium`."""

    position: int
    medium: int
    row: int
    length: int


class ImageMask:
    """The positions of one expanded prompt that take embeddings, in order."""

    def __init__(self, media: Sequence[MediaInput], runs: Sequence[MaskRun], prompt_length: int) -> None:
        """Raises MaskMismatchError unless the runs cover each row of each medium exactly once, in order."""
        self._first_rows = (0, *accumulate(medium.embedding_rows for medium in media))
        _check_runs(runs, self._first_rows[-1], prompt_length)
        self.pieces_in_order = tuple(self._split_by_medium(runs))
        self._ends = [piece.position + piece.length for piece in self.pieces_in_order]
        self.last_positions = self._last_positions(len(media))

    @property
    def rows(self) -> int:
        """Prompt positions that take an embedding."""
        return self._first_rows[-1]

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """The pieces inside positions [start, end), cut at its borders."""
        index = bisect_right(self._ends, start)
        for piece in self.pieces_in_order[index:]:
            if max(piece.position, start) >= end:
                return
            cut_front = max(0, start - piece.position)
            cut_back = max(0, piece.position + piece.length - end)
            yield Piece(
                piece.position + cut_front, piece.medium, piece.row + cut_front, piece.length - cut_front - cut_back
            )

    def media(self, start: int, end: int) -> list[int]:
        """Numbers of the media that have a position inside [start, end), in order, each once."""
        return list(dict.fromkeys(piece.medium for piece in self.pieces(start, end)))

    def first_position(self, medium: int) -> int:
        """The first prompt position of a medium."""
        return next(piece.position for piece in self.pieces_in_order if piece.medium == medium)

    def _split_by_medium(self, runs: Sequence[MaskRun]) -> Iterator[Piece]:
        for run in runs:
            position, row, left = run.start, run.row, run.length
            while left:
                medium = bisect_right(self._first_rows, row) - 1
                length = min(left, self._first_rows[medium + 1] - row)
                yield Piece(position, medium, row - self._first_rows[medium], length)
                position, row, left = position + length, row + length, left - length

    def _last_positions(self, media: int) -> tuple[int, ...]:
        last = [0] * media
        for piece in self.pieces_in_order:
            last[piece.medium] = piece.position + piece.length - 1
        return tuple(last)


def _check_runs(runs: Sequence[MaskRun], rows: int, prompt_length: int) -> None:
    covered, free_from = 0, 0
    for run in runs:
        if run.length < 1 or run.row != covered or run.start < free_from:
            raise MaskMismatchError(f"mask run {run} does not follow row {covered} and position {free_from} in order")
        covered, free_from = covered + run.length, run.start + run.length
    if free_from > prompt_length:
        raise MaskMismatchError(f"image positions reach {free_from}, the prompt has {prompt_length} positions")
    if covered != rows:
        raise MaskMismatchError(f"{covered} image positions for {rows} rows of embeddings")
