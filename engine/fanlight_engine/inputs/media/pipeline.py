"""Media of a request -> MediaInput: decoded and preprocessed in worker threads, once per distinct medium, cached.

    digest --hit--> cache
           --miss--> decode -> processor (the checkpoint's own, or native) -> tensors as plain bytes

Requests that bring the same medium at the same time share one piece of work; one of them leaving does not end it for
the others. The bookkeeping runs on the event loop alone, so it needs no locks. Knows nothing of prompts or of the core.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from fanlight_engine.config import EngineConfig
from fanlight_engine.inputs.media.abandonment import Abandonment
from fanlight_engine.inputs.media.preprocessing import MediaPreprocessor, PreparedMedium
from fanlight_engine.inputs.media.processing import MediaError
from fanlight_engine.inputs.validation import MediaItem
from fanlight_engine.inputs.workers import Workers
from fanlight_engine.request import Modality


@dataclass(frozen=True, slots=True)
class PreparedMedia:
    """The media of one request in its order. Seconds are 0 for what came from the cache."""

    media: tuple[PreparedMedium, ...] = ()
    decode_seconds: float = 0.0
    preprocess_seconds: float = 0.0


_LARGE_BYTES = 1 << 20
"""Hashing more than this would keep others waiting in the pool of short work."""


@dataclass(slots=True)
class _Flight:
    """Work on one digest that is under way, and how many requests wait for it."""

    task: asyncio.Task[PreparedMedium]
    abandonment: Abandonment
    waiters: int = 0


@dataclass(slots=True)
class MediaCache:
    """Prepared media by digest, least recently used first; never more than `capacity` bytes."""

    capacity: int
    size: int = 0
    entries: OrderedDict[bytes, PreparedMedium] = field(default_factory=OrderedDict)

    def get(self, digest: bytes) -> PreparedMedium | None:
        """The medium, which becomes the most recently used."""
        if digest in self.entries:
            self.entries.move_to_end(digest)
        return self.entries.get(digest)

    def put(self, medium: PreparedMedium) -> None:
        """Keep a medium unless it alone is larger than the cache."""
        digest = medium.input.digest
        if medium.bytes > self.capacity or digest in self.entries:
            return
        self.entries[digest] = medium
        self.size += medium.bytes
        while self.size > self.capacity:
            _, oldest = self.entries.popitem(last=False)
            self.size -= oldest.bytes

    def drop(self, digest: bytes) -> None:
        """Keep the medium no longer; unknown ones are ignored."""
        dropped = self.entries.pop(digest, None)
        self.size -= 0 if dropped is None else dropped.bytes


class MediaPipeline:
    """Prepares the media of requests. One per front; all methods run on the event loop."""

    def __init__(self, config: EngineConfig, preprocessor: MediaPreprocessor, workers: Workers) -> None:
        self.cache = MediaCache(config.media_cache_bytes)
        self._preprocessor = preprocessor
        self._workers = workers
        self._flights: dict[bytes, _Flight] = {}

    @property
    def modalities(self) -> frozenset[Modality]:
        """Kinds of media that can be prepared."""
        return self._preprocessor.modalities

    def placeholder_id(self, modality: Modality) -> int:
        """The id that stands for one medium in a prompt."""
        return self._preprocessor.placeholder_id(modality)

    async def inspect(self, items: Sequence[MediaItem], principal: str) -> tuple[bytes, ...]:
        """Digests of resolved media whose headers are within the limits. Raises InvalidRequestError naming another.

        Those of one principal differ from those of any other, so that no cache tells what somebody else has shown.
        """
        return tuple([await self._inspect_one(item, principal) for item in items])

    async def prepare(self, items: Sequence[MediaItem], digests: Sequence[bytes]) -> PreparedMedia:
        """Prepare inspected media, all at once as far as there are workers. Raises InvalidRequestError."""
        tasks = [asyncio.ensure_future(self._prepare_one(*pair)) for pair in zip(items, digests, strict=True)]
        try:
            results = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return PreparedMedia(
            media=tuple(medium for medium, _ in results),
            decode_seconds=sum(medium.decode_seconds for medium, fresh in results if fresh),
            preprocess_seconds=sum(medium.preprocess_seconds for medium, fresh in results if fresh),
        )

    async def _inspect_one(self, item: MediaItem, principal: str) -> bytes:
        is_large = self._preprocessor.content_bytes(item.part) > _LARGE_BYTES
        run = self._workers.run_media if is_large else self._workers.run_light
        try:
            return await run(self._preprocessor.inspect, item.part, principal, item.is_one_of_several)
        except MediaError as error:
            raise error.at(item.field) from error

    async def _prepare_one(self, item: MediaItem, digest: bytes) -> tuple[PreparedMedium, bool]:
        """The medium, and whether this call made it (a shared one counts for whoever asked first)."""
        cached = self.cache.get(digest)
        if cached is not None:
            return cached, False
        fresh = digest not in self._flights
        if fresh:
            abandonment = Abandonment()
            self._flights[digest] = _Flight(asyncio.ensure_future(self._fly(item, digest, abandonment)), abandonment)
        flight = self._flights[digest]
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task), fresh
        except MediaError as error:
            raise error.at(item.field) from error
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                self._flights.pop(digest, None)
                flight.abandonment.abandon()
                flight.task.cancel()

    async def _fly(self, item: MediaItem, digest: bytes, abandonment: Abandonment) -> PreparedMedium:
        try:
            medium = await self._workers.run_media(
                self._preprocessor.prepare, item.part, digest, abandonment, item.is_one_of_several
            )
            self.cache.put(medium)
            return medium
        finally:
            # A flight that everybody left may have been replaced by a new one of the same digest.
            flight = self._flights.get(digest)
            if flight is not None and flight.task is asyncio.current_task():
                del self._flights[digest]
