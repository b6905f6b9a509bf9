"""Uploads as a client sends them, and questions about what has come of them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from typing import Any

from fanlight.v1 import media_service_pb2
from tests.server.conftest import Served
from tests.server.scripted_backend import WAIT_SECONDS

UploadMediaRequest = media_service_pb2.UploadMediaRequest
HELD, PARTIAL, ABSENT = (
    media_service_pb2.MEDIA_STATE_HELD,
    media_service_pb2.MEDIA_STATE_PARTIAL,
    media_service_pb2.MEDIA_STATE_ABSENT,
)
FILE = bytes(range(256)) * 1024
OTHER = "sha256:" + "0" * 64


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def chunks(data: bytes, size: int = 50_000, **first: Any) -> Iterator[media_service_pb2.UploadMediaRequest]:
    """The messages of an upload; `first` is what the first of them says besides."""
    for begin in range(0, len(data), size):
        yield UploadMediaRequest(data=data[begin : begin + size], **(first if begin == 0 else {}))


async def status_of(served: Served, digest: str) -> media_service_pb2.Media:
    response = await served.media.BatchGetMedia(media_service_pb2.BatchGetMediaRequest(digests=[digest]))
    (media,) = response.media
    return media


async def broken_off(served: Served, data: bytes, **first: Any) -> None:
    """Send data, see that all of it arrived, and break the stream off."""
    call = served.media.UploadMedia()
    for message in chunks(data, **first):
        await call.write(message)
    await until_arrived(served, first["digest"], first.get("offset", 0) + len(data))
    call.cancel()
    await until_nothing_is_open(served)


async def until_arrived(served: Served, digest: str, committed_bytes: int) -> None:
    """The server says when it has them; nothing is told to who is still sending."""
    async with asyncio.timeout(WAIT_SECONDS):
        while (await status_of(served, digest)).committed_bytes < committed_bytes:
            pass


async def until_nothing_is_open(served: Served) -> None:
    await asyncio.wait_for(served.server.lifecycle.wait_until_idle(), WAIT_SECONDS)


async def downloaded(served: Served, digest: str, offset: int = 0) -> list[media_service_pb2.DownloadMediaResponse]:
    request = media_service_pb2.DownloadMediaRequest(digest=digest, offset=offset)
    return [message async for message in served.media.DownloadMedia(request)]
