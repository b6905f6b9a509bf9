"""UploadMedia over a socket: how an upload ends, and what is kept of it."""

from __future__ import annotations

import asyncio
import json
import sys
from base64 import b64encode
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from PIL import Image

from fanlight_engine.config import EngineConfig
from tests.server.conftest import Served, start_server, stop_server
from tests.server.messages import refusal
from tests.server.scripted_backend import WAIT_SECONDS, ScriptedBackend
from tests.server.uploads import (
    ABSENT,
    FILE,
    HELD,
    OTHER,
    PARTIAL,
    UploadMediaRequest,
    broken_off,
    chunks,
    digest_of,
    downloaded,
    status_of,
    until_arrived,
    until_nothing_is_open,
)

INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture(autouse=True)
async def the_books_of_the_store_are_right(served: Served) -> AsyncIterator[None]:
    yield
    await until_nothing_is_open(served)
    served.backend.store.check_integrity()


@pytest_asyncio.fixture
async def small() -> AsyncIterator[Served]:
    """A store that holds no more than 300,000 bytes."""
    one = await start_server(ScriptedBackend(config=EngineConfig(media_store_bytes=300_000)))
    await one.server.load()
    yield one
    await stop_server(one)


async def test_a_file_in_chunks_without_a_digest_is_held_under_its_digest(served: Served) -> None:
    response = await served.media.UploadMedia(chunks(FILE))
    assert response.media.digest == digest_of(FILE)
    assert (response.media.state, response.media.size_bytes) == (HELD, len(FILE))
    assert not response.was_held
    assert response.media.time_to_live.ToTimedelta().total_seconds() == pytest.approx(3600, abs=5)
    assert response.media.time_to_live.nanos == 0
    assert (await status_of(served, digest_of(FILE))).state == HELD


async def test_a_picture_is_recognised(served: Served) -> None:
    file = BytesIO()
    Image.new("RGB", (7, 5)).save(file, "PNG")
    media = (await served.media.UploadMedia(chunks(file.getvalue()))).media
    assert media.content_type == "image/png"
    assert (media.size.width, media.size.height) == (7, 5)


async def test_an_upload_that_breaks_off_at_three_places_goes_on_there(served: Served) -> None:
    digest, begin = digest_of(FILE), 0
    for end in (70_000, 130_000, 200_000):
        first = {"offset": begin} if begin else {"total_bytes": len(FILE)}
        await broken_off(served, FILE[begin:end], digest=digest, **first)
        media = await status_of(served, digest)
        assert (media.state, media.committed_bytes, media.size_bytes) == (PARTIAL, end, len(FILE))
        begin = end
    response = await served.media.UploadMedia(chunks(FILE[begin:], digest=digest, offset=begin))
    assert (response.media.state, response.media.size_bytes) == (HELD, len(FILE))
    assert b"".join(message.data for message in await downloaded(served, digest)) == FILE


async def test_what_came_before_the_stream_broke_is_kept_every_time(served: Served) -> None:
    """A call that breaks off can look half-closed for a moment, which must not be taken for a wrong digest."""
    for number in range(20):
        data = FILE[:1000] + bytes([number])
        await broken_off(served, data[:500], digest=digest_of(data))
        assert (await status_of(served, digest_of(data))).state == PARTIAL


async def test_a_passed_deadline_keeps_what_came(served: Served) -> None:
    digest = digest_of(FILE)
    call = served.media.UploadMedia(timeout=0.3)
    await call.write(UploadMediaRequest(digest=digest, data=FILE[:1000]))
    assert (await refusal(call)).code is grpc.StatusCode.DEADLINE_EXCEEDED
    await until_nothing_is_open(served)
    assert (await status_of(served, digest)).committed_bytes == 1000


async def test_the_end_of_a_drain_keeps_what_came(served: Served) -> None:
    digest = digest_of(FILE)
    call = served.media.UploadMedia()
    await call.write(UploadMediaRequest(digest=digest, data=FILE[:1000]))
    await until_arrived(served, digest, 1000)
    served.server.lifecycle.end_open_calls()
    refused = await refusal(call)
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert served.backend.store.status("", digest).committed_bytes == 1000


