"""What a media store promises of uploads that break off, compete, or end in the middle of a chunk."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fanlight_engine.errors import (
    DigestMismatchError,
    EngineStoppedError,
    UploadOffsetError,
    UploadReplacedError,
)
from fanlight_engine.inputs.media.sources.bodies import Label, MemoryBody
from fanlight_engine.inputs.media.sources.store import MediaState
from fanlight_engine.inputs.media.sources.store_on_disk import DiskBody
from tests.engine.media_stores import KINDS, MEBIBYTE, MakeStore, bytes_of, digest_of, making_stores, upload


@pytest.fixture(params=KINDS)
async def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeStore]:
    async with making_stores(request.param, tmp_path / "store") as make:
        yield make


# Resuming


async def test_an_upload_broken_off_again_and_again_goes_on_where_it_was(make_store: MakeStore) -> None:
    store, data = await make_store(), bytes_of(10 * MEBIBYTE + 123)
    digest = digest_of(data)
    offset = 0
    for broken_off_at in (1, 3 * MEBIBYTE, 3 * MEBIBYTE + 7, 9 * MEBIBYTE):
        stream = store.begin_upload("ada", digest, offset, len(data))
        await stream.write(data[offset:broken_off_at])
        stream.suspend()
        status = store.status("ada", digest)
        assert (status.state, status.committed_bytes, status.size) == (MediaState.PARTIAL, broken_off_at, len(data))
        offset = broken_off_at
    stored = await upload(store, data, offset=offset)
    assert stored.digest == digest
    assert await store.read("ada", digest) == data


async def test_resuming_elsewhere_than_where_it_was_says_where(make_store: MakeStore) -> None:
    store, data = await make_store(), bytes_of(5000)
    digest = digest_of(data)
    for offset in (1, 5000):
        with pytest.raises(UploadOffsetError) as caught:
            store.begin_upload("ada", digest, offset, None)
        assert caught.value.committed_bytes == 0
    stream = store.begin_upload("ada", digest, 0, None)
    await stream.write(data[:1000])
    stream.suspend()
    for offset in (999, 1001):
        with pytest.raises(UploadOffsetError, match="1000 bytes") as caught:
            store.begin_upload("ada", digest, offset, None)
        assert caught.value.committed_bytes == 1000
    for who, which in (("ada", None), ("ben", digest), ("ada", digest_of(b"other"))):
        with pytest.raises(UploadOffsetError) as caught:
            store.begin_upload(who, which, 1000, None)
        assert caught.value.committed_bytes == 0
    with pytest.raises(DigestMismatchError, match="999 bytes were announced"):
        store.begin_upload("ada", digest, 1000, 999)
    assert (await upload(store, data, offset=1000)).digest == digest


async def test_offset_0_begins_anew(make_store: MakeStore) -> None:
    store, data = await make_store(), bytes_of(5000)
    stream = store.begin_upload("ada", digest_of(data), 0, None)
    await stream.write(b"wrong bytes")
    stream.suspend()
    assert (await upload(store, data)).digest == digest_of(data)


async def test_an_upload_without_digest_that_breaks_leaves_nothing(make_store: MakeStore) -> None:
    store = await make_store(media_store_bytes=1000)
    for _ in range(3):
        stream = store.begin_upload("ada", None, 0, None)
        await stream.write(bytes_of(900))
        stream.suspend()
        with pytest.raises(UploadReplacedError):
            await stream.write(b"x")
    empty = store.begin_upload("ada", digest_of(b"x"), 0, None)
    empty.suspend()
    assert store.status("ada", digest_of(b"x")).state is MediaState.ABSENT
    assert (await store.put("ada", bytes_of(1000))).size == 1000


async def test_the_newest_stream_takes_over_and_the_older_one_is_told(make_store: MakeStore) -> None:
    store, data = await make_store(), bytes_of(5000)
    digest = digest_of(data)
    older = store.begin_upload("ada", digest, 0, None)
    await older.write(data[:1000])
    newer = store.begin_upload("ada", digest, 1000, None)
    with pytest.raises(UploadReplacedError, match="took over"):
        await older.write(data[1000:2000])
    with pytest.raises(UploadReplacedError):
        await older.commit()
    older.suspend()
    older.drop()
    await newer.write(data[1000:])
    assert (await newer.commit()).digest == digest
    with pytest.raises(UploadReplacedError):
        await newer.write(b"more")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Writes of large chunks say that they began, and wait until they may end."""
    began, may_end = threading.Event(), threading.Event()
    for body in (MemoryBody, DiskBody):

        def write(self: Any, offset: int, chunk: bytes, write: Any = body.write) -> None:
            if chunk.startswith(b"slow"):
                began.set()
                assert may_end.wait(30)
            write(self, offset, chunk)

        monkeypatch.setattr(body, "write", write)
    return began, may_end


