"""What clients do with MediaService, by thread and by task: transfers, and requests whose large media go by upload.

A request with large media is sent in two steps: what the server lacks is uploaded, then the request names it. Where the
server has let go of it in between, both steps are repeated once. This file knows requests only as messages with media.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, BinaryIO, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message as ProtobufMessage

from fanlight.channel import MAX_MESSAGE_BYTES
from fanlight.errors import error_from_call, media_are_gone, translated_errors
from fanlight.handles import Media, Upload, read_media
from fanlight.large_media import LargeMedium, find_large_media, may_hold_large_media
from fanlight.media_calls import AsyncMediaCall, MediaCall
from fanlight.transfers import ByteSource, Deadline, DownloadTransfer, ProgressCallback, UploadTransfer
from fanlight.v1 import media_service_pb2, server_pb2
from fanlight.v1.media_service_pb2_grpc import MediaServiceStub
from fanlight.v1.server_pb2_grpc import ServerServiceStub

Response = TypeVar("Response")

ROOM_FOR_THE_REST = 256 * 1024
"""Bytes of a message that are kept free for what encloses it: ids, tags, HTTP/2's own."""


def room_of(info: server_pb2.GetServerInfoResponse) -> int | None:
    """How many bytes of a message may be sent inline; None where the server takes no uploads."""
    if server_pb2.FEATURE_MEDIA_UPLOAD not in info.features:
        return None
    return min(info.limits.max_receive_message_bytes or MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES) - ROOM_FOR_THE_REST


