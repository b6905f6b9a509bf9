"""Penalties on tokens that a sequence has had: which it has had, kept on the device, and what that does to logits.

Marks are one number per token of the vocabulary for each sequence that has penalties: as much memory as the logits of
as many rows, and not allocated before the first such sequence is sampled. Each step then adds one new token for each
of them; lists of ids would be sent whole at every step, and for long prompts be larger than the marks. In a decode step
the new token is the one that goes in: the device marks it itself, and the host need not know it yet.

Marks are a copy of what the sequence's tokens say. A sequence that lost its slot to another, for example while it was
preempted, gets one again with marks made anew; so does one whose update failed half-way.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import torch

from fanlight_engine.core.sequence import Sequence
from fanlight_engine.model.rows import Rows

_IN_PROMPT = 1
_GENERATED_ONCE = 2


@dataclass(frozen=True, slots=True)
class PenaltyRows(Rows):
    """Penalties of B rows, and where their marks are, as tensors at fixed addresses."""

    repetitions: torch.Tensor
    """[B] float32; 1 is off."""
    presences: torch.Tensor
    """[B] float32; 0 is off."""
    frequencies: torch.Tensor
    """[B] float32; 0 is off."""
    slots: torch.Tensor
    """[B] int64: rows of the marks; any for a row without penalties."""
    unmarked: torch.Tensor
    """[B] int32: what the token that goes into the step adds to its own mark; 0 where it is marked already, and for a
    row without penalties."""

    @classmethod
    def allocate(cls, rows: int, device: torch.device) -> PenaltyRows:
        """Rows without penalties."""
        return cls(
            repetitions=torch.ones(rows, dtype=torch.float32, device=device),
            presences=torch.zeros(rows, dtype=torch.float32, device=device),
            frequencies=torch.zeros(rows, dtype=torch.float32, device=device),
            slots=torch.zeros(rows, dtype=torch.int64, device=device),
            unmarked=torch.zeros(rows, dtype=torch.int32, device=device),
        )


def mark_inputs(ids: torch.Tensor, rows: PenaltyRows, marks: torch.Tensor) -> None:
    """Mark the tokens [B] that go into a decode step, each the last of its sequence. Device only.

    So a step can mark what the one before it sampled, which the host may not have read yet.
    """
    marks.view(-1).index_add_(0, rows.slots * marks.shape[1] + ids, rows.unmarked)


def penalise(logits: torch.Tensor, rows: PenaltyRows, marks: torch.Tensor) -> torch.Tensor:
    """Logits [B, vocab] float32 after penalties; those of rows without any are the same numbers. Device only.

    A repetition penalty moves every token that the sequence has away from being chosen, once, whichever sign its logit
    has. Presence and frequency are taken off generated tokens: the one once, the other for every time.
    """
    marks = marks.index_select(0, rows.slots)
    counts = marks >> 1
    repetitions = rows.repetitions[:, None]
    repeated = torch.where(logits < 0, logits * repetitions, logits / repetitions)
    scores = torch.where(marks > 0, repeated, logits)
    return scores - rows.presences[:, None] * (counts > 0) - rows.frequencies[:, None] * counts


@dataclass(slots=True)
class _Marked:
    """What is in a slot; a length of 0 says that nothing is known of it."""

    slot: int
    length: int = 0
    """Tokens of the sequence, from the first one on, that are marked."""


class TokenMarks:
    """Marks [slots, vocab] int32 of the sequences that have penalties; slots are given to those that need one now.

    A mark is 0 where the sequence does not have the token, else 1 where the prompt does, and 2 more for each time that
    it was generated.
    """

    def __init__(self, slots: int, vocab_size: int, device: torch.device) -> None:
        """`slots`: the most sequences with penalties that one step samples."""
        self._vocab_size = vocab_size
        self._device = device
        self._tensor: torch.Tensor | None = None
        self._slots = slots
        self._free = list(range(slots))
        self._marked: dict[str, _Marked] = {}
        """By sequence id, the ones used longest ago first."""

    @property
    def tensor(self) -> torch.Tensor:
        """[slots, vocab] int32 at one address; allocated when it is first asked for."""
        if self._tensor is None:
            self._tensor = torch.zeros(self._slots, self._vocab_size, dtype=torch.int32, device=self._device)
        return self._tensor

    def rows_of(self, sequences: SequenceOf[Sequence], but_last: bool = False) -> PenaltyRows | None:
        """Host tensors of the sequences' penalties, whose marks are up to date; None where none has any.

        With `but_last` the last token of each sequence is left to `mark_inputs`, and nobody needs to know it yet.
        """
        parameters = [sequence.request.sampling for sequence in sequences]
        penalised = [one.has_penalties for one in parameters]
        if not any(penalised):
            return None
        unmarked = self._mark([one for one, has in zip(sequences, penalised, strict=True) if has], but_last)
        slots = [self._marked[one.id].slot if has else 0 for one, has in zip(sequences, penalised, strict=True)]
        return PenaltyRows(
            repetitions=torch.tensor([one.repetition_penalty for one in parameters], dtype=torch.float32),
            presences=torch.tensor([one.presence_penalty for one in parameters], dtype=torch.float32),
            frequencies=torch.tensor([one.frequency_penalty for one in parameters], dtype=torch.float32),
            slots=torch.tensor(slots, dtype=torch.int64),
            unmarked=torch.tensor([unmarked.get(one.id, 0) for one in sequences], dtype=torch.int32),
        )

    def forget(self, sequence_id: str) -> None:
        """Give a sequence's slot back, whose marks are then made anew if it needs them; unknown ones are ignored."""
        marked = self._marked.pop(sequence_id, None)
        if marked is not None:
            self._free.append(marked.slot)

    def _mark(self, sequences: SequenceOf[Sequence], but_last: bool) -> dict[str, int]:
        """Bring the marks up to date: a few numbers to the device, but for sequences that are new here.

        What `mark_inputs` has to add then, by sequence id.
        """
        here = {sequence.id for sequence in sequences}
        new_marks: list[int] = []
        unmarked: dict[str, int] = {}
        for sequence in sequences:
            marked = self._slot_for(sequence.id, here)
            done, marked.length = marked.length, 0
            if not done:
                self._mark_prompt(marked.slot, sequence.request.prompt_ids)
            begin, end = max(done, sequence.prompt_length), sequence.length - but_last
            new_marks.extend(marked.slot * self._vocab_size + one for one in sequence.tokens[begin:end])
            unmarked[sequence.id] = _GENERATED_ONCE if but_last and begin <= end < sequence.length else 0
        if new_marks:
            places = torch.tensor(new_marks, device=self._device)
            self.tensor.view(-1).index_add_(0, places, torch.full_like(places, _GENERATED_ONCE, dtype=torch.int32))
        for sequence in sequences:
            self._marked[sequence.id].length = sequence.length
        return unmarked

    def _slot_for(self, sequence_id: str, here: set[str]) -> _Marked:
        """The sequence's own slot, else a free one, else that of the sequence which is not `here` for longest."""
        marked = self._marked.pop(sequence_id, None)
        if marked is None:
            if not self._free:
                self.forget(next(one for one in self._marked if one not in here))
            marked = _Marked(self._free.pop())
        self._marked[sequence_id] = marked
        return marked

    def _mark_prompt(self, slot: int, prompt_ids: tuple[int, ...]) -> None:
        """Placeholders of media count like other tokens, where the vocabulary has them."""
        ids = [one for one in set(prompt_ids) if 0 <= one < self._vocab_size]
        self.tensor[slot].zero_().index_fill_(0, torch.tensor(ids, device=self._device, dtype=torch.int64), _IN_PROMPT)
