"""What a media store in a directory promises beyond one in memory: restarts, crashes, damage, and one server each."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import ConfigError, DigestMismatchError, StoreFullError
from fanlight_engine.inputs.media.sources import store_on_disk
from fanlight_engine.inputs.media.sources.store import MediaNotHeldError, MediaState, MediaStore
from fanlight_engine.inputs.media.sources.store_on_disk import LABEL_BYTES
from tests.engine.media_stores import MEBIBYTE, bytes_of, digest_of, upload

DATA = bytes_of(3 * MEBIBYTE)
DIGEST = digest_of(DATA)


@asynccontextmanager
async def store_in(directory: Path, **settings: Any) -> AsyncIterator[MediaStore]:
    store = MediaStore(EngineConfig(media_store_directory=str(directory), **settings))
    await store.start()
    try:
        yield store
        store.check_integrity()
    finally:
        await store.stop()


def files_in(directory: Path) -> list[Path]:
    return sorted(path for folder in ("objects", "partial") for path in (directory / folder).iterdir())


def only_file_in(directory: Path) -> Path:
    (path,) = files_in(directory)
    return path


async def fill(directory: Path, data: bytes = DATA) -> Path:
    """One file of ada's in a directory that nobody uses any more."""
    async with store_in(directory) as store:
        await store.put("ada", data)
    return only_file_in(directory)