class MediaStore:
    """MediaService of a channel, for threads."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._media = MediaServiceStub(channel)
        self._server = ServerServiceStub(channel)
        self._info: server_pb2.GetServerInfoResponse | None = None

    def upload(self, source: ByteSource, deadline: Deadline, progress: ProgressCallback | None = None) -> Upload:
        """Sends what the server lacks of a file. Raises FanlightError, and OSError for a file that cannot be read."""
        transfer = UploadTransfer(source, progress)
        while True:
            try:
                held = transfer.take_answer(self._media.BatchGetMedia(transfer.question(), timeout=deadline.left()))
                if held is None:
                    response = self._media.UploadMedia(transfer.messages(), timeout=deadline.left())
                    held = transfer.take_response(response)
                return held
            except grpc.RpcError as error:
                pause = transfer.pause_after(error)
            time.sleep(pause)

    def download(
        self, digest: str, sink: BinaryIO, deadline: Deadline, progress: ProgressCallback | None = None
    ) -> None:
        """Writes what is held under a digest to a file object, and checks it."""
        transfer = DownloadTransfer(digest, sink, progress)
        while True:
            try:
                for response in self._media.DownloadMedia(transfer.request(), timeout=deadline.left()):
                    transfer.take(response)
                return transfer.check()
            except grpc.RpcError as error:
                pause = transfer.pause_after(error)
            time.sleep(pause)

    def find(self, digests: Iterable[str], deadline: Deadline) -> list[Media]:
        """What the server says about digests."""
        request = media_service_pb2.BatchGetMediaRequest(digests=digests)
        with translated_errors():
            return [read_media(each) for each in self._media.BatchGetMedia(request, timeout=deadline.left()).media]

    def delete(self, digest: str, deadline: Deadline) -> None:
        """Deletes what is held under a digest."""
        with translated_errors():
            self._media.DeleteMedia(media_service_pb2.DeleteMediaRequest(digest=digest), timeout=deadline.left())

    def encode(
        self, request: media_service_pb2.EncodeImagesRequest, deadline: Deadline
    ) -> media_service_pb2.EncodeImagesResponse:
        """Has images encoded."""
        with translated_errors():
            return self.call(request, lambda: self._media.EncodeImages(request, timeout=deadline.left()), deadline)

    def move_out(self, message: ProtobufMessage, deadline: Deadline) -> list[LargeMedium]:
        """Uploads the large media of a message and names them in it; returns them, in case that must be repeated."""
        if not may_hold_large_media(message):
            return []
        room = room_of(self._server_info(deadline))
        found = [] if room is None else find_large_media(message, room)
        self.upload_all(found, deadline)
        return found

    def upload_all(self, media: Sequence[LargeMedium], deadline: Deadline) -> None:
        """Uploads what the server lacks of the media, and names them by digest."""
        for medium in media:
            medium.name_by(self.upload(ByteSource(medium.content), deadline).digest)

    def call(self, message: ProtobufMessage, send: Callable[[], Response], deadline: Deadline) -> Response:
        """Sends a request whose media are in `message`. `send` makes the request of the message as it is then."""
        large = self.move_out(message, deadline)
        try:
            return send()
        except grpc.RpcError as error:
            if not large or not media_are_gone(error_from_call(error)):
                raise
        self.upload_all(large, deadline)
        return send()

    def stream(self, message: ProtobufMessage, start: Callable[[], Any], deadline: Deadline) -> Any:
        """As `call`, for a call that is iterated. Uploads before it returns."""
        large = self.move_out(message, deadline)
        return MediaCall(start, lambda: self.upload_all(large, deadline)) if large else start()

    def _server_info(self, deadline: Deadline) -> server_pb2.GetServerInfoResponse:
        if self._info is not None:
            return self._info
        with translated_errors():
            request = server_pb2.GetServerInfoRequest()
            info: server_pb2.GetServerInfoResponse = self._server.GetServerInfo(request, timeout=deadline.left())
        self._info = info
        return info


class AsyncMediaStore:
    """MediaService of a channel, for tasks. Files are hashed in a thread; methods are those of MediaStore."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._media = MediaServiceStub(channel)
        self._server = ServerServiceStub(channel)
        self._info: server_pb2.GetServerInfoResponse | None = None

    async def upload(self, source: ByteSource, deadline: Deadline, progress: ProgressCallback | None = None) -> Upload:
        """As `MediaStore.upload`."""
        await asyncio.to_thread(source.digest)
        transfer = UploadTransfer(source, progress)
        while True:
            try:
                answer = await self._media.BatchGetMedia(transfer.question(), timeout=deadline.left())
                held = transfer.take_answer(answer)
                if held is None:
                    response = await self._media.UploadMedia(transfer.messages(), timeout=deadline.left())
                    held = transfer.take_response(response)
                return held
            except grpc.RpcError as error:
                pause = transfer.pause_after(error)
            except asyncio.CancelledError:
                transfer.raise_failure()  # grpc.aio cancels a call whose messages cannot be made
                raise
            await asyncio.sleep(pause)

    async def download(
        self, digest: str, sink: BinaryIO, deadline: Deadline, progress: ProgressCallback | None = None
    ) -> None:
        """As `MediaStore.download`."""
        transfer = DownloadTransfer(digest, sink, progress)
        while True:
            try:
                async for response in self._media.DownloadMedia(transfer.request(), timeout=deadline.left()):
                    transfer.take(response)
                return transfer.check()
            except grpc.RpcError as error:
                pause = transfer.pause_after(error)
            await asyncio.sleep(pause)

    async def find(self, digests: Iterable[str], deadline: Deadline) -> list[Media]:
        """As `MediaStore.find`."""
        request = media_service_pb2.BatchGetMediaRequest(digests=digests)
        with translated_errors():
            response = await self._media.BatchGetMedia(request, timeout=deadline.left())
        return [read_media(each) for each in response.media]

    async def delete(self, digest: str, deadline: Deadline) -> None:
        """As `MediaStore.delete`."""
        with translated_errors():
            await self._media.DeleteMedia(media_service_pb2.DeleteMediaRequest(digest=digest), timeout=deadline.left())

    async def encode(
        self, request: media_service_pb2.EncodeImagesRequest, deadline: Deadline
    ) -> media_service_pb2.EncodeImagesResponse:
        """As `MediaStore.encode`."""
        with translated_errors():
            return await self.call(
                request, lambda: self._media.EncodeImages(request, timeout=deadline.left()), deadline
            )

    async def move_out(self, message: ProtobufMessage, deadline: Deadline) -> list[LargeMedium]:
        """As `MediaStore.move_out`."""
        if not may_hold_large_media(message):
            return []
        room = room_of(await self._server_info(deadline))
        found = [] if room is None else find_large_media(message, room)
        await self.upload_all(found, deadline)
        return found

    async def upload_all(self, media: Sequence[LargeMedium], deadline: Deadline) -> None:
        """As `MediaStore.upload_all`."""
        for medium in media:
            medium.name_by((await self.upload(ByteSource(medium.content), deadline)).digest)

    async def call(
        self, message: ProtobufMessage, send: Callable[[], Awaitable[Response]], deadline: Deadline
    ) -> Response:
        """As `MediaStore.call`."""
        large = await self.move_out(message, deadline)
        try:
            return await send()
        except grpc.RpcError as error:
            if not large or not media_are_gone(error_from_call(error)):
                raise
        await self.upload_all(large, deadline)
        return await send()

    def stream(
        self, message: ProtobufMessage, start: Callable[[], Any], deadline: Deadline, may_begin_again: bool = True
    ) -> Any:
        """As `MediaStore.stream`, but that it returns at once, and uploads in a task of its own."""
        if not may_hold_large_media(message):
            return start()
        large: list[LargeMedium] = []

        async def upload() -> None:
            if large:
                await self.upload_all(large, deadline)
            else:
                large.extend(await self.move_out(message, deadline))

        return AsyncMediaCall(start, upload, may_begin_again)

    async def _server_info(self, deadline: Deadline) -> server_pb2.GetServerInfoResponse:
        if self._info is not None:
            return self._info
        with translated_errors():
            request = server_pb2.GetServerInfoRequest()
            info: server_pb2.GetServerInfoResponse = await self._server.GetServerInfo(request, timeout=deadline.left())
        self._info = info
        return info
