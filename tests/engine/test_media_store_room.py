"""What a media store promises of room and time: what goes first, what stays, and who is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fanlight_engine.errors import (
    StoreFullError,
    UploadOffsetError,
    UploadReplacedError,
)
from fanlight_engine.inputs.media.sources import contents
from fanlight_engine.inputs.media.sources.store import MediaNotHeldError, MediaState
from tests.engine.media_stores import KINDS, Clock, MakeStore, bytes_of, digest_of, making_stores, upload


@pytest.fixture(params=KINDS)
async def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeStore]:
    async with making_stores(request.param, tmp_path / "store") as make:
        yield make


# Room


async def test_the_least_recently_used_file_makes_room(make_store: MakeStore) -> None:
    store = await make_store(media_store_bytes=3000)
    first, second, third, fourth = [(bytes_of(1000, seed)) for seed in range(4)]
    for data in (first, second, third):
        await store.put("ada", data)
    await store.read("ada", digest_of(first))
    await store.put("ben", fourth)
    held = [store.status("ada", digest_of(data)).state is MediaState.HELD for data in (first, second, third)]
    assert held == [True, False, True]


async def test_uploads_under_way_make_a_store_full_and_the_refused_one_keeps_nothing(make_store: MakeStore) -> None:
    store = await make_store(media_store_bytes=3000)
    small = await store.put("ada", bytes_of(500))
    under_way = store.begin_upload("ben", digest_of(b"x"), 0, None)
    await under_way.write(bytes_of(2000))
    data = bytes_of(1500, seed=1)
    with pytest.raises(StoreFullError, match="3000 bytes"):
        store.begin_upload("ada", digest_of(data), 0, 1500)
    with pytest.raises(StoreFullError):
        await upload(store, data, total_bytes=None, chunk_bytes=400)
    assert store.status("ada", digest_of(data)).state is MediaState.ABSENT
    assert store.status("ben", digest_of(b"x")).committed_bytes == 2000
    under_way.drop()
    assert (await upload(store, data)).size == 1500
    assert small.size == 500


async def test_a_refusal_at_the_door_evicts_nobody(make_store: MakeStore) -> None:
    store = await make_store(media_store_bytes=3000)
    digest = (await store.put("ada", bytes_of(500))).digest
    under_way = store.begin_upload("ben", digest_of(b"x"), 0, None)
    await under_way.write(bytes_of(2000))
    with pytest.raises(StoreFullError):
        await store.put("ada", bytes_of(1001))
    assert store.status("ada", digest).state is MediaState.HELD


async def test_files_that_are_read_stay_when_room_is_needed_when_deleted_and_when_their_time_is_over(
    make_store: MakeStore,
) -> None:
    clock = Clock()
    store = await make_store(clock, media_store_bytes=3000)
    data = bytes_of(2000)
    digest = (await store.put("ada", data)).digest
    pieces = store.read_pieces("ada", digest, 0, 500)
    read = [await anext(pieces)]
    with pytest.raises(StoreFullError):
        await store.put("ben", bytes_of(1500, seed=1))
    clock.now += 10_000
    assert store.status("ada", digest).state is MediaState.HELD
    assert await store.delete("ada", digest)
    assert store.status("ada", digest).state is MediaState.ABSENT
    with pytest.raises(StoreFullError):
        await store.put("ben", bytes_of(1500, seed=1))
    read += [piece async for piece in pieces]
    assert b"".join(read) == data
    assert (await store.put("ben", bytes_of(3000, seed=1))).size == 3000


async def test_a_reader_that_goes_away_lets_go_of_the_file(make_store: MakeStore) -> None:
    store = await make_store(media_store_bytes=3000)
    digest = (await store.put("ada", bytes_of(2000))).digest
    pieces = store.read_pieces("ada", digest, 0, 500)
    assert len(await anext(pieces)) == 500
    never_begun = store.read_pieces("ada", digest, 0, 500)
    await pieces.aclose()  # pyright: ignore[reportAttributeAccessIssue]
    assert (await store.put("ben", bytes_of(3000, seed=1))).size == 3000
    with pytest.raises(MediaNotHeldError):
        await anext(never_begun)


async def test_however_small_they_are_only_so_many_things_are_kept(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "MAX_ENTRIES", 10)
    store = await make_store()
    for number in range(20):
        await store.put("ada", b"%d" % number)
    held = [store.status("ada", digest_of(b"%d" % number)).state is MediaState.HELD for number in range(20)]
    assert held == [False] * 10 + [True] * 10
    streams = [store.begin_upload("ada", digest_of(b"x%d" % number), 0, None) for number in range(10)]
    with pytest.raises(StoreFullError, match="as many as it takes"):
        store.begin_upload("ada", None, 0, None)
    for stream in streams:
        stream.drop()


# Time


async def test_files_go_a_while_after_their_last_use(make_store: MakeStore) -> None:
    clock = Clock()
    store = await make_store(clock, media_time_to_live=100)
    digest = (await store.put("ada", b"data")).digest
    for _ in range(3):
        clock.now += 99
        await store.read("ada", digest)
    clock.now += 60
    stored = store.status("ada", digest).object
    assert stored is not None
    assert stored.seconds_left == 40
    clock.now += 40
    assert store.status("ada", digest).state is MediaState.ABSENT
    with pytest.raises(MediaNotHeldError):
        await store.read("ada", digest)


async def test_a_repeated_upload_counts_as_use_and_a_question_does_not(make_store: MakeStore) -> None:
    clock = Clock()
    store = await make_store(clock, media_time_to_live=100)
    data = b"data"
    digest = (await store.put("ada", data)).digest
    for again in (store.put("ada", data), upload(store, data)):
        clock.now += 99
        assert (await again).seconds_left == 100
    clock.now += 99
    assert store.status("ada", digest).state is MediaState.HELD
    clock.now += 1
    assert store.status("ada", digest).state is MediaState.ABSENT


async def test_an_abandoned_upload_is_gone_after_its_time(make_store: MakeStore) -> None:
    clock = Clock()
    store, data = await make_store(clock, upload_time_to_live=60), bytes_of(5000)
    digest = digest_of(data)
    stream = store.begin_upload("ada", digest, 0, None)
    for begin in (0, 1000):
        clock.now += 59
        await stream.write(data[begin : begin + 1000])
    stream.suspend()
    clock.now += 59
    assert store.status("ada", digest).committed_bytes == 2000
    clock.now += 1
    assert store.status("ada", digest).state is MediaState.ABSENT
    with pytest.raises(UploadOffsetError):
        store.begin_upload("ada", digest, 2000, None)


async def test_the_sweeper_frees_what_nobody_asks_for(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    is_empty = asyncio.Event()

    def sweep(self: contents.Contents, sweep: Any = contents.Contents.sweep) -> None:
        sweep(self)
        if not self.used_bytes:
            is_empty.set()

    monkeypatch.setattr(contents.Contents, "sweep", sweep)
    clock = Clock()
    store = await make_store(clock, media_time_to_live=1, upload_time_to_live=1, media_store_bytes=3000)
    await store.put("ada", bytes_of(1000))
    stream = store.begin_upload("ada", None, 0, None)
    await stream.write(bytes_of(1000))
    is_empty.clear()
    clock.now += 1
    await asyncio.wait_for(is_empty.wait(), 30)
    with pytest.raises(UploadReplacedError, match="lay still"):
        await stream.write(b"x")
