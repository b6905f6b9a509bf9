"""MediaService: uploads by digest, what is held of them, and embeddings made on request.

How an upload ends:

    the stream ends         digest and length are checked: the file is held, or INVALID_ARGUMENT and nothing is kept
    the stream breaks off   what came is kept for a while, so that a stream with the same digest can go on
    a message is refused    the same: the rest can be sent again
    the store refuses       the store has decided what is kept

Knows no files and no disk: `MediaStore` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fanlight.v1 import media_service_pb2_grpc
from fanlight_engine.errors import StoreFullError, UploadTooLargeError
from fanlight_engine.inputs.media.sources.store import MediaNotHeldError
from fanlight_server.active_requests import ANONYMOUS
from fanlight_server.backend import Backend
from fanlight_server.convert import uploads
from fanlight_server.lifecycle import Lifecycle
from fanlight_server.status import ErrorReason, ServiceError, explain, field_error

if TYPE_CHECKING:
    from fanlight_engine.inputs.media.sources.store import MediaStore
    from fanlight_engine.inputs.media.sources.uploads import StoredObject, Upload

SECONDS_TO_NOTICE_A_LOST_CLIENT = 0.05
"""A call that was broken off can look half-closed at first: the cancellation that tells comes within a millisecond."""


class MediaService(media_service_pb2_grpc.MediaServiceServicer):
    """One per server."""

    def __init__(self, backend: Backend, lifecycle: Lifecycle) -> None:
        self._backend = backend
        self._lifecycle = lifecycle

    async def UploadMedia(self, request_iterator: Any, context: Any) -> Any:
        """The file, once all of it has come; at once when it is held already."""
        store = self._open_store()
        first = await anext(request_iterator, None)
        start = uploads.upload_start_of(first)
        upload = store.begin_upload(ANONYMOUS, start.digest, start.offset, start.total_bytes)
        if upload.already_held is not None:
            return uploads.upload_response(upload.already_held, was_held=True)
        held = await _receive(upload, start, first, request_iterator)
        return uploads.upload_response(held, was_held=False)

    async def BatchGetMedia(self, request: Any, context: Any) -> Any:
        """What is held of each digest; one that is not held is ABSENT, never an error."""
        store = self._open_store()
        return uploads.batch_get_response([store.status(ANONYMOUS, one) for one in uploads.asked_digests(request)])

    async def DeleteMedia(self, request: Any, context: Any) -> Any:
        """Delete a file, or what has come of one."""
        store = self._open_store()
        if not await store.delete(ANONYMOUS, uploads.named_digest(request)):
            raise _not_held_error()
        return uploads.delete_response()

    async def DownloadMedia(self, request: Any, context: Any) -> AsyncGenerator[Any, None]:
        """The bytes, in messages that every client takes; the first one also says how many there are."""
        store = self._open_store()
        digest = uploads.named_digest(request)
        total_bytes = store.status(ANONYMOUS, digest).size
        try:
            pieces = store.read_pieces(ANONYMOUS, digest, request.offset, uploads.PIECE_BYTES)
            async with aclosing(pieces):
                yield uploads.download_response(await anext(pieces, b""), total_bytes)
                async for piece in pieces:
                    yield uploads.download_response(piece)
        except MediaNotHeldError:
            raise _not_held_error() from None

    async def EncodeImages(self, request: Any, context: Any) -> Any:
        """Embeddings of images, to be named in later requests."""
        self._open_store()
        images = uploads.images_to_encode(request)
        try:
            encoded = await self._backend.encode_media(request.model, images, ANONYMOUS)
        except (UploadTooLargeError, StoreFullError) as error:  # whose texts speak of an upload, which this is not
            raise self._no_room_error(error) from error
        return uploads.encode_images_response(encoded)

    def _open_store(self) -> MediaStore:
        """The store, where this server has one and takes work. Raises ServiceError."""
        self._lifecycle.require_serving()
        if not self._backend.store.max_object_bytes:
            raise ServiceError(
                ErrorReason.UNSUPPORTED,
                "this server keeps no media (media_store_bytes is 0): send the bytes with each request",
            )
        return self._backend.store

    def _no_room_error(self, error: UploadTooLargeError | StoreFullError) -> ServiceError:
        """The refusal of embeddings that were made and cannot be held."""
        limit, config = self._backend.store.max_object_bytes, self._backend.config
        told = str(error)
        if isinstance(error, UploadTooLargeError):
            setting = "media_store_bytes" if limit == config.media_store_bytes else "max_video_bytes"
            told = f"those of one image take more than the {limit} bytes of {setting}, which its operator can raise"
        message = f"the embeddings cannot be held: {told}; or send the image itself with each request"
        return ServiceError.of(replace(explain(error, ""), message=message))


async def _receive(upload: Upload, start: uploads.UploadStart, first: Any, later: AsyncIterator[Any]) -> StoredObject:
    """Write chunk after chunk. Whatever breaks the stream, what came of it can be gone on from."""
    received = start.offset
    try:
        async for chunk in _chunks(first, later):
            await upload.write(chunk)
            received += len(chunk)
        if received != start.total_bytes:
            await asyncio.sleep(SECONDS_TO_NOTICE_A_LOST_CLIENT)
        return await upload.commit()
    finally:
        upload.suspend()  # does nothing once the store has ended the upload


async def _chunks(first: Any, later: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    if first.data:
        yield first.data
    async for message in later:
        if chunk := uploads.later_chunk_of(message):
            yield chunk


def _not_held_error() -> ServiceError:
    return field_error(
        "digest",
        "nothing is held for you under this digest; upload it, again if it was held before",
        ErrorReason.MEDIA_NOT_FOUND,
    )
