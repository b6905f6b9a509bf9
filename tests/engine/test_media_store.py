"""What a media store promises, in memory and on disk alike: whole uploads, refused ones, and who sees what."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fanlight_engine.errors import (
    DigestMismatchError,
    InvalidRequestError,
    UploadReplacedError,
    UploadTooLargeError,
)
from fanlight_engine.inputs.media.sources.safetensors_file import write_embeddings
from fanlight_engine.inputs.media.sources.store import MediaNotHeldError, MediaState, is_digest
from fanlight_engine.tensor_data import tensor_data_of
from tests.engine.media_stores import KINDS, MEBIBYTE, MakeStore, bytes_of, digest_of, making_stores, upload


@pytest.fixture(params=KINDS)
async def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeStore]:
    async with making_stores(request.param, tmp_path / "store") as make:
        yield make


# Whole uploads


@pytest.mark.parametrize("chunk_bytes", [1000, 300_000, 3 * MEBIBYTE])
async def test_what_was_uploaded_in_chunks_is_read_back(make_store: MakeStore, chunk_bytes: int) -> None:
    store, data = await make_store(), bytes_of(2_500_000)
    stored = await upload(store, data, chunk_bytes=chunk_bytes)
    assert (stored.digest, stored.size, stored.seconds_left) == (digest_of(data), len(data), 3600)
    assert await store.read("ada", stored.digest) == data
    status = store.status("ada", stored.digest)
    assert (status.state, status.size, status.object) == (MediaState.HELD, len(data), stored)


async def test_without_a_digest_the_store_computes_it(make_store: MakeStore) -> None:
    store, data = await make_store(), bytes_of(5000)
    stored = await upload(store, data, digest=None, total_bytes=None)
    assert stored.digest == digest_of(data)
    assert await store.put("ada", data) == stored
    assert await store.read("ada", stored.digest.upper().replace("SHA256", "sha256")) == data


async def test_what_is_held_already_needs_no_bytes(make_store: MakeStore) -> None:
    store, data = await make_store(), bytes_of(5000)
    stored = await upload(store, data)
    again = store.begin_upload("ada", stored.digest, 0, len(data))
    assert again.already_held == stored
    await again.write(b"something else")
    again.suspend()
    again.drop()
    assert await again.commit() == stored
    assert await store.read("ada", stored.digest) == data


async def test_in_pieces_from_any_offset(make_store: MakeStore) -> None:
    store, data = await make_store(), bytes_of(10_000)
    digest = (await store.put("ada", data)).digest
    for offset in (0, 1, 4096, 9_999, 10_000):
        pieces = [piece async for piece in store.read_pieces("ada", digest, offset, 4096)]
        assert b"".join(pieces) == data[offset:]
        assert all(0 < len(piece) <= 4096 for piece in pieces)
    with pytest.raises(InvalidRequestError, match="10001"):
        store.read_pieces("ada", digest, 10_001, 4096)


async def test_deleted_files_are_gone(make_store: MakeStore) -> None:
    store = await make_store()
    digest = (await store.put("ada", b"data")).digest
    assert await store.delete("ada", digest)
    assert not await store.delete("ada", digest)
    assert store.status("ada", digest).state is MediaState.ABSENT
    with pytest.raises(MediaNotHeldError):
        await store.read("ada", digest)
    with pytest.raises(MediaNotHeldError):
        store.read_pieces("ada", digest, 0, 10)


async def test_deleting_ends_an_upload_under_way(make_store: MakeStore) -> None:
    store, data = await make_store(), bytes_of(5000)
    stream = store.begin_upload("ada", digest_of(data), 0, None)
    await stream.write(data[:1000])
    assert await store.delete("ada", digest_of(data))
    with pytest.raises(UploadReplacedError):
        await stream.write(data[1000:])
    with pytest.raises(UploadReplacedError):
        await stream.commit()
    assert store.status("ada", digest_of(data)).state is MediaState.ABSENT


def _png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (30, 20)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "content_type", "image_size"),
    [
        (_png(), "image/png", (30, 20)),
        (_png()[:45], "image/png", (30, 20)),
        (_png()[:20], "image/png", None),
        (b"\xff\xd8\xff and no more", "image/jpeg", None),
        (b"RIFF\x10\0\0\0WEBPVP8 garbage", "image/webp", None),
        (b"\0\0\0\x18ftypisom\0\0\0\0isomiso2", "video/mp4", None),
        (b"\x1a\x45\xdf\xa3\x01\0\0\0\0\0\0\x1f\x42\x82\x84webm", "video/webm", None),
        (write_embeddings({"a": tensor_data_of(np.ones(3, np.float32))}, {}), "application/safetensors", None),
        (b"%PDF-1.7", "", None),
        (b"x", "", None),
    ],
)
async def test_the_content_type_comes_from_the_first_bytes(
    make_store: MakeStore, data: bytes, content_type: str, image_size: tuple[int, int] | None
) -> None:
    stored = await (await make_store()).put("ada", data)
    assert (stored.content_type, stored.image_size) == (content_type, image_size)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sha256:",
        "sha256:" + "a" * 63,
        "sha256:" + "a" * 65,
        "sha256:" + "a" * 64 + "\n",
        "sha256:" + "g" * 64,
        "sha256:" + "\u0663" * 64,
        "sha256:../" + "a" * 61,
        "md5:" + "a" * 64,
        "../../etc/passwd",
    ],
)
async def test_what_is_no_digest_is_not_held_and_cannot_be_uploaded(make_store: MakeStore, text: str) -> None:
    store = await make_store()
    assert not is_digest(text)
    assert store.status("ada", text).state is MediaState.ABSENT
    assert not await store.delete("ada", text)
    with pytest.raises(MediaNotHeldError):
        await store.read("ada", text)
    with pytest.raises(InvalidRequestError):
        store.begin_upload("ada", text, 0, None)


# Refused uploads keep nothing


async def test_other_bytes_than_announced_are_refused_and_nothing_is_kept(make_store: MakeStore) -> None:
    store, data = await make_store(), bytes_of(5000)
    digest = digest_of(data)
    with pytest.raises(DigestMismatchError, match=digest):
        await upload(store, bytes_of(5000, seed=1), digest=digest)
    assert store.status("ada", digest).state is MediaState.ABSENT
    with pytest.raises(DigestMismatchError, match="5000 bytes came and 5001"):
        await upload(store, data, total_bytes=5001)
    with pytest.raises(DigestMismatchError, match="4999 were announced"):
        await upload(store, data, total_bytes=4999)
    assert store.status("ada", digest).state is MediaState.ABSENT
    with pytest.raises(InvalidRequestError, match="no bytes"):
        await upload(store, b"", digest=None, total_bytes=None)


async def test_too_large_uploads_are_refused_when_announced_and_when_they_come(make_store: MakeStore) -> None:
    store = await make_store(max_image_bytes=1000, max_video_bytes=2000)
    assert store.max_object_bytes == 2000
    assert (await upload(store, bytes_of(2000))).size == 2000
    with pytest.raises(UploadTooLargeError, match="2001 bytes, 2000 are allowed"):
        store.begin_upload("ada", None, 0, 2001)
    data = bytes_of(2001)
    with pytest.raises(UploadTooLargeError, match="2000 are allowed"):
        await upload(store, data, total_bytes=None, chunk_bytes=500)
    assert store.status("ada", digest_of(data)).state is MediaState.ABSENT


async def test_no_single_file_is_larger_than_the_store(make_store: MakeStore) -> None:
    store = await make_store(media_store_bytes=1000)
    assert store.max_object_bytes == 1000
    with pytest.raises(UploadTooLargeError):
        await store.put("ada", bytes_of(1001))
    assert (await store.put("ada", bytes_of(1000))).size == 1000


async def test_a_store_without_bytes_says_that_it_keeps_nothing(make_store: MakeStore) -> None:
    store = await make_store(media_store_bytes=0)
    with pytest.raises(UploadTooLargeError, match="keeps no uploads"):
        store.begin_upload("ada", None, 0, None)


# Who sees what


async def test_principals_see_their_own_files_and_nobody_elses(make_store: MakeStore) -> None:
    store, data = await make_store(), bytes_of(5000)
    digest = (await store.put("ada", data)).digest
    assert store.status("ben", digest).state is MediaState.ABSENT
    assert not await store.delete("ben", digest)
    with pytest.raises(MediaNotHeldError):
        await store.read("ben", digest)
    stream = store.begin_upload("ben", digest, 0, len(data))
    assert stream.already_held is None  # that somebody else has it saves no byte
    await stream.write(data)
    assert store.status("ben", digest).state is MediaState.PARTIAL
    await stream.commit()
    assert await store.delete("ada", digest)
    assert await store.read("ben", digest) == data


async def test_uploads_of_one_digest_by_two_principals_do_not_disturb_each_other(make_store: MakeStore) -> None:
    store, data = await make_store(), bytes_of(5000)
    streams = [store.begin_upload(who, digest_of(data), 0, None) for who in ("", "ada", "ben", "../ada", "\ud800")]
    for begin in range(0, 5000, 1000):
        for stream in streams:
            await stream.write(data[begin : begin + 1000])
    assert {(await stream.commit()).digest for stream in streams} == {digest_of(data)}
