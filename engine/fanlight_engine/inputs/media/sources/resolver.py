"""Sources of media -> bytes in hand: uploads are read, URLs fetched, tensors of uploaded files taken out.

Runs on the event loop and waits for store and network; opens no picture. Refusals are RequestErrors with the item's
field. What comes out needs neither store nor network any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from fanlight_engine.inputs.media.sources.store import MediaNotHeldError, MediaStore

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import InvalidRequestError, UnknownMediaError, UnsupportedRequestError
from fanlight_engine.inputs.media.processing import MediaError
from fanlight_engine.inputs.media.sources.fetch import UrlFetcher
from fanlight_engine.inputs.media.sources.safetensors_file import read_all, read_tensor
from fanlight_engine.inputs.validation import MediaItem, refuse_encoded_size
from fanlight_engine.inputs.workers import Workers
from fanlight_engine.request import (
    Embeddings,
    Frames,
    FrameSource,
    ImageSource,
    MediaUrl,
    Modality,
    Patches,
    StoredEmbeddings,
    StoredMedia,
    StoredTensor,
    Tensor,
    Tiles,
    VideoSource,
)

GRID_KEY = "grid"
FINGERPRINT_KEY = "model_fingerprint"

Source = TypeVar("Source", bound=ImageSource | VideoSource)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Place:
    """For whom, and for which field, something is resolved."""

    principal: str
    field: str
    modality: Modality


class SourceResolver:
    """One per front."""

    def __init__(self, config: EngineConfig, store: MediaStore, fetcher: UrlFetcher, workers: Workers) -> None:
        self._config = config
        self._store = store
        self._fetcher = fetcher
        self._workers = workers

    async def resolve(self, items: Sequence[MediaItem], principal: str) -> tuple[MediaItem, ...]:
        """The items with sources that are bytes, or tensors with their numbers. Raises RequestError."""
        return tuple(await _all_or_first_error([self._resolve_item(item, principal) for item in items]))

    async def _resolve_item(self, item: MediaItem, principal: str) -> MediaItem:
        place = _Place(principal, item.field, item.modality)
        source = await self._resolve_source(item.part.source, place)
        return replace(item, part=replace(item.part, source=source))  # pyright: ignore[reportArgumentType]

    async def _resolve_source(self, source: ImageSource | VideoSource, place: _Place) -> ImageSource | VideoSource:
        match source:
            case bytes() | StoredMedia() | MediaUrl():
                return await self._bytes_of(source, place)
            case Frames():
                return await self._frames(source, place)
            case Patches() | Tiles():
                return replace(source, pixels=await self._tensor(source.pixels, place))
            case Embeddings():
                tensors = {name: await self._tensor(tensor, place) for name, tensor in source.tensors.items()}
                return replace(source, tensors=tensors)
            case StoredEmbeddings():
                return await self._stored_embeddings(source, place)

    async def _bytes_of(self, source: FrameSource, place: _Place) -> bytes:
        if isinstance(source, bytes):
            return source
        data = await (
            self._held(source.digest, place) if isinstance(source, StoredMedia) else self._fetch(source, place)
        )
        refuse_encoded_size(data, place.field, place.modality, self._config)
        return data

    async def _held(self, digest: str, place: _Place) -> bytes:
        try:
            return await self._store.read(place.principal, digest)
        except MediaNotHeldError as error:
            raise UnknownMediaError(
                place.field, f"nothing is held for you under {digest[:80]!r}; upload it, again if it was held before"
            ) from error

    async def _fetch(self, source: MediaUrl, place: _Place) -> bytes:
        if not self._fetcher.enabled:
            raise UnsupportedRequestError(
                place.field, "this server fetches no URLs; send the bytes, or upload the file and send its digest"
            )
        most = self._config.max_image_bytes if place.modality is Modality.IMAGE else self._config.max_video_bytes
        try:
            return await self._fetcher.fetch(source.url, most)
        except MediaError as error:
            raise InvalidRequestError(place.field, error.description, error.reason) from error

    async def _frames(self, source: Frames, place: _Place) -> Frames:
        places = [
            replace(place, field=f"{place.field}.frames.frames[{index}]", modality=Modality.IMAGE)
            for index in range(len(source.frames))
        ]
        jobs = [self._bytes_of(frame, where) for frame, where in zip(source.frames, places, strict=True)]
        return replace(source, frames=tuple(await _all_or_first_error(jobs)))

    async def _tensor(self, tensor: Tensor, place: _Place) -> Tensor:
        if not isinstance(tensor, StoredTensor):
            return tensor
        data = await self._held(tensor.digest, place)
        try:
            return await self._workers.run_light(read_tensor, data, tensor.name)
        except MediaError as error:
            raise InvalidRequestError(place.field, error.description, error.reason) from error

    async def _stored_embeddings(self, source: StoredEmbeddings, place: _Place) -> Embeddings:
        data = await self._held(source.id, place)
        try:
            tensors, metadata = await self._workers.run_light(read_all, data)
        except MediaError as error:
            raise InvalidRequestError(place.field, error.description, error.reason) from error
        return Embeddings(dict(tensors), metadata.get(FINGERPRINT_KEY, ""), grid_from(metadata.get(GRID_KEY, "")))


def grid_from(text: str) -> tuple[int, int, int] | None:
    """The grid that a file's metadata names as "t,h,w"; None for anything else."""
    numbers = [int(one) for one in text.split(",") if one.isascii() and one.isdecimal() and len(one) < 10]
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None


async def _all_or_first_error(jobs: Sequence[Awaitable[Result]]) -> list[Result]:
    """All results in order; the first failure ends the others."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
