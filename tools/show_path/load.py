"""Bars 4 and 5: many image streams at once, and what the caches save; read off the books of a server in process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tests.e2e.caching import page_sharing, same_image_in_requests, same_image_in_turns
from tests.e2e.crowd import STREAMS, WAYS_TO_GO, CrowdOutcome, disturbed_crowd, whole_crowd
from tests.e2e.pictures import large_picture, picture
from tests.e2e.serving import serving
from tools.bars.table import Figure, judged

TIMES = 10


def measure_bar_4() -> Iterator[Figure]:
    """A crowd that stays, and one of which three quarters leave in the middle."""
    whole, disturbed = asyncio.run(_crowds())
    yield judged(
        4, "concurrent image streams that complete", f"{whole.completed} of {whole.streams}", f"{STREAMS} of {STREAMS}",
        whole.completed == STREAMS,
    )  # fmt: skip
    yield _unchanged("answers changed by the other streams", whole)
    left = disturbed.streams - disturbed.completed
    yield _unchanged(f"neighbours changed while {left} leave ({', '.join(WAYS_TO_GO)})", disturbed)
    for name, outcome in (("that stays", whole), ("that leaves", disturbed)):
        yield from _books(name, outcome)


def measure_bar_5() -> Iterator[Figure]:
    """Counters of the vision cache and of the prefix cache."""
    yield from asyncio.run(_caching())


async def _crowds() -> tuple[CrowdOutcome, CrowdOutcome]:
    async with serving() as served:
        return await whole_crowd(served, first_picture=100), await disturbed_crowd(served, first_picture=200)


def _unchanged(what: str, outcome: CrowdOutcome) -> Figure:
    measured = f"{len(outcome.changed)} of {outcome.completed}"
    return judged(4, what, measured, "0", not outcome.changed, "; ".join(outcome.changed))


def _books(name: str, outcome: CrowdOutcome) -> Iterator[Figure]:
    """Before and after; `Served.books` has called check_integrity both times."""
    before, after = outcome.before, outcome.after
    rows = (
        ("free pages", before.free_pages, after.free_pages),
        ("pinned embeddings", before.pinned_embeddings, after.pinned_embeddings),
        ("requests in the core", before.requests_in_core, after.requests_in_core),
        ("open calls and generations", before.open_calls + before.generations, after.open_calls + after.generations),
        ("tasks of the event loop", before.tasks, after.tasks),
    )
    for what, start, end in rows:
        yield judged(4, f"{what} before and after a crowd {name}", f"{start} -> {end}", "equal", start == end)


async def _caching() -> list[Figure]:
    async with serving() as served:
        requests = await same_image_in_requests(served, picture(1000), TIMES)
        turns = await same_image_in_turns(served, picture(1001), TIMES)
        sharing = await page_sharing(served, large_picture(1), large_picture(2), first_id=300)
    text, length = sharing.pages_of_text_before_image, sharing.prompt_tokens
    return [
        judged(
            5, f"times an image is encoded in {TIMES} requests", requests.images_encoded, "1",
            requests.images_encoded == 1,
        ),
        judged(5, f"times an image is encoded in {TIMES} turns", turns.images_encoded, "1", turns.images_encoded == 1),
        judged(
            5, f"tokens of {length} from the prefix cache: same text, other image", sharing.other_image,
            f"{text}: the text before it", sharing.other_image == text,
        ),
        judged(
            5, f"tokens of {length} from the prefix cache: same text, same image", sharing.same_image,
            f"more than {text}", sharing.same_image > text,
        ),
    ]  # fmt: skip