SLOW = b"slow" + bytes_of(MEBIBYTE)


async def test_a_chunk_on_its_way_when_another_stream_takes_over_does_not_count(
    make_store: MakeStore, gate: tuple[threading.Event, threading.Event]
) -> None:
    began, may_end = gate
    store, data = await make_store(), bytes_of(2000)
    older = store.begin_upload("ada", digest_of(data), 0, None)
    await older.write(data[:1000])
    on_its_way = asyncio.create_task(older.write(SLOW))
    await asyncio.to_thread(began.wait)
    newer = store.begin_upload("ada", digest_of(data), 1000, None)
    next_chunk = asyncio.create_task(newer.write(data[1000:]))
    may_end.set()
    with pytest.raises(UploadReplacedError):
        await on_its_way
    await next_chunk
    assert (await newer.commit()).size == 2000
    assert await store.read("ada", digest_of(data)) == data


async def test_what_does_not_count_is_cut_off_at_the_end_as_well(
    make_store: MakeStore, gate: tuple[threading.Event, threading.Event]
) -> None:
    began, may_end = gate
    store, data = await make_store(), bytes_of(1000)
    older = store.begin_upload("ada", digest_of(data), 0, None)
    await older.write(data)
    on_its_way = asyncio.create_task(older.write(SLOW))
    await asyncio.to_thread(began.wait)
    newer = store.begin_upload("ada", digest_of(data), 1000, None)
    may_end.set()
    assert (await newer.commit()).size == 1000
    with pytest.raises(UploadReplacedError):
        await on_its_way
    assert await store.read("ada", digest_of(data)) == data


def test_a_sealed_body_has_no_byte_more_than_its_label_says(tmp_path: Path) -> None:
    label = Label("owner", digest_of(b"counted"), total_bytes=7)
    for body in (MemoryBody(), DiskBody(tmp_path / "a", tmp_path / "objects", label)):
        (tmp_path / "objects").mkdir(exist_ok=True)
        body.write(0, b"counted")
        body.write(7, b" and what another stream took back")
        body.seal(label)
        assert body.read(0, 1000) == b"counted"
        assert body.read(3, 1000) == b"nted"


@pytest.mark.parametrize("end", ["suspend", "drop"])
async def test_a_chunk_whose_stream_is_cancelled_is_written_to_its_end(
    make_store: MakeStore, gate: tuple[threading.Event, threading.Event], end: str
) -> None:
    began, may_end = gate
    store, data = await make_store(), SLOW + b"and more"
    stream = store.begin_upload("ada", digest_of(data), 0, None)
    writing = asyncio.create_task(stream.write(SLOW))
    await asyncio.to_thread(began.wait)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    getattr(stream, end)()
    may_end.set()
    if end == "drop":
        assert store.status("ada", digest_of(data)).state is MediaState.ABSENT
        return
    while store.status("ada", digest_of(data)).committed_bytes == 0:
        await asyncio.to_thread(may_end.wait)
    assert store.status("ada", digest_of(data)).committed_bytes == len(SLOW)
    assert (await upload(store, data, offset=len(SLOW))).digest == digest_of(data)


async def test_many_streams_of_one_digest_at_once_end_with_one_file(make_store: MakeStore) -> None:
    store, data = await make_store(), bytes_of(2 * MEBIBYTE)
    streams = [upload(store, data, chunk_bytes=400_000) for _ in range(8)]
    results = await asyncio.gather(*streams, *(store.put("ada", data) for _ in range(4)), return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    assert all(isinstance(failure, UploadReplacedError) for failure in failures)
    assert len(failures) < len(results)
    assert await store.read("ada", digest_of(data)) == data


# The event loop, and the end


async def test_large_chunks_are_written_beside_the_event_loop(
    make_store: MakeStore, gate: tuple[threading.Event, threading.Event]
) -> None:
    began, may_end = gate
    store = await make_store()
    slow = asyncio.create_task(store.put("ada", SLOW))
    await asyncio.to_thread(began.wait)
    assert (await store.put("ben", b"small")).size == 5
    may_end.set()
    assert (await slow).size == len(SLOW)


async def test_stopping_waits_for_chunks_on_their_way_and_refuses_new_ones(
    make_store: MakeStore, gate: tuple[threading.Event, threading.Event]
) -> None:
    began, may_end = gate
    store = await make_store()
    slow = asyncio.create_task(store.put("ada", SLOW))
    await asyncio.to_thread(began.wait)
    stopping = asyncio.create_task(store.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    may_end.set()
    await stopping
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)
    with pytest.raises(EngineStoppedError):
        await store.put("ada", bytes_of(MEBIBYTE))
    gc.collect()  # a forgotten task or file would warn now, and warnings are errors
