"""Uploads are resumed where they broke off, and what is refused or abandoned leaves nothing behind."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import grpc

from tests.e2e import uploads
from tests.e2e.serving import Served

SIZE = 6 << 20


async def test_an_upload_that_is_broken_off_three_times_ends_whole(served: Served) -> None:
    ended = await uploads.broken_off_and_resumed(served, SIZE)
    assert ended.digest_is_right
    assert ended.download_is_equal
    assert ended.committed[0] == SIZE * 3 // 10 + 1
    assert all(before <= after for before, after in pairwise(ended.committed))
    assert ended.committed[-1] < SIZE


async def test_a_wrong_digest_is_refused_and_nothing_is_kept(served: Served) -> None:
    refused = await uploads.wrong_digest(served, SIZE)
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "UPLOAD_DIGEST_MISMATCH")
    assert refused.kept == ()


async def test_a_wrong_length_is_refused_and_nothing_is_kept(served: Served) -> None:
    refused = await uploads.wrong_length(served, SIZE)
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "UPLOAD_DIGEST_MISMATCH")
    assert refused.kept == ()


async def test_a_full_store_refuses_keeps_nothing_and_takes_the_file_once_there_is_room() -> None:
    refused, taken_later = await uploads.full_store()
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "MEDIA_STORE_FULL")
    assert refused.kept == ()
    assert taken_later


async def test_an_abandoned_upload_is_gone_after_its_time() -> None:
    was_partial, seconds = await uploads.abandoned(SIZE)
    assert was_partial
    assert seconds > 0.5


async def test_uploads_in_a_directory_survive_a_restart(tmp_path: Path) -> None:
    survival = await uploads.survival_of_a_restart(tmp_path, SIZE)
    assert survival.held
    assert survival.download_is_equal
    assert 0 < survival.committed_before == survival.committed_after < SIZE
    assert survival.resumed
