"""Placeholders -> the positions a medium really takes, and which of these take a row of its embedding.

The i-th image placeholder belongs to the i-th picture, the i-th video placeholder to the i-th clip. Knows ids and
counts only: no text, no pixels, no tensors.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from fanlight_engine.core.messages import MaskRun
from fanlight_engine.errors import InvalidRequestError, Reason
from fanlight_engine.request import Modality


@dataclass(frozen=True, slots=True)
class Replacement:
    """Ids that stand where one medium's placeholder stood; `runs` are (offset, length) of those that take rows."""

    ids: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]

    @property
    def rows(self) -> int:
        """Embedding rows that the medium needs."""
        return sum(length for _, length in self.runs)


@dataclass(frozen=True, slots=True)
class ExpandedPrompt:
    """What the core computes: ids, and the runs of positions that take rows of the request's media embeddings.

    `ranges` are the same positions by medium, in the prompt's order.
    """

    ids: tuple[int, ...]
    mask_runs: tuple[MaskRun, ...]
    ranges: tuple[tuple[MaskRun, ...], ...] = ()

    @property
    def image_tokens(self) -> int:
        """Positions that take an embedding row."""
        return sum(run.length for run in self.mask_runs)


def replacement_from(ids: Sequence[int], placeholder_id: int) -> Replacement:
    """The positions that hold the placeholder take rows; separators and tags keep their own ids."""
    runs: list[tuple[int, int]] = []
    for offset, token_id in enumerate(ids):
        if token_id != placeholder_id:
            continue
        if runs and sum(runs[-1]) == offset:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((offset, 1))
    return Replacement(tuple(ids), tuple(runs))


def expand(ids: Sequence[int], places: Sequence[int], replacements: Sequence[Replacement]) -> ExpandedPrompt:
    """Put `replacements[i]` where `places[i]` points to, in ascending order; rows count on over all media."""
    expanded: list[int] = []
    runs: list[MaskRun] = []
    ranges: list[tuple[MaskRun, ...]] = []
    copied, row = 0, 0
    for place, replacement in zip(places, replacements, strict=True):
        expanded.extend(ids[copied:place])
        own: list[MaskRun] = []
        for offset, length in replacement.runs:
            own.append(MaskRun(len(expanded) + offset, row, length))
            row += length
        for run in own:
            _append_run(runs, run)
        ranges.append(tuple(own))
        expanded.extend(replacement.ids)
        copied = place + 1
    expanded.extend(ids[copied:])
    return ExpandedPrompt(tuple(expanded), tuple(runs), tuple(ranges))


def assign(
    placeholders: Sequence[tuple[int, int]], media: Sequence[tuple[Modality, int]], field: str
) -> list[tuple[int, int]]:
    """(place, number of the medium) for each placeholder of a prompt, in the prompt's order.

    `placeholders` are (place, id) in order, `media` (modality, placeholder id) in the request's order: the i-th
    placeholder of an id belongs to the i-th medium of that id. Raises InvalidRequestError naming both counts.
    """
    waiting: dict[int, deque[int]] = {}
    for number, (_, placeholder_id) in enumerate(media):
        waiting.setdefault(placeholder_id, deque()).append(number)
    found = Counter(placeholder_id for _, placeholder_id in placeholders)
    for placeholder_id in {*found, *waiting}:
        brought = len(waiting.get(placeholder_id, ()))
        if found[placeholder_id] != brought:
            kinds = {modality for modality, own_id in media if own_id == placeholder_id} or {Modality.IMAGE}
            kind = " or ".join(sorted(kinds))
            raise InvalidRequestError(
                field,
                f"it has {found[placeholder_id]} {kind} placeholder(s) for {brought} {kind}(s); both counts must be "
                "equal",
                Reason.IMAGE_COUNT_MISMATCH,
            )
    return [(place, waiting[placeholder_id].popleft()) for place, placeholder_id in placeholders]


def refuse_touching(prompt: ExpandedPrompt, modalities: Sequence[Modality], field: str) -> None:
    """Raise InvalidRequestError where two media of one kind (`modalities` in prompt order) stand side by side.

    Rope indices of the M-RoPE families tell media apart by what stands between them.
    """
    pairs = zip(prompt.ranges, prompt.ranges[1:], modalities, modalities[1:], strict=False)
    for before, after, kind, next_kind in pairs:
        if kind is next_kind and before[-1].start + before[-1].length == after[0].start:
            raise InvalidRequestError(
                field,
                f"two {kind}s touch at position {after[0].start} of the expanded prompt, where this model cannot tell "
                "them apart; put a token between them",
                Reason.IMAGE_COUNT_MISMATCH,
            )


def _append_run(runs: list[MaskRun], run: MaskRun) -> None:
    """Neighbouring runs whose rows follow on become one."""
    if runs and runs[-1].start + runs[-1].length == run.start:
        last = runs.pop()
        run = MaskRun(last.start, last.row, last.length + run.length)
    runs.append(run)
