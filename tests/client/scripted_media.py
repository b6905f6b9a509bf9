"""A MediaService with a store in memory, which breaks streams off where a test says. Knows no tenants and no limits."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from fanlight.v1 import media_pb2
from fanlight.v1 import media_service_pb2 as messages
from fanlight.v1.media_service_pb2_grpc import MediaServiceServicer

TIME_TO_LIVE = Duration(seconds=3600)
DOWNLOAD_CHUNK_BYTES = 700_000


def digest_of_bytes(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


async def refuse(context: Any, code: grpc.StatusCode, message: str, reason: str) -> None:
    """Ends a call with a reason, as the server does."""
    status = status_pb2.Status(code=code.value[0], message=message)
    packed = any_pb2.Any()
    packed.Pack(error_details_pb2.ErrorInfo(domain="fanlight", reason=reason))
    status.details.append(packed)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    await context.abort(code, message)


class ScriptedMedia(MediaServiceServicer):
    """Set where streams break; read what is held and what was sent.

    break_uploads_at    bytes of the file at which the next uploads end with UNAVAILABLE, having kept that much
    break_downloads_at  bytes of the file at which the next downloads end with UNAVAILABLE
    refusals            statuses (code, reason) with which the next uploads are refused at once
    answer_digest       digest to answer uploads with; None: the right one
    garble              bytes to send instead of what is held; None: what is held
    """

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.partial: dict[str, bytearray] = {}
        self.break_uploads_at: list[int] = []
        self.break_downloads_at: list[int] = []
        self.refusals: list[tuple[grpc.StatusCode, str]] = []
        self.answer_digest: str | None = None
        self.garble: bytes | None = None
        self.upload_offsets: list[int] = []
        self.upload_totals: list[int] = []
        self.upload_chunks: list[int] = []
        self.download_offsets: list[int] = []
        self.questions = 0

    def put(self, content: bytes) -> str:
        digest = digest_of_bytes(content)
        self.held[digest] = content
        return digest

    async def BatchGetMedia(self, request: Any, context: Any) -> Any:
        self.questions += 1
        return messages.BatchGetMediaResponse(media=[self.facts(digest) for digest in request.digests])

    async def UploadMedia(self, request_iterator: Any, context: Any) -> Any:
        first = await anext(request_iterator)
        self.upload_offsets.append(first.offset)
        self.upload_totals.append(first.total_bytes)
        if self.refusals:
            code, reason = self.refusals.pop(0)
            await refuse(context, code, "not now", reason)
        kept = self.partial.setdefault(first.digest, bytearray())
        if first.offset != len(kept):
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "wrong offset", "UPLOAD_OFFSET_WRONG")
        stop_at = self.break_uploads_at.pop(0) if self.break_uploads_at else None
        await self.keep(kept, first.data, stop_at, context)
        async for message in request_iterator:
            assert not message.HasField("digest")
            await self.keep(kept, message.data, stop_at, context)
        if digest_of_bytes(bytes(kept)) != first.digest or len(kept) != first.total_bytes:
            del self.partial[first.digest]
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "another digest", "UPLOAD_DIGEST_MISMATCH")
        self.held[first.digest] = bytes(self.partial.pop(first.digest))
        facts = self.facts(first.digest)
        facts.digest = self.answer_digest or facts.digest
        return messages.UploadMediaResponse(media=facts)

    async def keep(self, kept: bytearray, data: bytes, stop_at: int | None, context: Any) -> None:
        self.upload_chunks.append(len(data))
        kept.extend(data if stop_at is None else data[: max(0, stop_at - len(kept))])
        if stop_at is not None and len(kept) >= stop_at:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")

    async def DeleteMedia(self, request: Any, context: Any) -> Any:
        if self.held.pop(request.digest, None) is None:
            await refuse(context, grpc.StatusCode.NOT_FOUND, "nothing held", "MEDIA_NOT_FOUND")
        return messages.DeleteMediaResponse()

    async def DownloadMedia(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.download_offsets.append(request.offset)
        if request.digest not in self.held:
            await refuse(context, grpc.StatusCode.NOT_FOUND, "nothing held", "MEDIA_NOT_FOUND")
        content = self.held[request.digest] if self.garble is None else self.garble
        end = self.break_downloads_at.pop(0) if self.break_downloads_at else len(content)
        for start in range(request.offset, end, DOWNLOAD_CHUNK_BYTES):
            chunk = content[start : min(end, start + DOWNLOAD_CHUNK_BYTES)]
            total = len(content) if start == request.offset else None
            yield messages.DownloadMediaResponse(data=chunk, total_bytes=total)
        if end < len(content):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")

    async def EncodeImages(self, request: Any, context: Any) -> Any:
        encoded = []
        for image in request.images:
            file = b"embeddings of " + image.SerializeToString()
            facts = {"model_fingerprint": "sha256:model", "embeddings": 16, "hidden_size": 128, "size_bytes": len(file)}
            grid = media_pb2.Grid(t=1, h=8, w=8)
            encoded.append(messages.EncodedImage(embeddings_id=self.put(file), grid=grid, was_cached=True, **facts))
        return messages.EncodeImagesResponse(images=encoded)

    def facts(self, digest: str) -> messages.Media:
        if digest in self.held:
            return messages.Media(
                digest=digest,
                state=messages.MEDIA_STATE_HELD,
                size_bytes=len(self.held[digest]),
                content_type="video/mp4",
                size=media_pb2.Size(width=640, height=480),
                time_to_live=TIME_TO_LIVE,
            )
        if digest in self.partial:
            kept = len(self.partial[digest])
            return messages.Media(digest=digest, state=messages.MEDIA_STATE_PARTIAL, committed_bytes=kept)
        return messages.Media(digest=digest, state=messages.MEDIA_STATE_ABSENT)