async def test_files_survive_a_restart_with_all_that_is_known_of_them(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        before = await store.put("ada", DATA)
    async with store_in(tmp_path) as store:
        after = store.status("ada", DIGEST).object
        assert after is not None
        assert (after.digest, after.size, after.content_type) == (before.digest, before.size, before.content_type)
        assert store.begin_upload("ada", DIGEST, 0, None).already_held is not None
        assert store.status("ben", DIGEST).state is MediaState.ABSENT
        assert b"".join([piece async for piece in store.read_pieces("ada", DIGEST, 5, MEBIBYTE)]) == DATA[5:]
        assert await store.read("ada", DIGEST) == DATA


async def test_an_upload_broken_off_by_a_restart_goes_on_after_it(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        stream = store.begin_upload("ada", DIGEST, 0, len(DATA))
        await stream.write(DATA[:MEBIBYTE])
    async with store_in(tmp_path) as store:
        status = store.status("ada", DIGEST)
        assert (status.state, status.committed_bytes, status.size) == (MediaState.PARTIAL, MEBIBYTE, len(DATA))
        assert (await upload(store, DATA, offset=MEBIBYTE)).digest == DIGEST
        assert await store.read("ada", DIGEST) == DATA


async def test_an_upload_that_was_complete_but_for_its_end_is_committed_after_a_restart(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        await store.begin_upload("ada", DIGEST, 0, None).write(DATA)
    async with store_in(tmp_path) as store:
        assert (await store.begin_upload("ada", DIGEST, len(DATA), None).commit()).digest == DIGEST


async def test_an_upload_without_digest_does_not_survive_a_restart(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        await store.begin_upload("ada", None, 0, None).write(DATA)
    async with store_in(tmp_path):
        assert files_in(tmp_path) == []


async def test_deleted_evicted_and_outdated_files_leave_the_directory(tmp_path: Path) -> None:
    async with store_in(tmp_path, media_store_bytes=3 * MEBIBYTE) as store:
        await store.put("ada", DATA)
        await store.put("ada", b"evicts the first")
        await store.delete("ada", digest_of(b"evicts the first"))
    assert files_in(tmp_path) == []
    outdated = await fill(tmp_path)
    long_ago = outdated.stat().st_mtime - 3601
    os.utime(outdated, (long_ago, long_ago))
    async with store_in(tmp_path) as store:
        assert store.status("ada", DIGEST).state is MediaState.ABSENT
    assert files_in(tmp_path) == []


async def test_time_to_live_goes_on_over_a_restart(tmp_path: Path) -> None:
    file = await fill(tmp_path)
    earlier = file.stat().st_mtime - 1000
    os.utime(file, (earlier, earlier))
    async with store_in(tmp_path) as store:
        stored = store.status("ada", DIGEST).object
        assert stored is not None
        assert 2500 < stored.seconds_left <= 2600
        await store.read("ada", DIGEST)
    async with store_in(tmp_path) as store:
        stored = store.status("ada", DIGEST).object
        assert stored is not None
        assert stored.seconds_left > 3500


async def test_a_smaller_store_keeps_what_was_used_last(tmp_path: Path) -> None:
    contents = [bytes_of(1000, seed) for seed in range(4)]
    async with store_in(tmp_path) as store:
        for data in contents:
            await store.put("ada", data)
    for path in files_in(tmp_path):
        seed = next(seed for seed, data in enumerate(contents) if path.read_bytes().endswith(data))
        moment = path.stat().st_mtime - 100 * ((seed + 2) % 4)  # the third was used last, then the second
        os.utime(path, (moment, moment))
    async with store_in(tmp_path, media_store_bytes=2000) as store:
        held = [store.status("ada", digest_of(data)).state is MediaState.HELD for data in contents]
        assert held == [False, False, True, True]
    assert len(files_in(tmp_path)) == 2


# Damage


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[LABEL_BYTES + 100] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["read", "pieces"])
async def test_a_file_that_changed_behind_our_back_is_dropped_when_it_is_read(tmp_path: Path, how: str) -> None:
    flip_a_byte(await fill(tmp_path))
    async with store_in(tmp_path) as store:
        reading = store.read("ada", DIGEST) if how == "read" else anext(store.read_pieces("ada", DIGEST, 0, 1000))
        with pytest.raises(MediaNotHeldError):
            await reading
        assert store.status("ada", DIGEST).state is MediaState.ABSENT
        assert (await upload(store, DATA)).digest == DIGEST
        assert await store.read("ada", DIGEST) == DATA
    assert len(files_in(tmp_path)) == 1


@pytest.mark.parametrize("size", [0, 100, LABEL_BYTES, LABEL_BYTES + 1000, LABEL_BYTES + len(DATA) - 1])
async def test_a_file_that_was_cut_short_is_dropped_at_the_start(tmp_path: Path, size: int) -> None:
    os.truncate(await fill(tmp_path), size)
    async with store_in(tmp_path) as store:
        assert store.status("ada", DIGEST).state is MediaState.ABSENT
        assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    "label",
    [
        b"",
        b"\xff" * 20,
        b"[]",
        b"null",
        b'{"fanlight_media": 2}',
        b'{"fanlight_media": 1}',
        b'{"fanlight_media": 1, "owner": "a", "digest": "../x", "total_bytes": 3, "content_type": "", "image_size": 0}',
        b'{"fanlight_media": 1, "owner": "a", "digest": "x", "total_bytes": 3, "content_type": "", "image_size": null}',
        b'{"fanlight_media": 1, "owner": "a", "digest": "x", "total_bytes": "y", "content_type": "", "image_size": 0}',
    ],
)
@pytest.mark.parametrize("folder", ["objects", "partial"])
async def test_a_file_with_a_damaged_label_is_dropped_at_the_start(tmp_path: Path, folder: str, label: bytes) -> None:
    await fill(tmp_path)
    (tmp_path / folder / ("0" * 32)).write_bytes(label.ljust(LABEL_BYTES) + b"abc")
    async with store_in(tmp_path) as store:
        assert await store.read("ada", DIGEST) == DATA
    assert [path.name for path in files_in(tmp_path)] != ["0" * 32]
    assert len(files_in(tmp_path)) == 1


async def test_files_of_somebody_else_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    await fill(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("not ours")
    (tmp_path / "objects" / "notes.txt").write_text("not ours")
    (tmp_path / "objects" / ("a" * 32)).symlink_to(secret)
    (tmp_path / "objects" / ("b" * 32)).mkdir()
    async with store_in(tmp_path) as store:
        assert await store.read("ada", DIGEST) == DATA
    assert len(files_in(tmp_path)) == 4
    assert secret.read_text() == "not ours"


async def test_a_partial_upload_that_was_torn_ends_with_the_wrong_digest_and_is_dropped(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        await store.begin_upload("ada", DIGEST, 0, len(DATA)).write(DATA[:MEBIBYTE])
    flip_a_byte(only_file_in(tmp_path))
    async with store_in(tmp_path) as store:
        with pytest.raises(DigestMismatchError):
            await upload(store, DATA, offset=MEBIBYTE)
        assert store.status("ada", DIGEST).state is MediaState.ABSENT
        assert (await upload(store, DATA)).digest == DIGEST


async def test_files_that_vanish_while_the_store_runs_are_not_held_any_more(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        await store.put("ada", DATA)
        only_file_in(tmp_path).unlink()
        with pytest.raises(MediaNotHeldError):
            await store.read("ada", DIGEST)
        assert store.status("ada", DIGEST).state is MediaState.ABSENT
        assert (await upload(store, DATA)).digest == DIGEST


# A crash


UPLOADER = """
import asyncio, sys
from fanlight_engine.config import EngineConfig
from tests.engine.test_media_store_on_disk import DATA, DIGEST, MEBIBYTE, MediaStore

async def main():
    store = MediaStore(EngineConfig(media_store_directory=sys.argv[1]))
    await store.start()
    await store.put("ada", b"complete")
    stream = store.begin_upload("ada", DIGEST, 0, len(DATA))
    for begin in range(0, 2 * MEBIBYTE, 1 << 16):
        await stream.write(DATA[begin : begin + (1 << 16)])
        print("wrote", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_server_that_is_killed_leaves_complete_files_and_uploads_that_go_on(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", UPLOADER, str(tmp_path)), stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    for _ in range(20):
        assert await process.stdout.readline() == b"wrote\n"
    with pytest.raises(ConfigError, match="used by another server"):
        async with store_in(tmp_path):
            pass
    process.send_signal(signal.SIGKILL)
    await process.communicate()
    async with store_in(tmp_path) as store:
        assert await store.read("ada", digest_of(b"complete")) == b"complete"
        committed = store.status("ada", DIGEST).committed_bytes
        assert committed is not None
        assert committed >= 20 << 16
        assert (await upload(store, DATA, offset=committed)).digest == DIGEST
        assert await store.read("ada", DIGEST) == DATA


# A full disk


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("when", ["first", "second", "seal"])
async def test_a_full_disk_refuses_the_upload_and_keeps_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, when: str
) -> None:
    write_all = store_on_disk._write_all
    is_full = False

    def fill_up(file: int, data: bytes, offset: int) -> None:
        if is_full:
            write_all(file, data[: len(data) // 2], offset)
            raise OSError(number, os.strerror(number))
        write_all(file, data, offset)

    monkeypatch.setattr(store_on_disk, "_write_all", fill_up)
    async with store_in(tmp_path) as store:
        await store.put("ada", b"from before")
        stream = store.begin_upload("ada", DIGEST, 0, None)
        steps = {
            "first": lambda: stream.write(DATA[:MEBIBYTE]),
            "second": lambda: stream.write(DATA[MEBIBYTE:]),
            "seal": stream.commit,
        }
        for name, step in steps.items():
            if name == when:
                is_full = True
                with pytest.raises(StoreFullError, match="disk"):
                    await step()
                break
            await step()
        is_full = False
        assert store.status("ada", DIGEST).state is MediaState.ABSENT
        store.check_integrity()
        assert await store.read("ada", digest_of(b"from before")) == b"from before"
        assert (await upload(store, DATA)).digest == DIGEST
    assert len(files_in(tmp_path)) == 2


async def test_a_broken_disk_is_no_fault_of_the_caller_and_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: int, data: bytes, offset: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with store_in(tmp_path) as store:
        monkeypatch.setattr(store_on_disk, "_write_all", fail)
        with pytest.raises(OSError, match="Input/output"):
            await store.put("ada", DATA)
        assert store.status("ada", DIGEST).state is MediaState.ABSENT


# The directory


async def test_two_servers_never_share_a_directory(tmp_path: Path) -> None:
    async with store_in(tmp_path) as store:
        await store.put("ada", DATA)
        with pytest.raises(ConfigError, match="used by another server"):
            async with store_in(tmp_path):
                pass
        assert await store.read("ada", DIGEST) == DATA
    async with store_in(tmp_path) as store:
        assert await store.read("ada", DIGEST) == DATA


async def test_a_directory_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match="media_store_directory"):
        async with store_in(tmp_path / "file"):
            pass


async def test_nothing_of_the_client_is_in_a_path_and_nobody_else_may_read(tmp_path: Path) -> None:
    directory = tmp_path / "made" / "by us"
    async with store_in(directory) as store:
        await store.put("../../zoe", DATA)
        await store.begin_upload("zoe/../ben", digest_of(b"x"), 0, None).write(b"y")
        names = [path.name for path in files_in(directory)]
        assert all(len(name) == 32 and set(name) <= set("0123456789abcdef") for name in names)
        assert not any(name in DIGEST or "zoe" in name for name in names)
        assert b"zoe" not in b"".join(path.read_bytes()[:LABEL_BYTES] for path in files_in(directory))
    assert {path.stat().st_mode & 0o077 for path in files_in(directory)} == {0}
    assert directory.stat().st_mode & 0o077 == 0


async def test_starting_and_stopping_twice_is_starting_and_stopping(tmp_path: Path) -> None:
    store = MediaStore(EngineConfig(media_store_directory=str(tmp_path)))
    await store.start()
    await store.start()
    await store.stop()
    await store.stop()
