"""Which media a step encodes, within a budget of embedding rows, and who keeps which embedding pinned.

Policy beside the vision cache: an embedding is pinned from the chunk that first needs it until the prefill has passed
its last position. A step in which running streams wait for their next token encodes little, so that they wait little.
Knows no tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fanlight_engine.core.messages import MediaInput
from fanlight_engine.core.sequence import Sequence
from fanlight_engine.model.vision_cache import VisionCache

_SHARE_BESIDE_DECODES = 4
"""A step with decodes in it has the rows of a step without them, divided by this; one medium always fits."""


@dataclass(frozen=True, slots=True)
class EncodeJob:
    """One medium to encode, and the request (and its medium's number) that asked first; None is no generation."""

    medium: MediaInput
    sequence: Sequence | None = None
    number: int = 0


class EncoderBudget:
    """Encoder work of one core, step by step."""

    def __init__(self, cache: VisionCache[Any], row_bytes: int, max_step_rows: int) -> None:
        """`row_bytes` is the size of one embedding row; `max_step_rows` the rows encoded in one step."""
        self.cache_hits = 0
        self._cache = cache
        self._row_bytes = row_bytes
        self._max_step_rows = max_step_rows
        self._rows_of_this_step = max_step_rows
        self._step_rows = 0
        self._room_is_awaited = False
        self._sequences_wait = False

    @property
    def pins(self) -> int:
        """Pins over all embeddings."""
        return self._cache.pins

    def begin_step(self, decodes_run: bool = False, sequences_wait: bool = False) -> None:
        """A new step, a new budget. Sequences are asked for in order of arrival from here on.

        With `decodes_run` the budget is small. With `sequences_wait` they pin nothing in this step, but go on with what
        they have, so that room and budget come to `hold`.
        """
        self._rows_of_this_step = self._max_step_rows // _SHARE_BESIDE_DECODES if decodes_run else self._max_step_rows
        self._step_rows = 0
        self._room_is_awaited = False
        self._sequences_wait = sequences_wait

    def limit_chunk(self, sequence: Sequence, end: int, jobs: dict[bytes, EncodeJob]) -> int:
        """Cut the chunk [computed, end) before the first medium that cannot be had in this step.

        Media that are needed and not cached are reserved, pinned and added to `jobs`. Returns the new end.
        """
        for number in sequence.mask.media(sequence.computed, end):
            if not self._obtain(sequence, number, jobs):
                return max(sequence.computed, sequence.mask.first_position(number))
        return end

    def hold(self, medium: MediaInput, jobs: dict[bytes, EncodeJob]) -> bool:
        """Pin a medium for somebody who is no sequence, until `let_go`; False when it cannot be had in this step."""
        return not self._room_is_awaited and self._pin(EncodeJob(medium), jobs)

    def let_go(self, medium: MediaInput) -> None:
        """Undo one `hold`."""
        self._cache.unpin(medium.digest)

    def knows(self, medium: MediaInput) -> bool:
        """Whether the embeddings are there already, which counts as a hit."""
        known = medium.digest in self._cache
        self.cache_hits += known
        return known

    def drop_unreserved(self, jobs: dict[bytes, EncodeJob]) -> None:
        """Forget jobs whose reservation went with the last sequence that wanted it."""
        for digest in [one for one in jobs if one not in self._cache]:
            del jobs[digest]

    def release_passed(self, sequence: Sequence) -> None:
        """Unpin all media but one that the computed tokens end inside of.

        A medium that is shown again later is asked for anew: held on to, it could leave no room for what comes between.
        """
        media, mask = sequence.request.media, sequence.mask
        ahead = mask.media(sequence.computed, sequence.prompt_length)[:1]
        needed = {media[number].digest for number in ahead if mask.first_position(number) < sequence.computed}
        self._unpin(sequence, sequence.pinned - needed)

    def release_all(self, sequence: Sequence) -> None:
        """Unpin everything the sequence holds."""
        self._unpin(sequence, set(sequence.pinned))

    def _obtain(self, sequence: Sequence, number: int, jobs: dict[bytes, EncodeJob]) -> bool:
        medium = sequence.request.media[number]
        if medium.digest in sequence.pinned:
            return True
        if self._room_is_awaited or self._sequences_wait:
            return False
        if not self._pin(EncodeJob(medium, sequence, number), jobs):
            return False
        sequence.pinned.add(medium.digest)
        return True

    def _pin(self, job: EncodeJob, jobs: dict[bytes, EncodeJob]) -> bool:
        """Pin the job's medium; one that is not cached is reserved and added to `jobs`. False when it does not fit."""
        medium = job.medium
        rows = 0 if medium.is_embedded else medium.embedding_rows  # what came as embeddings costs the tower nothing
        if medium.digest in self._cache:
            self.cache_hits += not medium.is_embedded
        elif rows and self._step_rows and self._step_rows + rows > self._rows_of_this_step:
            return False
        elif not self._cache.reserve(medium.digest, medium.embedding_rows * self._row_bytes):
            # Younger ones pin nothing more, else their overlapping pins could keep an older one waiting for ever.
            # A sequence that has pins itself makes room by going on.
            self._room_is_awaited = job.sequence is None or not job.sequence.pinned
            return False
        else:
            self._step_rows += rows
            jobs[medium.digest] = job
        self._cache.pin(medium.digest)
        return True

    def _unpin(self, sequence: Sequence, digests: set[bytes]) -> None:
        for digest in digests:
            self._cache.unpin(digest)
        sequence.pinned -= digests
