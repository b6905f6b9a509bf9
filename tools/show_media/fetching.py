"""Bar 5: URLs that would reach where they should not, through a running server; and those that are allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc

from tests.e2e.serving import serving
from tests.e2e.urls import UNAVAILABLE, allowed_hosts, fetching, refusal_where_urls_are_off, refusals, unlike
from tools.bars.table import Figure, judged

LEAST_URLS = 30


def measure_bar_5() -> Iterator[Figure]:
    """The matrix as one row, whatever differs in its note."""
    yield from asyncio.run(_measure())


async def _measure() -> list[Figure]:
    async with fetching() as place:
        outcomes = await refusals(place)
        ways = await allowed_hosts(place)
    async with serving() as served:
        off = await refusal_where_urls_are_off(served)
    first = outcomes[0].refused
    others = unlike(outcomes)
    texts = {outcome.refused.message for outcome in outcomes}
    right_first = (first.code, first.reason) == (grpc.StatusCode.INVALID_ARGUMENT, UNAVAILABLE)
    right = right_first and not others and len(outcomes) >= LEAST_URLS
    return [
        judged(
            5, "addresses, spellings, redirects and answers refused", f"{len(outcomes) - len(others)} of "
            f"{len(outcomes)}, {first.code.name}", f"all of at least {LEAST_URLS}", right, "; ".join(others[:10]),
        ),
        judged(5, "texts that they got", len(texts), "1", len(texts) == 1),
        *(
            judged(5, f"a picture from {way}", "the answer of its bytes" if same else "another answer", "the answer of "
                   "its bytes", same)
            for way, same in ways.items()
        ),
        judged(
            5, "a URL where they are off", off.code.name, "UNIMPLEMENTED", off.code is grpc.StatusCode.UNIMPLEMENTED
        ),
    ]  # fmt: skip
