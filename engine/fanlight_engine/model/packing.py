"""Turns chunks into the flat host arrays of one packed step. numpy only: knows no device and no model.

All tokens of a step stand in one row, sequence after sequence, decodes first. S sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

import numpy as np

from fanlight_engine.core.block_pool import DUMMY_PAGE
from fanlight_engine.core.scheduler import Chunk
from fanlight_engine.model.attention.interface import Segment

LONG_FACTORS = 1 << 40
"""Added to the positions of tokens whose sequence takes the long factors of LongRoPE, so that what rotates a token
knows which; no context is as long."""


@dataclass(frozen=True, slots=True)
class PromptPositions:
    """Positions of a request's prompt, [position_rows, prompt] int64. Generated tokens go on from its last token's.

    Not from the greatest position of the prompt: the times of a slow clip run ahead of the text behind it.
    """

    of_prompt: np.ndarray

    def between(self, start: int, end: int) -> np.ndarray:
        """Positions of tokens [start, end), [position_rows, end - start]."""
        prompt_length = self.of_prompt.shape[1]
        inside = self.of_prompt[:, start:end]
        steps_behind = np.arange(max(start, prompt_length), end) - (prompt_length - 1)
        return np.concatenate([inside, self.of_prompt[:, -1:] + steps_behind], axis=1)


@dataclass(frozen=True, slots=True)
class PackedStep:
    """Host arrays of one step."""

    ids: np.ndarray
    """[T] int64; positions that take an embedding hold 0, whatever the prompt says there."""
    positions: np.ndarray
    """[position_rows, T] int64; with LONG_FACTORS added where they apply."""
    slots: np.ndarray
    """[T] int64."""
    page_tables: np.ndarray
    """[S, W] int32, padded with the dummy page."""
    context_lengths: np.ndarray
    """[S] int32."""
    decode_rows: int
    prefill_segments: tuple[Segment, ...]
    sampled_rows: np.ndarray
    """Rows of T whose logits are sampled, in the order of the chunks that sample."""
    loras: np.ndarray
    """[T] int64: the number of the LoRA adapter that each token takes; 0 for none."""


def pack(
    chunks: SequenceOf[Chunk], positions: SequenceOf[PromptPositions], page_size: int, page_columns: int
) -> PackedStep:
    """Pack chunks, decodes first, with their requests' positions; page tables get `page_columns` columns.

    This says what a packed step is. It does so chunk by chunk, which is too slow for hundreds of decodes; DecodeRows
    makes the same of these.
    """
    starts = np.cumsum([0, *(chunk.length for chunk in chunks)])
    sampled = [starts[row + 1] - 1 for row, chunk in enumerate(chunks) if chunk.samples]
    page_tables = np.full((len(chunks), page_columns), DUMMY_PAGE, dtype=np.int32)
    for row, chunk in enumerate(chunks):
        page_tables[row, : len(chunk.sequence.pages)] = chunk.sequence.pages
    decode_rows = sum(chunk.is_decode for chunk in chunks)
    return PackedStep(
        ids=np.concatenate([_ids(chunk) for chunk in chunks]),
        positions=np.concatenate(
            [_positions(chunk, one) for one, chunk in zip(positions, chunks, strict=True)], axis=1
        ),
        slots=np.concatenate([_slots(chunk, page_tables[row], page_size) for row, chunk in enumerate(chunks)]),
        page_tables=page_tables,
        context_lengths=np.array([chunk.end for chunk in chunks], dtype=np.int32),
        decode_rows=decode_rows,
        prefill_segments=tuple(
            _segment(chunk, int(starts[row])) for row, chunk in enumerate(chunks) if row >= decode_rows
        ),
        sampled_rows=np.array(sampled, dtype=np.int64),
        loras=np.repeat([_lora_number(chunk) for chunk in chunks], [chunk.length for chunk in chunks]),
    )


def joined(decodes: PackedStep, prefills: PackedStep) -> PackedStep:
    """One step of decodes and of the chunks behind them, which were packed apart; page tables are equally wide."""
    tokens = len(decodes.ids)
    pairs = {
        name: np.concatenate([getattr(decodes, name), getattr(prefills, name)], axis=-1)
        for name in ("ids", "positions", "slots", "context_lengths", "loras")
    }
    return PackedStep(
        **pairs,
        page_tables=np.concatenate([decodes.page_tables, prefills.page_tables]),
        decode_rows=decodes.decode_rows,
        prefill_segments=tuple(replace(one, query_start=one.query_start + tokens) for one in prefills.prefill_segments),
        sampled_rows=np.concatenate([decodes.sampled_rows, prefills.sampled_rows + tokens]),
    )


def as_rows(step: PackedStep) -> PackedStep:
    """The same step as decodes, each token a row of its own that sees what is before it: S = T.

    Keys and values of all rows of a step are written before any row looks at them, so it is the same, provided that no
    position sees what comes after it: the step has no spans.
    """
    segments = step.prefill_segments
    assert not any(one.spans for one in segments), "a row sees nothing behind it"
    rows = [1] * step.decode_rows + [one.query_length for one in segments]
    ends = [np.arange(one.context_length - one.query_length, one.context_length) + 1 for one in segments]
    return replace(
        step,
        page_tables=np.repeat(step.page_tables, rows, axis=0),
        context_lengths=np.concatenate([step.context_lengths[: step.decode_rows], *ends]).astype(np.int32),
        decode_rows=len(step.ids),
        prefill_segments=(),
    )


def _positions(chunk: Chunk, of_request: PromptPositions) -> np.ndarray:
    return of_request.between(chunk.start, chunk.end) + LONG_FACTORS * chunk.sequence.long_factors


def _segment(chunk: Chunk, query_start: int) -> Segment:
    spans = chunk.sequence.spans.touching(chunk.start, chunk.end)
    assert not spans or spans[-1].end <= chunk.end, "a chunk ends inside a span"
    return Segment(query_start, chunk.length, chunk.end, spans)


def _lora_number(chunk: Chunk) -> int:
    lora = chunk.sequence.lora
    return lora.number if lora else 0


def _ids(chunk: Chunk) -> np.ndarray:
    ids = np.array(chunk.sequence.tokens[chunk.start : chunk.end], dtype=np.int64)
    for piece in chunk.sequence.mask.pieces(chunk.start, chunk.end):
        ids[piece.position - chunk.start : piece.position - chunk.start + piece.length] = 0
    return ids


def _slots(chunk: Chunk, page_table: np.ndarray, page_size: int) -> np.ndarray:
    indices = np.arange(chunk.start, chunk.end)
    return page_table[indices // page_size].astype(np.int64) * page_size + indices % page_size
