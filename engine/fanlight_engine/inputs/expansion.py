"""Placeholders -> the positions a medium really takes, and which of these take a row of its embedding.

The i-th image placeholder belongs to the i-th picture, the i-th video placeholder to the i-th clip. Two ways: `expand`
puts ids in the place of ids; `rows_of_expanded` finds the rows in ids of a text that was expanded before it was
tokenised, which replacements with ordinary text at their border need. Knows ids and counts only: it tokenises nothing.
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
    """Ids that stand where one medium's placeholder stood; `runs` are (offset, length) of those that take rows.

    `text` is the same spelled out. Where it `merges`, the text around it may change what it is tokenised to: `ids` are
    those of the text alone.
    """

    ids: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]
    text: str = ""
    merges: bool = False

    @property
    def rows(self) -> int:
        """Embedding rows that the medium needs."""
        return sum(length for _, length in self.runs)

    @property
    def row_ids(self) -> frozenset[int]:
        """Ids at the positions that take rows."""
        return frozenset(self.ids[offset] for offset, _ in self.runs)


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


def replacement_from(ids: Sequence[int], row_id: int, text: str = "", merges: bool = False) -> Replacement:
    """The positions that hold `row_id` take rows; separators and tags keep their own ids."""
    positions = [offset for offset, token_id in enumerate(ids) if token_id == row_id]
    return Replacement(tuple(ids), tuple(_runs(positions)), text, merges)


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


def rows_of_expanded(ids: Sequence[int], replacements: Sequence[Replacement], field: str) -> ExpandedPrompt:
    """The prompt with these ids, in which the replacements stand in order already.

    Raises InvalidRequestError where the prompt has further ids that only media may have.
    """
    row_ids = frozenset[int]().union(*(replacement.row_ids for replacement in replacements))
    positions = [position for position, token_id in enumerate(ids) if token_id in row_ids]
    rows = sum(replacement.rows for replacement in replacements)
    if len(positions) != rows:
        raise InvalidRequestError(
            field,
            f"it has {len(positions)} of the tokens that take a medium's embeddings, its media have {rows}; leave out "
            "those that stand in its text",
            Reason.IMAGE_COUNT_MISMATCH,
        )
    runs: list[MaskRun] = []
    ranges: list[tuple[MaskRun, ...]] = []
    row = 0
    for replacement in replacements:
        own: list[MaskRun] = []
        for start, length in _runs(positions[row : row + replacement.rows]):
            own.append(MaskRun(start, row, length))
            row += length
        for run in own:
            _append_run(runs, run)
        ranges.append(tuple(own))
    return ExpandedPrompt(tuple(ids), tuple(runs), tuple(ranges))


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

    Rope indices of the M-RoPE families tell media apart by what stands between them. The pieces of one clip may be as
    they are.
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


def _runs(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending positions as (start, length) of those that follow each other."""
    runs: list[tuple[int, int]] = []
    for position in positions:
        if runs and sum(runs[-1]) == position:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((position, 1))
    return runs


def _append_run(runs: list[MaskRun], run: MaskRun) -> None:
    """Neighbouring runs whose rows follow on become one."""
    if runs and runs[-1].start + runs[-1].length == run.start:
        last = runs.pop()
        run = MaskRun(last.start, last.row, last.length + run.length)
    runs.append(run)
