"""Sources of media -> bytes in hand: uploads are read, URLs fetched, tensors of uploaded files taken out.

Runs on the event loop and waits for store and network; opens no picture. Refusals are RequestErrors with the item's
field. What comes out needs neither store nor network any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import InvalidRequestError, Reason, UnknownMediaError, UnsupportedRequestError
from fanlight_engine.inputs.media.memory_budget import MemoryAccount
from fanlight_engine.inputs.media.processing import MediaError
from fanlight_engine.inputs.media.sources.fetch import UrlFetcher
from fanlight_engine.inputs.media.sources.safetensors_file import read_all, read_tensor
from fanlight_engine.inputs.media.sources.store import MediaNotHeldError, MediaStore
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
SECONDS_KEY = "seconds_per_step"
"""Metadata of a safetensors file of embeddings."""

Source = TypeVar("Source", bound=ImageSource | VideoSource)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Place:
    """For whom, for which field and on whose account something is resolved."""

    principal: str
    field: str
    modality: Modality
    account: MemoryAccount


class SourceResolver:
    """One per front."""

    def __init__(self, config: EngineConfig, store: MediaStore, fetcher: UrlFetcher, workers: Workers) -> None:
        self._config = config
        self._store = store
        self._fetcher = fetcher
        self._workers = workers

    async def resolve(
        self, items: Sequence[MediaItem], principal: str, account: MemoryAccount
    ) -> tuple[MediaItem, ...]:
        """The items with sources that are bytes, or tensors with their numbers. Raises RequestError, OverloadedError.

        What is read for them is counted on `account`, whose owner gives it back when it needs them no more.
        """
        return tuple(await all_or_first_error([self._resolve_item(item, principal, account) for item in items]))

    async def _resolve_item(self, item: MediaItem, principal: str, account: MemoryAccount) -> MediaItem:
        place = _Place(principal, item.field, item.modality, account)
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
        place.account.take(self._store.status(place.principal, digest).size or 0, place.field)
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
            data = await self._fetcher.fetch(source.url, most)
        except MediaError as error:
            raise error.at(place.field) from error
        # Counted when it is there: how long it is was not known, and few are fetched at a time.
        place.account.take(len(data), place.field)
        return data

    async def _frames(self, source: Frames, place: _Place) -> Frames:
        places = [
            replace(place, field=f"{place.field}.frames.frames[{index}]", modality=Modality.IMAGE)
            for index in range(len(source.frames))
        ]
        jobs = [self._bytes_of(frame, where) for frame, where in zip(source.frames, places, strict=True)]
        frames = tuple(await all_or_first_error(jobs))
        total = sum(map(len, frames))
        if total > self._config.max_video_bytes:
            raise InvalidRequestError(
                f"{place.field}.frames",
                f"its frames have {total} encoded bytes, at most {self._config.max_video_bytes} are allowed; scale "
                "them down, or send fewer",
                Reason.VIDEO_TOO_LARGE,
            )
        return replace(source, frames=frames)

    async def _tensor(self, tensor: Tensor, place: _Place) -> Tensor:
        if not isinstance(tensor, StoredTensor):
            return tensor
        data = await self._held(tensor.digest, place)
        try:
            return await self._workers.run_media(read_tensor, data, tensor.name)
        except MediaError as error:
            raise error.at(place.field) from error

    async def _stored_embeddings(self, source: StoredEmbeddings, place: _Place) -> Embeddings:
        data = await self._held(source.id, place)
        try:
            tensors, metadata = await self._workers.run_media(read_all, data)
        except MediaError as error:
            raise error.at(place.field) from error
        return Embeddings(
            tensors=dict(tensors),
            model_fingerprint=metadata.get(FINGERPRINT_KEY, ""),
            grid=grid_from(metadata.get(GRID_KEY, "")),
            seconds_per_step=seconds_from(metadata.get(SECONDS_KEY, "")),
        )


def grid_from(text: str) -> tuple[int, int, int] | None:
    """The grid that a file's metadata names as "t,h,w"; None for anything else."""
    numbers = [int(one) for one in text.split(",") if one.isascii() and one.isdecimal() and len(one) < 10]
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None


def seconds_from(text: str) -> float | None:
    """The time between two steps of a clip that a file's metadata names; None for anything else."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 < seconds < float("inf") else None


async def all_or_first_error(jobs: Sequence[Awaitable[Result]]) -> list[Result]:
    """All results in order; the first failure ends the others."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
