"""Media stores for tests, in memory and in a directory alike: made, filled, and checked when a test is done."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fanlight_engine.config import EngineConfig
from fanlight_engine.inputs.media.sources.store import MediaStore

MEBIBYTE = 1 << 20
KINDS = ("memory", "disk")


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def bytes_of(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


MakeStore = Callable[..., Awaitable[MediaStore]]


@asynccontextmanager
async def making_stores(kind: str, directory: Path) -> AsyncIterator[MakeStore]:
    """A function that makes started stores; after the block their books must be right."""
    stores: list[MediaStore] = []

    async def make(clock: Clock | None = None, **settings: Any) -> MediaStore:
        config = EngineConfig(**{"media_store_directory": str(directory) if kind == "disk" else "", **settings})
        store = MediaStore(config, clock or Clock())
        await store.start()
        stores.append(store)
        return store

    yield make
    for store in stores:
        await store.stop()
        store.check_integrity()


async def upload(store: MediaStore, data: bytes, who: str = "ada", chunk_bytes: int = MEBIBYTE, **how: Any) -> Any:
    """All of it, in chunks, from `offset` on."""
    offset = how.get("offset", 0)
    stream = store.begin_upload(who, how.get("digest", digest_of(data)), offset, how.get("total_bytes", len(data)))
    for begin in range(offset, len(data), chunk_bytes):
        await stream.write(data[begin : begin + chunk_bytes])
    return await stream.commit()
