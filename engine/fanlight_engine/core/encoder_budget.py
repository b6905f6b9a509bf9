"""Which images a step encodes, within a budget of embedding rows, and who keeps which embedding pinned.

Policy beside the vision cache: an embedding is pinned from the chunk that first needs it until the prefill has passed
its last position. Knows no tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fanlight_engine.core.messages import ImageInput
from fanlight_engine.core.sequence import Sequence
from fanlight_engine.model.vision_cache import VisionCache


@dataclass(frozen=True, slots=True)
class EncodeJob:
    """One image to encode, and the request (and its image number) that asked first."""

    image: ImageInput
    sequence: Sequence
    number: int


class EncoderBudget:
    """Encoder work of one core, step by step."""

    def __init__(self, cache: VisionCache[Any], row_bytes: int, max_step_rows: int) -> None:
        """`row_bytes` is the size of one embedding row; `max_step_rows` the rows encoded in one step."""
        self.cache_hits = 0
        self._cache = cache
        self._row_bytes = row_bytes
        self._max_step_rows = max_step_rows
        self._step_rows = 0
        self._room_is_awaited = False

    @property
    def pins(self) -> int:
        """Pins over all embeddings."""
        return self._cache.pins

    def begin_step(self) -> None:
        """A new step, a new budget. Sequences are asked for in order of arrival from here on."""
        self._step_rows = 0
        self._room_is_awaited = False

    def limit_chunk(self, sequence: Sequence, end: int, jobs: dict[bytes, EncodeJob]) -> int:
        """Cut the chunk [computed, end) before the first image that cannot be had in this step.

        Images that are needed and not cached are reserved, pinned and added to `jobs`. Returns the new end.
        """
        for number in sequence.mask.images(sequence.computed, end):
            if not self._obtain(sequence, number, jobs):
                return max(sequence.computed, sequence.mask.first_position(number))
        return end

    def drop_unreserved(self, jobs: dict[bytes, EncodeJob]) -> None:
        """Forget jobs whose reservation went with the last sequence that wanted it."""
        for digest in [one for one in jobs if one not in self._cache]:
            del jobs[digest]

    def release_passed(self, sequence: Sequence) -> None:
        """Unpin all images but one that the computed tokens end inside of.

        An image that is shown again later is asked for anew: held on to, it could leave no room for what comes between.
        """
        images, mask = sequence.request.images, sequence.mask
        ahead = mask.images(sequence.computed, sequence.prompt_length)[:1]
        needed = {images[number].digest for number in ahead if mask.first_position(number) < sequence.computed}
        self._unpin(sequence, sequence.pinned - needed)

    def release_all(self, sequence: Sequence) -> None:
        """Unpin everything the sequence holds."""
        self._unpin(sequence, set(sequence.pinned))

    def _obtain(self, sequence: Sequence, number: int, jobs: dict[bytes, EncodeJob]) -> bool:
        image = sequence.request.images[number]
        if image.digest in sequence.pinned:
            return True
        if self._room_is_awaited:
            return False
        if image.digest in self._cache:
            self.cache_hits += 1
        elif self._step_rows and self._step_rows + image.embedding_rows > self._max_step_rows:
            return False
        elif not self._cache.reserve(image.digest, image.embedding_rows * self._row_bytes):
            # Younger sequences pin nothing more, else their overlapping pins could keep an older one waiting for ever.
            # One that has pins itself makes room by going on.
            self._room_is_awaited = not sequence.pinned
            return False
        else:
            self._step_rows += image.embedding_rows
            jobs[image.digest] = EncodeJob(image, sequence, number)
        self._cache.pin(image.digest)
        sequence.pinned.add(image.digest)
        return True

    def _unpin(self, sequence: Sequence, digests: set[bytes]) -> None:
        for digest in digests:
            self._cache.unpin(digest)
        sequence.pinned -= digests
