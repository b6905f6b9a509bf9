"""Uploads and downloads: only what is missing is sent, breaks are resumed, every byte is checked."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import grpc
import pytest
from PIL import Image
from scripted_media import ScriptedMedia, digest_of_bytes
from scripted_server import ScriptedServer

import fanlight
from fanlight import AsyncClient, Client, MediaState, Upload, transfers
from fanlight.media_sources import build_images

MEBIBYTE = 1024 * 1024
CONTENT = bytes(range(251)) * (5 * MEBIBYTE // 251)
DIGEST = digest_of_bytes(CONTENT)
BREAKS = [300_000, 2 * MEBIBYTE, 4 * MEBIBYTE + 1]
ABSENT = "sha256:" + "0" * 64


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "FIRST_PAUSE_SECONDS", 0.001)


@pytest.fixture
def media(server: ScriptedServer) -> ScriptedMedia:
    return server.media


def test_a_file_is_uploaded_in_chunks_with_its_progress(client: Client, media: ScriptedMedia, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(CONTENT)
    told: list[tuple[int, int]] = []
    upload = client.upload(path, progress=lambda sent, total: told.append((sent, total)))
    assert upload == Upload(DIGEST, len(CONTENT), "video/mp4")
    assert media.held == {DIGEST: CONTENT}
    assert max(media.upload_chunks) == MEBIBYTE
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert [sent for sent, _ in told] == sorted({sent for sent, _ in told})


def test_progress_grows_with_each_call_even_over_breaks(client: Client, media: ScriptedMedia) -> None:
    media.break_uploads_at = [*BREAKS, BREAKS[-1]]
    told: list[int] = []
    client.upload(CONTENT, progress=lambda sent, total: told.append(sent))
    assert told == sorted(set(told))
    again: list[int] = []
    client.upload(CONTENT, progress=lambda sent, total: again.append(sent))
    assert again == [len(CONTENT)]


def test_an_image_object_is_uploaded_as_png(client: Client, media: ScriptedMedia) -> None:
    picture = Image.new("RGB", (3, 2), (200, 100, 50))
    upload = client.upload(picture)
    assert upload.digest == digest_of_bytes(build_images(picture)[0].data)
    with Image.open(io.BytesIO(media.held[upload.digest])) as held:
        assert (held.format, held.getpixel((0, 0))) == ("PNG", (200, 100, 50))


def test_what_is_no_file_is_not_uploaded(client: Client) -> None:
    with pytest.raises(TypeError, match="path, bytes or an object with a save method, not a int"):
        client.upload(5)  # pyright: ignore[reportArgumentType]


async def test_the_length_of_an_upload_is_told_before_its_bytes(
    client: Client, async_client: AsyncClient, media: ScriptedMedia
) -> None:
    media.break_uploads_at = [MEBIBYTE]
    await asyncio.to_thread(client.upload, CONTENT)
    await async_client.upload(b"picture")
    assert media.upload_totals == [len(CONTENT), len(CONTENT), 7]


def test_what_is_held_already_is_not_sent_again(client: Client, media: ScriptedMedia) -> None:
    media.put(CONTENT)
    assert client.upload(CONTENT).digest == DIGEST
    assert media.upload_offsets == []


def check_resumed(upload: Upload, media: ScriptedMedia) -> None:
    assert upload.digest == DIGEST
    assert media.held == {DIGEST: CONTENT}
    assert media.upload_offsets == [0, *BREAKS]


def test_an_upload_that_breaks_off_at_three_places_goes_on_there(client: Client, media: ScriptedMedia) -> None:
    media.break_uploads_at = list(BREAKS)
    check_resumed(client.upload(CONTENT), media)


async def test_an_upload_by_task_that_breaks_off_goes_on(async_client: AsyncClient, media: ScriptedMedia) -> None:
    media.break_uploads_at = list(BREAKS)
    check_resumed(await async_client.upload(CONTENT), media)


def test_breaks_without_progress_are_an_error_after_a_few(client: Client, media: ScriptedMedia) -> None:
    media.break_uploads_at = [MEBIBYTE] * 20
    with pytest.raises(fanlight.Unavailable, match="connection broke"):
        client.upload(CONTENT)
    assert media.upload_offsets == [0] + [MEBIBYTE] * (transfers.MOST_BREAKS + 1)
    media.break_uploads_at = []
    assert client.upload(CONTENT).digest == DIGEST  # a later call goes on where the last one was given up
    assert media.upload_offsets[-1] == MEBIBYTE


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.ABORTED, "UPLOAD_REPLACED"),
        (grpc.StatusCode.FAILED_PRECONDITION, "UPLOAD_OFFSET_WRONG"),
        (grpc.StatusCode.UNAVAILABLE, "DRAINING"),
    ],
)
def test_an_upload_that_another_one_or_a_restart_got_in_the_way_of_is_resumed(
    client: Client, media: ScriptedMedia, code: grpc.StatusCode, reason: str
) -> None:
    media.refusals = [(code, reason)]
    assert client.upload(CONTENT).digest == DIGEST
    assert len(media.upload_offsets) == 2


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "MEDIA_STORE_FULL", fanlight.Overloaded),
        (grpc.StatusCode.INVALID_ARGUMENT, "UPLOAD_TOO_LARGE", fanlight.InvalidRequest),
        (grpc.StatusCode.INTERNAL, "INTERNAL", fanlight.Internal),
    ],
)
def test_a_refused_upload_is_not_tried_again(
    client: Client, media: ScriptedMedia, code: grpc.StatusCode, reason: str, kind: type[fanlight.FanlightError]
) -> None:
    media.refusals = [(code, reason)] * 2
    with pytest.raises(kind) as refused:
        client.upload(CONTENT)
    assert refused.value.reason == reason
    assert len(media.upload_offsets) == 1


def test_bytes_that_changed_on_their_way_are_refused_and_not_kept(client: Client, media: ScriptedMedia) -> None:
    media.partial[DIGEST] = bytearray(b"not the beginning")
    with pytest.raises(fanlight.InvalidRequest) as refused:
        client.upload(CONTENT)
    assert refused.value.reason == "UPLOAD_DIGEST_MISMATCH"
    assert not media.held
    assert client.upload(CONTENT).digest == DIGEST


async def test_an_answer_with_another_digest_is_not_believed(async_client: AsyncClient, media: ScriptedMedia) -> None:
    media.answer_digest = ABSENT
    with pytest.raises(fanlight.Internal, match=ABSENT):
        await async_client.upload(CONTENT)


def test_a_file_that_was_kept_whole_but_not_checked_needs_no_more_bytes(client: Client, media: ScriptedMedia) -> None:
    media.partial[DIGEST] = bytearray(CONTENT)
    assert client.upload(CONTENT).digest == DIGEST
    assert media.upload_chunks == [0]


def test_a_file_that_cannot_be_read_says_so_as_files_do(client: Client, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        client.upload(tmp_path / "nowhere.mp4")
    with pytest.raises(fanlight.InvalidRequest, match="empty"):
        client.upload(b"")


class Stop(Exception):
    pass


def stop(sent: int, total: int) -> None:
    raise Stop


def test_what_a_progress_function_raises_reaches_the_caller(client: Client) -> None:
    with pytest.raises(Stop):
        client.upload(CONTENT, progress=stop)


async def test_what_a_progress_function_raises_reaches_the_task(async_client: AsyncClient) -> None:
    with pytest.raises(Stop):
        await async_client.upload(CONTENT, progress=stop)


def test_facts_of_digests_come_in_order(client: Client, media: ScriptedMedia) -> None:
    upload = client.upload(b"picture")
    media.partial[DIGEST] = bytearray(7)
    held, partial, absent = client.media([upload, DIGEST, Upload(ABSENT)])
    assert (held.state, held.size, held.time_to_live) == (MediaState.HELD, 7, 3600.0)
    assert held.picture_size == fanlight.Size(width=640, height=480)
    assert (partial.state, partial.committed, partial.size) == (MediaState.PARTIAL, 7, None)
    assert absent == fanlight.Media(ABSENT, MediaState.ABSENT)


async def test_facts_of_one_handle_or_digest_need_no_list(
    client: Client, async_client: AsyncClient, media: ScriptedMedia
) -> None:
    upload = await async_client.upload(b"picture")
    for handle in (upload, upload.digest, fanlight.EncodedImage(upload.digest)):
        (facts,) = await async_client.media(handle)
        assert (facts.digest, facts.state) == (upload.digest, MediaState.HELD)
    (again,) = await asyncio.to_thread(client.media, facts)
    assert again == facts


def test_deleting_takes_any_handle_and_says_when_there_was_nothing(client: Client, media: ScriptedMedia) -> None:
    upload = client.upload(b"picture")
    client.delete_media(upload)
    assert not media.held
    with pytest.raises(fanlight.NotFound) as refused:
        client.delete_media(upload.digest)
    assert refused.value.reason == "MEDIA_NOT_FOUND"


async def test_facts_and_deleting_by_task(async_client: AsyncClient, media: ScriptedMedia) -> None:
    upload = await async_client.upload(b"picture")
    assert (await async_client.media([upload]))[0].state is MediaState.HELD
    await async_client.delete_media(upload)
    assert not media.held


def test_a_download_that_breaks_off_goes_on_and_is_checked(
    client: Client, media: ScriptedMedia, tmp_path: Path
) -> None:
    media.put(CONTENT)
    media.break_downloads_at = list(BREAKS)
    told: list[tuple[int, int]] = []
    path = client.download(DIGEST, tmp_path / "clip.mp4", progress=lambda came, total: told.append((came, total)))
    assert path.read_bytes() == CONTENT
    assert media.download_offsets == [0, *BREAKS]
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert [file.name for file in tmp_path.iterdir()] == ["clip.mp4"]


async def test_a_download_by_task_into_memory(async_client: AsyncClient, media: ScriptedMedia) -> None:
    media.put(CONTENT)
    media.break_downloads_at = list(BREAKS)
    assert await async_client.download(Upload(DIGEST)) == CONTENT
    assert media.download_offsets == [0, *BREAKS]


def test_a_download_with_wrong_bytes_leaves_no_file(client: Client, media: ScriptedMedia, tmp_path: Path) -> None:
    media.put(CONTENT)
    media.garble = b"something else"
    with pytest.raises(fanlight.Internal, match="gave 14 bytes with the digest"):
        client.download(DIGEST, tmp_path / "clip.mp4")
    assert list(tmp_path.iterdir()) == []


def test_a_download_of_nothing_is_not_found(client: Client, tmp_path: Path) -> None:
    with pytest.raises(fanlight.NotFound):
        client.download(ABSENT, tmp_path / "clip.mp4")
    assert list(tmp_path.iterdir()) == []


def test_a_timeout_holds_for_all_tries_together(
    client: Client, media: ScriptedMedia, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "FIRST_PAUSE_SECONDS", 0.3)
    media.break_uploads_at = [0] * 20
    with pytest.raises(fanlight.DeadlineExceeded):
        client.upload(CONTENT, timeout=0.2)
    assert len(media.upload_offsets) <= 1
