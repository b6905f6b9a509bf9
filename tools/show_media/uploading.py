"""Bar 4: uploads that break off, are refused, are abandoned, and outlive their server."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.e2e import uploads
from tests.e2e.serving import serving
from tools.bars.table import Figure, judged

SIZE = 100_000_000
SMALL = 8 << 20


def measure_bar_4() -> Iterator[Figure]:
    """Everything through the contract's own stubs."""
    yield from asyncio.run(_resumed_and_refused())
    yield from asyncio.run(_alone())


async def _resumed_and_refused() -> list[Figure]:
    async with serving() as served:
        ended = await uploads.broken_off_and_resumed(served, SIZE)
        wrong = {
            "the digest of another file": await uploads.wrong_digest(served, SMALL),
            "a wrong length": await uploads.wrong_length(served, SMALL),
        }
    places = ", ".join(f"{committed / 1e6:.1f}" for committed in ended.committed)
    return [
        judged(
            4, f"{SIZE // 1_000_000} MB, broken off at {places} MB and resumed",
            "the right digest" if ended.digest_is_right else "a wrong digest", "the right digest",
            ended.digest_is_right and len(set(ended.committed)) == 3, f"{ended.seconds:.1f} s, with the download",
        ),
        judged(4, "downloaded again", _equal(ended.download_is_equal), "equal", ended.download_is_equal),
        *(_refusal(f"an upload with {what}", refused, "INVALID_ARGUMENT") for what, refused in wrong.items()),
    ]  # fmt: skip


async def _alone() -> list[Figure]:
    """What needs a server of its own."""
    full, taken_later = await uploads.full_store()
    was_partial, seconds = await uploads.abandoned(SMALL)
    with tempfile.TemporaryDirectory() as folder:
        survival = await uploads.survival_of_a_restart(Path(folder), SMALL)
    partial = f"{survival.committed_before:,} -> {survival.committed_after:,} bytes"
    return [
        _refusal("an upload to a full store", full, "RESOURCE_EXHAUSTED"),
        judged(4, "the same upload once there is room", "held" if taken_later else "refused", "held", taken_later),
        judged(
            4, "an abandoned upload, kept for 1 s", f"{'partial' if was_partial else 'gone'}, then gone in "
            f"{seconds:.1f} s", "gone after its time", was_partial,
        ),
        judged(
            4, "an upload in a directory after a restart", _equal(survival.download_is_equal), "held and equal",
            survival.download_is_equal,
        ),
        judged(
            4, "a broken-off one in a directory after a restart", partial, "equal, resumed",
            0 < survival.committed_before == survival.committed_after and survival.resumed,
        ),
    ]  # fmt: skip


def _refusal(what: str, refused: uploads.RefusedUpload, required: str) -> Figure:
    kept = f"{len(refused.kept)} kept"
    right = refused.code.name == required and not refused.kept
    return judged(4, what, f"{refused.code.name}, {kept}", f"{required}, 0 kept", right, "" if right else str(refused))


def _equal(equal: bool) -> str:
    return "equal" if equal else "not equal"