async def test_a_wrong_digest_or_length_is_refused_and_nothing_is_kept(served: Served) -> None:
    announced: list[dict[str, Any]] = [
        {"digest": OTHER},
        {"digest": OTHER, "total_bytes": len(FILE)},
        {"total_bytes": len(FILE) + 1},
    ]
    for first in announced:
        refused = await refusal(served.media.UploadMedia(chunks(FILE, **first)))
        assert (refused.code, refused.reason) == (INVALID, "UPLOAD_DIGEST_MISMATCH")
        for digest in (OTHER, digest_of(FILE)):
            assert (await status_of(served, digest)).state == ABSENT


async def test_more_bytes_than_were_announced_are_refused(served: Served) -> None:
    refused = await refusal(served.media.UploadMedia(chunks(FILE, digest=digest_of(FILE), total_bytes=10)))
    assert (refused.code, refused.reason) == (INVALID, "UPLOAD_DIGEST_MISMATCH")
    assert (await status_of(served, digest_of(FILE))).state == ABSENT


async def test_an_offset_that_is_not_where_the_upload_ended_is_refused(served: Served) -> None:
    digest = digest_of(FILE)
    await broken_off(served, FILE[:1000], digest=digest)
    refused = await refusal(served.media.UploadMedia(chunks(FILE[2000:], digest=digest, offset=2000)))
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "UPLOAD_OFFSET_WRONG")
    assert refused.fields == ["offset"]
    assert "1000" in refused.text
    assert (await status_of(served, digest)).committed_bytes == 1000, "what was there stays"


async def test_an_upload_that_begins_anew_forgets_what_was_there(served: Served) -> None:
    digest = digest_of(FILE)
    await broken_off(served, FILE[:1000], digest=digest)
    response = await served.media.UploadMedia(chunks(FILE, digest=digest))
    assert response.media.state == HELD


async def test_the_newest_upload_of_a_digest_goes_on_and_the_older_is_aborted(served: Served) -> None:
    digest = digest_of(FILE)
    older = served.media.UploadMedia()
    await older.write(UploadMediaRequest(digest=digest, data=FILE[:1000]))
    await until_arrived(served, digest, 1000)
    response = await served.media.UploadMedia(chunks(FILE[1000:], digest=digest, offset=1000))
    assert response.media.state == HELD
    await older.write(UploadMediaRequest(data=FILE[1000:2000]))
    refused = await refusal(older)
    assert (refused.code, refused.reason) == (grpc.StatusCode.ABORTED, "UPLOAD_REPLACED")
    assert (await status_of(served, digest)).state == HELD


async def test_what_is_held_needs_no_more_than_its_digest(served: Served) -> None:
    await served.media.UploadMedia(chunks(FILE))
    call = served.media.UploadMedia()
    await call.write(UploadMediaRequest(digest=digest_of(FILE)))
    response = await asyncio.wait_for(call, WAIT_SECONDS)  # the stream is still open: nothing more is waited for
    assert response.was_held
    assert response.media.digest == digest_of(FILE)


async def test_an_upload_of_everything_that_broke_off_before_its_end_needs_no_more_bytes(served: Served) -> None:
    digest = digest_of(FILE)
    await broken_off(served, FILE, digest=digest)
    response = await served.media.UploadMedia(iter([UploadMediaRequest(digest=digest, offset=len(FILE))]))
    assert response.media.state == HELD


