"""Which media a step encodes, within a budget of embedding rows, and who keeps which embedding pinned.

Policy beside the vision cache: an embedding is pinned from the chunk that first needs it until the prefill has passed
its last position. Media that share a span of positions are pinned, encoded and let go of together: a sequence that held
one and waited for another could block somebody who does the same. A step in which running streams wait for their next
token encodes little, so that they wait little. Knows no tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from fanlight_engine.core.messages import MediaInput
from fanlight_engine.core.sequence import Sequence
from fanlight_engine.model.vision_cache import VisionCache

_SHARE_BESIDE_DECODES = 4
"""A step with decodes in it has the rows of a step without them, divided by this; one medium always fits, and so do
those of one span."""


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
            together = sequence.media_needed_with(number)
            if not self._obtain(sequence, together, jobs):
                return max(sequence.computed, sequence.mask.first_position(together[0]))
        return end

    def hold(self, medium: MediaInput, jobs: dict[bytes, EncodeJob]) -> bool:
        """Pin a medium for somebody who is no sequence, until `let_go`; False when it cannot be had in this step."""
        if self._room_is_awaited or self._exceeds_step([medium]):
            return False
        self._room_is_awaited = not self._pin(EncodeJob(medium), jobs)
        return not self._room_is_awaited

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
        """Unpin all media but those that the computed tokens end inside of.

        A medium that is shown again later is asked for anew: held on to, it could leave no room for what comes between.
        """
        media, mask = sequence.request.media, sequence.mask
        needed: set[bytes] = set()
        for number in mask.media(sequence.computed, sequence.prompt_length)[:1]:
            if mask.first_position(sequence.spans.media_with(number)[0]) < sequence.computed:
                needed = {media[one].digest for one in sequence.media_needed_with(number)}
        self._unpin(sequence, sequence.pinned - needed)

    def release_all(self, sequence: Sequence) -> None:
        """Unpin everything the sequence holds."""
        self._unpin(sequence, set(sequence.pinned))

    def _obtain(self, sequence: Sequence, numbers: list[int], jobs: dict[bytes, EncodeJob]) -> bool:
        """Pin these media of the sequence: all of them, or none."""
        missing = self._jobs_for_missing(sequence, numbers)
        if not missing:
            return True
        if self._room_is_awaited or self._sequences_wait or self._exceeds_step([job.medium for job in missing]):
            return False
        before = self._step_rows, self.cache_hits
        pinned = list(takewhile(lambda job: self._pin(job, jobs), missing))
        if len(pinned) == len(missing):
            sequence.pinned.update(job.medium.digest for job in pinned)
            return True
        for job in pinned:
            self._cache.unpin(job.medium.digest)
        self.drop_unreserved(jobs)
        self._step_rows, self.cache_hits = before
        # Younger ones pin nothing more, else their overlapping pins could keep an older one waiting for ever.
        # A sequence that has pins itself makes room by going on.
        self._room_is_awaited = not sequence.pinned
        return False

    def _jobs_for_missing(self, sequence: Sequence, numbers: list[int]) -> list[EncodeJob]:
        """A job for each of the media that the sequence has not pinned; cached ones first, lest they be evicted."""
        media = sequence.request.media
        first_numbers = {media[number].digest: number for number in reversed(numbers)}
        missing = sorted(number for digest, number in first_numbers.items() if digest not in sequence.pinned)
        missing.sort(key=lambda number: media[number].digest not in self._cache)
        return [EncodeJob(media[number], sequence, number) for number in missing]

    def _exceeds_step(self, media: list[MediaInput]) -> bool:
        """Whether the tower would run for more rows than are left; never when it has nothing to do in this step yet."""
        rows = sum(_tower_rows(medium) for medium in media if medium.digest not in self._cache)
        return bool(rows and self._step_rows) and self._step_rows + rows > self._rows_of_this_step

    def _pin(self, job: EncodeJob, jobs: dict[bytes, EncodeJob]) -> bool:
        """Pin the job's medium; one that is not cached is reserved and added to `jobs`. False when there is no room."""
        medium = job.medium
        if medium.digest in self._cache:
            self.cache_hits += not medium.is_embedded
        elif not self._cache.reserve(medium.digest, medium.embedding_rows * self._row_bytes):
            return False
        else:
            self._step_rows += _tower_rows(medium)
            jobs[medium.digest] = job
        self._cache.pin(medium.digest)
        return True

    def _unpin(self, sequence: Sequence, digests: set[bytes]) -> None:
        for digest in digests:
            self._cache.unpin(digest)
        sequence.pinned -= digests


def _tower_rows(medium: MediaInput) -> int:
    """Rows that the tower has to make; what came as embeddings costs it nothing."""
    return 0 if medium.is_embedded else medium.embedding_rows
