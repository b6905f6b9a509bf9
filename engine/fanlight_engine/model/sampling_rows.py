"""Sampling parameters of the running sequences, in arrays that last: a row is written when it changes hands.

A step gathers its rows out of them, and what kinds of work these need. Knows sequences; knows nothing of logits.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
import torch

from fanlight_engine.core.messages import AddRequest
from fanlight_engine.core.sequence import Sequence
from fanlight_engine.model.sampler import MAX_SUPPRESSED_IDS, SamplingMode, SamplingRows

_PADDING = -1
_CPU = torch.device("cpu")


class SamplingTable:
    """A row for each running sequence, the one that its `row` says."""

    def __init__(self, max_rows: int) -> None:
        self._rows = SamplingRows.allocate(max_rows, _CPU)
        self._requests: list[AddRequest | None] = [None] * max_rows
        """Whose parameters are in each row."""
        self._may_end_from = np.zeros(max_rows, dtype=np.int64)
        """The length of its sequence from which on the row's `suppressed_ids` may be chosen."""
        self._kinds = np.zeros((4, max_rows), dtype=bool)
        """Whether the row draws, filters, wants logprobs, and has penalties."""
        self._nothing_suppressed = torch.full((max_rows, MAX_SUPPRESSED_IDS), _PADDING)

    def rows_of(self, sequences: SequenceOf[Sequence]) -> tuple[SamplingRows, SamplingMode]:
        """Host tensors of the parameters of running sequences, each a row, and what kinds of work they need."""
        for sequence in sequences:
            if sequence.request is not self._requests[sequence.row]:
                self._take(sequence)
        rows = np.array([sequence.row for sequence in sequences], dtype=np.int64)
        lengths = np.array([len(sequence.tokens) for sequence in sequences], dtype=np.int64)
        is_suppressed = lengths < self._may_end_from.take(rows)
        suppresses = bool(is_suppressed.any())
        draws, filters, logprobs, penalises = map(bool, np.any(self._kinds.take(rows, axis=1), axis=1))
        gathered = self._gathered(torch.from_numpy(rows), torch.from_numpy(lengths), is_suppressed, suppresses)
        return gathered, SamplingMode(draws, filters, suppresses, logprobs, penalises)

    def _gathered(
        self, rows: torch.Tensor, lengths: torch.Tensor, is_suppressed: np.ndarray, suppresses: bool
    ) -> SamplingRows:
        table, suppressed_ids = self._rows, self._nothing_suppressed[: len(rows)]
        if suppresses:
            held_back = torch.from_numpy(is_suppressed)[:, None]
            suppressed_ids = torch.where(held_back, table.suppressed_ids.index_select(0, rows), _PADDING)
        return SamplingRows(
            temperatures=table.temperatures.index_select(0, rows),
            top_ps=table.top_ps.index_select(0, rows),
            top_ks=table.top_ks.index_select(0, rows),
            min_ps=table.min_ps.index_select(0, rows),
            seeds=table.seeds.index_select(0, rows),
            positions=lengths,
            output_indices=table.output_indices.index_select(0, rows),
            suppressed_ids=suppressed_ids,
        )

    def _take(self, sequence: Sequence) -> None:
        row, one = sequence.row, sequence.request.sampling
        table, ends = self._rows, one.end_ids + one.stop_token_ids
        table.temperatures[row] = one.temperature
        table.top_ps[row] = one.top_p
        table.top_ks[row] = one.top_k
        table.min_ps[row] = one.min_p
        table.seeds[row] = _as_int64(one.seed)
        table.suppressed_ids[row] = _PADDING
        table.suppressed_ids[row, : len(ends)] = torch.tensor(ends[:MAX_SUPPRESSED_IDS], dtype=torch.int64)
        self._may_end_from[row] = sequence.prompt_length + one.min_new_tokens if ends else 0
        draws = one.temperature > 0
        self._kinds[:, row] = (
            draws,
            draws and bool(one.top_k or one.top_p < 1 or one.min_p),
            one.logprobs,
            one.has_penalties,
        )
        self._requests[row] = sequence.request


def _as_int64(seed: int) -> int:
    """The same 64 bits, read as a signed number."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed
