"""MediaService over a socket: what is held, downloads, and embeddings made on request."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest

from fanlight.v1 import media_pb2, media_service_pb2
from fanlight_engine.config import EngineConfig
from fanlight_engine.dry_run import EncodedMedia
from fanlight_engine.errors import InvalidRequestError, MediaStoreError, Reason, StoreFullError, UploadTooLargeError
from fanlight_engine.request import ImagePart, Modality, PixelOptions, StoredMedia
from tests.server.conftest import Served, start_server, stop_server
from tests.server.messages import refusal, rest_of
from tests.server.scripted_backend import ScriptedBackend
from tests.server.uploads import (
    ABSENT,
    FILE,
    HELD,
    OTHER,
    PARTIAL,
    broken_off,
    chunks,
    digest_of,
    downloaded,
    status_of,
    until_nothing_is_open,
)

INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND


@pytest.fixture(autouse=True)
async def the_books_of_the_store_are_right(served: Served) -> AsyncIterator[None]:
    yield
    await until_nothing_is_open(served)
    served.backend.store.check_integrity()


async def test_what_is_held_is_told_in_the_order_asked(served: Served) -> None:
    await served.media.UploadMedia(chunks(FILE))
    await broken_off(served, b"half", digest=OTHER, total_bytes=8)
    asked = [digest_of(b"nobody"), digest_of(FILE), OTHER]
    response = await served.media.BatchGetMedia(media_service_pb2.BatchGetMediaRequest(digests=asked))
    assert [media.digest for media in response.media] == asked
    assert [media.state for media in response.media] == [ABSENT, HELD, PARTIAL]
    absent, held, partial = response.media
    assert not absent.HasField("size_bytes")
    assert not absent.HasField("committed_bytes")
    assert (held.size_bytes, held.HasField("committed_bytes")) == (len(FILE), False)
    assert (partial.size_bytes, partial.committed_bytes) == (8, 4)


@pytest.mark.parametrize(
    ("digests", "reason", "field"),
    [
        ([], "FIELD_REQUIRED", "digests"),
        ([OTHER] * 1001, "FIELD_INVALID", "digests"),
        ([OTHER, "../../etc/passwd"], "FIELD_INVALID", "digests[1]"),
    ],
    ids=["none", "too many", "malformed"],
)
async def test_malformed_questions_about_digests_are_refused(
    served: Served, digests: list[str], reason: str, field: str
) -> None:
    refused = await refusal(served.media.BatchGetMedia(media_service_pb2.BatchGetMediaRequest(digests=digests)))
    assert (refused.code, refused.reason, refused.fields) == (INVALID, reason, [field])


async def test_a_deleted_file_is_gone_and_so_is_what_came_of_one(served: Served) -> None:
    await served.media.UploadMedia(chunks(FILE))
    await broken_off(served, b"half", digest=OTHER)
    for digest in (digest_of(FILE), OTHER):
        request = media_service_pb2.DeleteMediaRequest(digest=digest)
        await served.media.DeleteMedia(request)
        assert (await status_of(served, digest)).state == ABSENT
        refused = await refusal(served.media.DeleteMedia(request))
        assert (refused.code, refused.reason, refused.fields) == (NOT_FOUND, "MEDIA_NOT_FOUND", ["digest"])


async def test_a_download_fits_every_client_and_begins_where_it_is_told(served: Served) -> None:
    data = FILE * 10
    await served.media.UploadMedia(chunks(data, size=1 << 20))
    messages = await downloaded(served, digest_of(data))
    assert len(messages) == 3
    assert max(message.ByteSize() for message in messages) <= 3 << 20
    assert b"".join(message.data for message in messages) == data
    assert [message.HasField("total_bytes") for message in messages] == [True, False, False]
    assert messages[0].total_bytes == len(data)
    rest = await downloaded(served, digest_of(data), offset=len(data) - 10)
    assert (rest[0].data, rest[0].total_bytes) == (data[-10:], len(data))
    (nothing,) = await downloaded(served, digest_of(data), offset=len(data))
    assert (nothing.data, nothing.total_bytes) == (b"", len(data))


async def test_a_download_of_nothing_and_one_beyond_the_end_are_refused(served: Served) -> None:
    refused = await refusal(downloaded(served, OTHER))
    assert (refused.code, refused.reason, refused.fields) == (NOT_FOUND, "MEDIA_NOT_FOUND", ["digest"])
    refused = await refusal(downloaded(served, "handle"))
    assert (refused.code, refused.fields) == (INVALID, ["digest"])
    await served.media.UploadMedia(chunks(FILE))
    refused = await refusal(downloaded(served, digest_of(FILE), offset=len(FILE) + 1))
    assert (refused.code, refused.fields) == (INVALID, ["offset"])


async def test_a_reader_that_leaves_lets_go_of_the_file(served: Served) -> None:
    data = FILE * 40
    await served.media.UploadMedia(chunks(data, size=1 << 20))
    call = served.media.DownloadMedia(media_service_pb2.DownloadMediaRequest(digest=digest_of(data)))
    assert (await call.read()).total_bytes == len(data)
    call.cancel()
    await until_nothing_is_open(served)
    served.backend.store.check_integrity()


async def test_a_file_that_is_deleted_while_it_is_read_is_read_to_its_end(served: Served) -> None:
    data = FILE * 40
    await served.media.UploadMedia(chunks(data, size=1 << 20))
    call = served.media.DownloadMedia(media_service_pb2.DownloadMediaRequest(digest=digest_of(data)))
    first = await call.read()
    await served.media.DeleteMedia(media_service_pb2.DeleteMediaRequest(digest=digest_of(data)))
    assert first.data + b"".join(message.data for message in await rest_of(call)) == data


async def test_images_are_encoded_and_their_embeddings_named(served: Served) -> None:
    served.backend.encoded = (
        EncodedMedia(OTHER, Modality.IMAGE, 64, 128, (1, 16, 16), "sha256:ff", 9000, was_cached=False),
        EncodedMedia(OTHER, Modality.IMAGE, 64, 128, None, "sha256:ff", 9000, was_cached=True),
    )
    images = [media_pb2.Image(digest=OTHER), media_pb2.Image(data=b"a", max_tokens=64)]
    request = media_service_pb2.EncodeImagesRequest(model="scripted", images=images)
    encoded, cached = (await served.media.EncodeImages(request)).images
    parts = (ImagePart(StoredMedia(OTHER)), ImagePart(b"a", PixelOptions(max_tokens=64)))
    assert served.backend.asked == [("scripted", parts, "")]
    assert (encoded.embeddings_id, encoded.model_fingerprint) == (OTHER, "sha256:ff")
    assert (encoded.embeddings, encoded.hidden_size, encoded.size_bytes) == (64, 128, 9000)
    assert (encoded.grid.t, encoded.grid.h, encoded.grid.w) == (1, 16, 16)
    assert (encoded.was_cached, cached.was_cached, cached.HasField("grid")) == (False, True, False)


async def test_images_that_cannot_be_encoded_are_named(served: Served) -> None:
    embedded = media_pb2.Image(embeddings_id=OTHER)
    for images, reason, field in (
        ([], "FIELD_REQUIRED", "images"),
        ([media_pb2.Image()], "FIELD_REQUIRED", "images[0]"),
        ([media_pb2.Image(data=b"a"), embedded], "FIELD_INVALID", "images[1].embeddings_id"),
    ):
        refused = await refusal(served.media.EncodeImages(media_service_pb2.EncodeImagesRequest(images=images)))
        assert (refused.code, refused.reason, refused.fields) == (INVALID, reason, [field])
    assert served.backend.asked == []
    served.backend.refusal = InvalidRequestError("images[0]", "it is no image", Reason.IMAGE_UNREADABLE)
    images = [media_pb2.Image(data=b"a")]
    refused = await refusal(served.media.EncodeImages(media_service_pb2.EncodeImagesRequest(images=images)))
    assert (refused.code, refused.reason, refused.fields) == (INVALID, "IMAGE_UNDECODABLE", ["images[0]"])


@pytest.mark.parametrize(
    ("config", "error", "reason", "told"),
    [
        (
            EngineConfig(media_store_bytes=10),
            UploadTooLargeError("an upload"),
            "UPLOAD_TOO_LARGE",
            "10 bytes of media_store_bytes",
        ),
        (
            EngineConfig(max_image_bytes=7, max_video_bytes=8),
            UploadTooLargeError("an upload"),
            "UPLOAD_TOO_LARGE",
            "8 bytes of max_video_bytes",
        ),
        (
            EngineConfig(),
            StoreFullError("all of it is in use; try again later"),
            "MEDIA_STORE_FULL",
            "all of it is in use",
        ),
    ],
    ids=["small store", "small files", "full store"],
)
async def test_embeddings_that_cannot_be_held_are_not_called_an_upload(
    config: EngineConfig, error: MediaStoreError, reason: str, told: str
) -> None:
    tight = await start_server(ScriptedBackend(config=config))
    await tight.server.load()
    tight.backend.refusal = error
    request = media_service_pb2.EncodeImagesRequest(images=[media_pb2.Image(data=b"a")])
    refused = await refusal(tight.media.EncodeImages(request))
    assert refused.reason == reason
    assert refused.text.startswith("the embeddings cannot be held: ")
    assert told in refused.text
    assert "upload" not in refused.text
    await stop_server(tight)


async def test_a_server_without_a_store_says_so() -> None:
    bare = await start_server(ScriptedBackend(config=EngineConfig(media_store_bytes=0)))
    await bare.server.load()
    for call in (
        bare.media.UploadMedia(chunks(FILE)),
        bare.media.EncodeImages(media_service_pb2.EncodeImagesRequest(images=[media_pb2.Image(data=b"a")])),
        status_of(bare, OTHER),
        downloaded(bare, OTHER),
    ):
        refused = await refusal(call)
        assert (refused.code, refused.reason) == (grpc.StatusCode.UNIMPLEMENTED, "UNSUPPORTED")
    await stop_server(bare)
