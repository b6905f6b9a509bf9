"""What decode steps need of the running sequences, in arrays that last: a row is written when it changes hands, then it
only grows. A step gathers its rows, whatever the prompts' lengths, and computes the rest for all of them at once.

The same step as `pack` makes of decodes, tested equal. numpy only: knows no device and no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf

import numpy as np

from fanlight_engine.core.block_pool import DUMMY_PAGE
from fanlight_engine.core.scheduler import Chunk
from fanlight_engine.core.sequence import Sequence
from fanlight_engine.model.packing import LONG_FACTORS, PackedStep, PromptPositions


class DecodeRows:
    """A row for each running sequence, the one that its `row` says. R rows, P position rows."""

    def __init__(
        self,
        max_rows: int,
        max_pages: int,
        position_rows: int,
        page_size: int,
        positions: Mapping[str, PromptPositions],
    ) -> None:
        """`positions` are those of all requests by id, the caller's own."""
        self._page_size = page_size
        self._positions = positions
        self._page_tables = np.full((max_rows, max_pages), DUMMY_PAGE, dtype=np.int32)
        self._gathered = np.full((max_rows, max_pages), DUMMY_PAGE, dtype=np.int32)
        self._gathered_rows: list[int] = []
        """The rows of the step before, in order: most steps have the same, and then little of their pages changes."""
        self._beyond_index = np.zeros((position_rows, max_rows), dtype=np.int64)
        """[P, R]: the position of a generated token, less its index in the sequence."""
        self._loras = np.zeros(max_rows, dtype=np.int64)
        self._pages: list[list[int]] = [[] for _ in range(max_rows)]
        """The very list that each row was written from: pages that were given back are followed by another list."""
        self._pages_written = [0] * max_rows

    def pack(self, chunks: SequenceOf[Chunk], page_columns: int) -> PackedStep:
        """Pack chunks of one token each, all decodes of running sequences. The next call overwrites the page tables."""
        numbers = [chunk.sequence.row for chunk in chunks]
        changed = self._update([chunk.sequence for chunk in chunks])
        rows = np.array(numbers, dtype=np.int64)
        indices = np.array([chunk.start for chunk in chunks], dtype=np.int64)
        steps = np.arange(len(chunks))
        page_tables = self._gathered_page_tables(numbers, changed)[:, :page_columns]
        pages = page_tables[steps, indices // self._page_size].astype(np.int64)
        return PackedStep(
            ids=np.array([chunk.sequence.tokens[chunk.start] for chunk in chunks], dtype=np.int64),
            positions=self._beyond_index.take(rows, axis=1) + indices,
            slots=pages * self._page_size + indices % self._page_size,
            page_tables=page_tables,
            context_lengths=(indices + 1).astype(np.int32),
            decode_rows=len(chunks),
            prefill_segments=(),
            sampled_rows=steps,
            loras=self._loras.take(rows),
        )

    def _update(self, sequences: SequenceOf[Sequence]) -> list[int]:
        """Bring the sequences' rows up to date; the places in the step of those that changed."""
        changed: list[int] = []
        for place, sequence in enumerate(sequences):
            if sequence.pages is not self._pages[sequence.row]:
                self._take(sequence)
            elif len(sequence.pages) > self._pages_written[sequence.row]:
                self._write_pages(sequence)
            else:
                continue
            changed.append(place)
        return changed

    def _gathered_page_tables(self, rows: list[int], changed: list[int]) -> np.ndarray:
        """[rows, max_pages]: those of the step before, but for what changed, where its rows were the same."""
        gathered = self._gathered[: len(rows)]
        if rows == self._gathered_rows:
            for place in changed:
                gathered[place] = self._page_tables[rows[place]]
        else:
            self._page_tables.take(rows, axis=0, out=gathered)
            self._gathered_rows = rows
        return gathered

    def _take(self, sequence: Sequence) -> None:
        """Write all of a row whose sequence, or whose pages, are others now."""
        row, of_prompt = sequence.row, self._positions[sequence.id].of_prompt
        self._beyond_index[:, row] = of_prompt[:, -1] - (sequence.prompt_length - 1)
        self._beyond_index[:, row] += LONG_FACTORS * sequence.long_factors
        self._loras[row] = sequence.lora.number if sequence.lora else 0
        self._page_tables[row] = DUMMY_PAGE
        self._pages[row] = sequence.pages
        self._pages_written[row] = 0
        self._write_pages(sequence)

    def _write_pages(self, sequence: Sequence) -> None:
        written, count = self._pages_written[sequence.row], len(sequence.pages)
        self._page_tables[sequence.row, written:count] = sequence.pages[written:]
        self._pages_written[sequence.row] = count
