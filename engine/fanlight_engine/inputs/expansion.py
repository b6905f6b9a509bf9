"""Placeholders -> the positions an image really takes, and which of these take a row of its embedding.

The i-th placeholder belongs to the i-th image. Knows ids and counts only: no text, no pixels, no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fanlight_engine.core.messages import MaskRun
from fanlight_engine.errors import InvalidRequestError, Reason


@dataclass(frozen=True, slots=True)
class Replacement:
    """Ids that stand where one image's placeholder stood; `runs` are (offset, length) of those that take rows."""

    ids: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]

    @property
    def rows(self) -> int:
        """Embedding rows that the image needs."""
        return sum(length for _, length in self.runs)


@dataclass(frozen=True, slots=True)
class ExpandedPrompt:
    """What the core computes: ids, and the runs of positions that take rows of the request's image embeddings."""

    ids: tuple[int, ...]
    mask_runs: tuple[MaskRun, ...]

    @property
    def image_tokens(self) -> int:
        """Positions that take an embedding row."""
        return sum(run.length for run in self.mask_runs)


def replacement_from(ids: Sequence[int], image_token_id: int) -> Replacement:
    """The positions that hold the image token take rows; separators and tags keep their own ids."""
    runs: list[tuple[int, int]] = []
    for offset, token_id in enumerate(ids):
        if token_id != image_token_id:
            continue
        if runs and sum(runs[-1]) == offset:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((offset, 1))
    return Replacement(tuple(ids), tuple(runs))


def expand(
    ids: Sequence[int],
    placeholders: Sequence[int],
    replacements: Sequence[Replacement],
    embedding_rows: Sequence[int],
    field: str,
) -> ExpandedPrompt:
    """Put `replacements[i]` where `placeholders[i]` points to; rows count on over all images of the request.

    `embedding_rows[i]` is what image i will bring. Raises InvalidRequestError on any difference of counts.
    """
    refuse_count_mismatch(len(placeholders), len(replacements), field)
    expanded: list[int] = []
    runs: list[MaskRun] = []
    copied, row = 0, 0
    for placeholder, replacement in zip(placeholders, replacements, strict=True):
        expanded.extend(ids[copied:placeholder])
        for offset, length in replacement.runs:
            _append_run(runs, MaskRun(len(expanded) + offset, row, length))
            row += length
        expanded.extend(replacement.ids)
        copied = placeholder + 1
    expanded.extend(ids[copied:])
    if row != sum(embedding_rows):
        raise InvalidRequestError(
            field,
            f"its images bring {sum(embedding_rows)} embedding rows for {row} positions; the checkpoint's processor "
            "and model disagree",
            Reason.IMAGE_COUNT_MISMATCH,
        )
    return ExpandedPrompt(tuple(expanded), tuple(runs))


def refuse_count_mismatch(placeholders: int, images: int, field: str) -> None:
    """Raise InvalidRequestError naming both counts unless they are equal."""
    if placeholders != images:
        raise InvalidRequestError(
            field,
            f"it has {placeholders} image placeholder(s) for {images} image(s); both counts must be equal",
            Reason.IMAGE_COUNT_MISMATCH,
        )


def _append_run(runs: list[MaskRun], run: MaskRun) -> None:
    """Neighbouring runs whose rows follow on become one."""
    if runs and runs[-1].start + runs[-1].length == run.start:
        last = runs.pop()
        run = MaskRun(last.start, last.row, last.length + run.length)
    runs.append(run)