@pytest.mark.parametrize(
    ("messages", "reason", "field"),
    [
        ([], "FIELD_REQUIRED", "data"),
        ([UploadMediaRequest()], "FIELD_INVALID", "data"),
        ([UploadMediaRequest(digest="md5:0", data=b"a")], "FIELD_INVALID", "digest"),
        ([UploadMediaRequest(digest="", data=b"a")], "FIELD_REQUIRED", "digest"),
        ([UploadMediaRequest(offset=5, data=b"a")], "FIELD_REQUIRED", "digest"),
        ([UploadMediaRequest(total_bytes=0, data=b"a")], "FIELD_INVALID", "total_bytes"),
        ([UploadMediaRequest(data=b"a"), UploadMediaRequest(digest=OTHER, data=b"b")], "FIELD_INVALID", "digest"),
        ([UploadMediaRequest(data=b"a"), UploadMediaRequest(offset=1, data=b"b")], "FIELD_INVALID", "offset"),
        ([UploadMediaRequest(data=b"a"), UploadMediaRequest(total_bytes=2, data=b"b")], "FIELD_INVALID", "total_bytes"),
    ],
    ids=[
        "no message",
        "no bytes",
        "malformed digest",
        "empty digest",
        "offset without a digest",
        "no length",
        "late digest",
        "late offset",
        "late length",
    ],
)
async def test_a_malformed_upload_names_the_field(served: Served, messages: Any, reason: str, field: str) -> None:
    refused = await refusal(served.media.UploadMedia(iter(messages)))
    assert (refused.code, refused.reason, refused.fields) == (INVALID, reason, [field])


async def test_broken_bytes_end_an_upload_and_keep_what_came(served: Served) -> None:
    digest = digest_of(FILE)
    call = served.channel.stream_unary("/fanlight.v1.MediaService/UploadMedia")()
    await call.write(UploadMediaRequest(digest=digest, data=FILE[:1000]).SerializeToString())
    await call.write(b"\xff\xff")
    refused = await refusal(call)
    assert (refused.code, refused.reason) == (INVALID, "MALFORMED_MESSAGE")
    assert (await status_of(served, digest)).committed_bytes == 1000


async def test_a_file_above_the_limit_is_refused_announced_or_not(small: Served) -> None:
    too_large = bytes(300_001)
    for first in ({}, {"total_bytes": len(too_large)}):
        refused = await refusal(small.media.UploadMedia(chunks(too_large, **first)))
        assert (refused.code, refused.reason) == (INVALID, "UPLOAD_TOO_LARGE")
        assert "300000" in refused.text


async def test_a_store_that_is_full_of_what_is_in_use_says_when_to_try_again(small: Served) -> None:
    digest = digest_of(FILE)
    call = small.media.UploadMedia()
    await call.write(UploadMediaRequest(digest=digest, data=FILE[:200_000], total_bytes=len(FILE)))
    await until_arrived(small, digest, 200_000)
    refused = await refusal(small.media.UploadMedia(chunks(bytes(200_000), digest=digest_of(bytes(200_000)))))
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "MEDIA_STORE_FULL")
    assert refused.retry_seconds == 5.0
    assert (await status_of(small, digest_of(bytes(200_000)))).state == ABSENT
    await call.write(UploadMediaRequest(data=FILE[200_000:]))
    await call.done_writing()
    assert (await call).media.state == HELD


async def test_grpcurl_uploads_a_file_in_chunks_of_base64(served: Served) -> None:
    """What the guide shows: `base64 -w1398104 clip.mp4 | jq -Rc '{data:.}' | grpcurl -plaintext -d @ ...`."""
    data = FILE * 9
    lines = b64encode(data).decode()
    messages = "".join(f'{{"data":"{lines[i : i + 1398104]}"}}\n' for i in range(0, len(lines), 1398104))
    assert messages.count("\n") == 3
    grpcurl = await asyncio.create_subprocess_exec(
        Path(sys.executable).parent / "grpcurl",
        *("-plaintext", "-d", "@", served.server.address, "fanlight.v1.MediaService/UploadMedia"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    told, complaints = await asyncio.wait_for(grpcurl.communicate(messages.encode()), 30)
    assert grpcurl.returncode == 0, complaints.decode()
    assert json.loads(told)["media"]["digest"] == digest_of(data)
    assert b"".join(message.data for message in await downloaded(served, digest_of(data))) == data


async def test_a_server_that_drains_takes_no_uploads(served: Served) -> None:
    hurry = asyncio.Event()
    hurry.set()
    await served.server.drain(hurry)
    refused = await refusal(served.media.UploadMedia(chunks(FILE)))
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert refused.retry_seconds == 1.0
