"""Bar 6: one new picture in many requests at once and in a chat, and how often the encoder ran for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tests.e2e.encode_once import EncodedOnce, encode_once
from tests.e2e.pictures import picture
from tests.e2e.serving import serving
from tools.bars.table import Figure, judged

TIMES = 16


def measure_bar_6() -> Iterator[Figure]:
    """The core's counter, before and after."""
    once = asyncio.run(_measure())
    requests, turns = once.after_requests - once.before, once.after_turns - once.before
    yield judged(
        6, f"pictures encoded in {TIMES} concurrent requests with the same new one", _growth(once.before,
        once.after_requests), "+1", requests == 1,
    )  # fmt: skip
    yield judged(
        6, f"and in {TIMES} turns of a chat about it", _growth(once.before, once.after_turns), "+1", turns == 1
    )  # fmt: skip
    yield judged(6, f"of the {TIMES} requests, those that decoded it", once.decoders, "1", once.decoders == 1)
    yield judged(
        6, "answers equal to those of the same requests one by one", f"{once.unchanged} of {TIMES}", "all",
        once.unchanged == TIMES,
    )  # fmt: skip


async def _measure() -> EncodedOnce:
    async with serving() as served:
        return await encode_once(served, picture(1400), TIMES, TIMES)


def _growth(before: int, after: int) -> str:
    return f"{before} -> {after}"
