"""Uploads to a running server through the contract's own stubs: broken off and resumed, refused, abandoned, kept.

Knows the messages of MediaService and nothing of the store behind it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import numpy as np

from fanlight.channel import channel_options
from fanlight.errors import FanlightError, error_from_call
from fanlight.v1 import media_service_pb2
from fanlight.v1.media_service_pb2_grpc import MediaServiceStub
from tests.e2e.proxy import cuttable_wire
from tests.e2e.serving import PATIENCE_SECONDS, Served, serving

PIECE_BYTES = 1 << 20
ABSENT = media_service_pb2.MEDIA_STATE_ABSENT
HELD = media_service_pb2.MEDIA_STATE_HELD
PARTIAL = media_service_pb2.MEDIA_STATE_PARTIAL
_SECONDS_BETWEEN_QUESTIONS = 0.02
_TRIES = 10

EndOfStream = Callable[[asyncio.Task[media_service_pb2.UploadMediaResponse]], object]
"""Ends a stream that is being sent by a task."""
_cancelled: EndOfStream = asyncio.Task.cancel


def made_up_file(size: int, seed: int) -> bytes:
    """Bytes that no two seeds share."""
    return np.random.default_rng(seed).bytes(size)


def digest_of(data: bytes) -> str:
    """As the contract writes it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Uploads:
    """MediaService over one channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = MediaServiceStub(channel)

    async def send(
        self, data: bytes, digest: str | None = None, offset: int = 0, total_bytes: int | None = None
    ) -> media_service_pb2.UploadMediaResponse:
        """The whole file from `offset` on. Raises FanlightError."""
        try:
            return await self._stub.UploadMedia(_chunks(data, digest, offset, total_bytes))
        except grpc.aio.AioRpcError as error:
            raise error_from_call(error) from error

    async def resume(self, data: bytes) -> media_service_pb2.UploadMediaResponse:
        """Send what the server lacks of a file."""
        digest = digest_of(data)
        return await self._go_on(digest, lambda offset: _chunks(data, digest, offset, len(data)))

    async def break_off(self, data: bytes, until: int, end: EndOfStream, waits: bool) -> None:
        """Go on with a file, and let the stream end at a place: once the server has all of it, or before that."""
        digest, reached, ended = digest_of(data), asyncio.Event(), asyncio.Event()

        async def chunks(offset: int) -> AsyncIterator[media_service_pb2.UploadMediaRequest]:
            async for chunk in _chunks(data[:until], digest, offset, len(data)):
                yield chunk
            reached.set()
            await ended.wait()

        sending = asyncio.create_task(self._go_on(digest, chunks))
        await asyncio.wait_for(reached.wait(), PATIENCE_SECONDS)
        if waits:
            await until_true(lambda: self._has_come(digest, until))
        end(sending)
        try:
            await sending
        except (FanlightError, asyncio.CancelledError):
            return
        finally:
            ended.set()
        raise AssertionError("a stream that was broken off was answered")

    async def _go_on(
        self, digest: str, chunks: Callable[[int], AsyncIterator[media_service_pb2.UploadMediaRequest]]
    ) -> media_service_pb2.UploadMediaResponse:
        """From where the server says; asked again where that grew meanwhile: a chunk may outlive its stream."""
        for _ in range(_TRIES):
            offset = (await self.status(digest)).committed_bytes
            try:
                return await self._stub.UploadMedia(chunks(offset))
            except grpc.aio.AioRpcError as error:
                refused = error_from_call(error)
                if refused.reason != "UPLOAD_OFFSET_WRONG":
                    raise refused from error
        raise AssertionError("the server never kept to what it said of the upload")

    async def status(self, digest: str) -> media_service_pb2.Media:
        """What is held of a digest."""
        answer = await self._stub.BatchGetMedia(media_service_pb2.BatchGetMediaRequest(digests=[digest]))
        (media,) = answer.media
        return media

    async def delete(self, digest: str) -> None:
        """Let go of it."""
        await self._stub.DeleteMedia(media_service_pb2.DeleteMediaRequest(digest=digest))

    async def download(self, digest: str) -> bytes:
        """The whole file."""
        request = media_service_pb2.DownloadMediaRequest(digest=digest)
        return b"".join([message.data async for message in self._stub.DownloadMedia(request)])

    async def _has_come(self, digest: str, size: int) -> bool:
        return (await self.status(digest)).committed_bytes >= size


async def _chunks(
    data: bytes, digest: str | None, offset: int, total_bytes: int | None
) -> AsyncIterator[media_service_pb2.UploadMediaRequest]:
    first = media_service_pb2.UploadMediaRequest(digest=digest, total_bytes=total_bytes)
    if offset:
        first.offset = offset
    yield first
    for start in range(offset, len(data), PIECE_BYTES):
        yield media_service_pb2.UploadMediaRequest(data=data[start : start + PIECE_BYTES])


async def until_true(question: Callable[[], Awaitable[bool]]) -> float:
    """Ask again and again; seconds until the answer was yes. Fails after PATIENCE_SECONDS."""
    begun = time.monotonic()
    while not await question():
        assert time.monotonic() - begun < PATIENCE_SECONDS, "it never came"
        await asyncio.sleep(_SECONDS_BETWEEN_QUESTIONS)
    return time.monotonic() - begun


@dataclass(frozen=True, slots=True)
class Resumption:
    """A file that was sent in pieces. `committed` is what was kept after each break."""

    size: int
    committed: tuple[int, ...]
    digest_is_right: bool
    download_is_equal: bool
    seconds: float


async def broken_off_and_resumed(served: Served, size: int, seed: int = 1) -> Resumption:
    """Broken off at three places: by cancelling, by losing the connection, and by cancelling while bytes are coming."""
    data = made_up_file(size, seed)
    digest, uploads = digest_of(data), Uploads(served.channel)
    begun = time.monotonic()
    await uploads.break_off(data, size * 3 // 10 + 1, _cancelled, waits=True)
    committed = [await _kept(served, uploads, digest)]
    async with (
        cuttable_wire(served.address) as wire,
        grpc.aio.insecure_channel(wire.address, channel_options()) as doomed,
    ):
        await Uploads(doomed).break_off(data, size // 2 + 3, lambda _: wire.cut(), waits=False)
    committed.append(await _kept(served, uploads, digest))
    await uploads.break_off(data, size * 4 // 5 + 7, _cancelled, waits=False)
    committed.append(await _kept(served, uploads, digest))
    answer = await uploads.resume(data)
    return Resumption(
        size=size,
        committed=tuple(committed),
        digest_is_right=answer.media.digest == digest and answer.media.size_bytes == size,
        download_is_equal=await uploads.download(digest) == data,
        seconds=time.monotonic() - begun,
    )


async def _kept(served: Served, uploads: Uploads, digest: str) -> int:
    """How much of an upload is kept once the server, too, is done with the call that was broken off."""
    await asyncio.wait_for(served.server.lifecycle.wait_until_idle(), PATIENCE_SECONDS)
    return (await uploads.status(digest)).committed_bytes


@dataclass(frozen=True, slots=True)
class RefusedUpload:
    """How an upload was refused, and which of its digests are held or partial afterwards."""

    code: grpc.StatusCode
    reason: str | None
    kept: tuple[str, ...]


async def _refused(uploads: Uploads, sending: Awaitable[object], *digests: str) -> RefusedUpload:
    try:
        await sending
    except FanlightError as error:
        states = [await uploads.status(digest) for digest in digests]
        kept = tuple(state.digest for state in states if state.state != ABSENT)
        return RefusedUpload(error.code, error.reason, kept)
    raise AssertionError("an upload that must be refused was kept")


async def wrong_digest(served: Served, size: int) -> RefusedUpload:
    """The bytes of one file under the digest of another."""
    data, other = made_up_file(size, 2), digest_of(made_up_file(size, 3))
    uploads = Uploads(served.channel)
    return await _refused(uploads, uploads.send(data, other, 0, size), other, digest_of(data))


async def wrong_length(served: Served, size: int) -> RefusedUpload:
    """A file that ends before its announced length."""
    data, uploads = made_up_file(size, 4), Uploads(served.channel)
    return await _refused(uploads, uploads.send(data, digest_of(data), 0, size + 1), digest_of(data))


async def full_store() -> tuple[RefusedUpload, bool]:
    """An upload beside one that fills the store and can still be resumed; and whether it is taken once that is gone."""
    size = 3 * PIECE_BYTES
    waiting, data = made_up_file(size, 5), made_up_file(size, 6)
    async with serving(media_store_bytes=size + PIECE_BYTES) as served:
        uploads = Uploads(served.channel)
        await uploads.break_off(waiting, size - 1, _cancelled, waits=True)
        refused = await _refused(uploads, uploads.send(data, digest_of(data), 0, size), digest_of(data))
        await uploads.delete(digest_of(waiting))
        await uploads.send(data, digest_of(data), 0, size)
        return refused, (await uploads.status(digest_of(data))).state == HELD


async def abandoned(size: int) -> tuple[bool, float]:
    """Whether an upload can be resumed right after it broke off, and seconds until nothing of it is left.

    The server keeps unfinished uploads for one second.
    """
    data = made_up_file(size, 7)
    digest = digest_of(data)
    async with serving(upload_time_to_live=1) as served:
        uploads = Uploads(served.channel)
        await uploads.break_off(data, size - 1, _cancelled, waits=True)
        was_partial = (await uploads.status(digest)).state == PARTIAL

        async def is_absent() -> bool:
            return (await uploads.status(digest)).state == ABSENT

        return was_partial, await until_true(is_absent)


@dataclass(frozen=True, slots=True)
class Survival:
    """What another server over the same directory knows of one whole file and of one that was broken off."""

    held: bool
    download_is_equal: bool
    committed_before: int
    committed_after: int
    resumed: bool


async def survival_of_a_restart(directory: Path, size: int) -> Survival:
    """Two servers, one after the other, over one directory."""
    whole, broken = made_up_file(size, 8), made_up_file(size, 9)
    async with serving(media_store_directory=str(directory)) as served:
        uploads = Uploads(served.channel)
        await uploads.send(whole, digest_of(whole))
        await uploads.break_off(broken, size // 2, _cancelled, waits=True)
        before = (await uploads.status(digest_of(broken))).committed_bytes
    async with serving(media_store_directory=str(directory)) as served:
        uploads = Uploads(served.channel)
        held = (await uploads.status(digest_of(whole))).state == HELD
        after = (await uploads.status(digest_of(broken))).committed_bytes
        equal = held and await uploads.download(digest_of(whole)) == whole
        resumed = await uploads.resume(broken)
        return Survival(held, equal, before, after, resumed.media.digest == digest_of(broken))
