"""Which prompt position takes which row of which image embedding; sliced per chunk, so an image may straddle chunks.

Knows positions and rows only: no tensors, no pixels. Worked example, a request with two images of 3 and 2 rows:

    position   0  1  2  3  4  5  6  7  8
    prompt     a  I  I  I  b  c  J  J  d
    row       -1  0  1  2 -1 -1  3  4 -1      -1 is text, k >= 0 is row k of the concatenated embeddings

    runs       (start 1, row 0, length 3), (start 6, row 3, length 2)
    pieces(2, 7)  the chunk of positions 2..6:
               image 0 rows 1..2 at positions 2..3, image 1 row 0 at position 6
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from fanlight_engine.core.messages import ImageInput, MaskRun


class MaskMismatchError(ValueError):
    """Image positions and embedding rows of a request do not match."""


@dataclass(frozen=True, slots=True)
class Piece:
    """`length` prompt positions from `position` take rows from `row` of image number `image`."""

    position: int
    image: int
    row: int
    length: int


class ImageMask:
    """The image positions of one expanded prompt, in order."""

    def __init__(self, images: Sequence[ImageInput], runs: Sequence[MaskRun], prompt_length: int) -> None:
        """Raises MaskMismatchError unless the runs cover each row of each image exactly once, in order."""
        self._first_rows = (0, *accumulate(image.embedding_rows for image in images))
        _check_runs(runs, self._first_rows[-1], prompt_length)
        self.pieces_in_order = tuple(self._split_by_image(runs))
        self._ends = [piece.position + piece.length for piece in self.pieces_in_order]
        self.last_positions = self._last_positions(len(images))

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
                piece.position + cut_front, piece.image, piece.row + cut_front, piece.length - cut_front - cut_back
            )

    def images(self, start: int, end: int) -> list[int]:
        """Numbers of the images that have a position inside [start, end), in order, each once."""
        return list(dict.fromkeys(piece.image for piece in self.pieces(start, end)))

    def first_position(self, image: int) -> int:
        """The first prompt position of an image."""
        return next(piece.position for piece in self.pieces_in_order if piece.image == image)

    def _split_by_image(self, runs: Sequence[MaskRun]) -> Iterator[Piece]:
        for run in runs:
            position, row, left = run.start, run.row, run.length
            while left:
                image = bisect_right(self._first_rows, row) - 1
                length = min(left, self._first_rows[image + 1] - row)
                yield Piece(position, image, row - self._first_rows[image], length)
                position, row, left = position + length, row + length, left - length

    def _last_positions(self, images: int) -> tuple[int, ...]:
        last = [0] * images
        for piece in self.pieces_in_order:
            last[piece.image] = piece.position + piece.length - 1
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
        raise MaskMismatchError(f"{covered} image positions for {rows} rows of image embeddings")
