"""Bar 7: bombs and broken files sent to a server process, with what each got, how soon, and at what cost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence

from fanlight_engine.checkpoints.checkpoint import read_checkpoint
from fanlight_server.default_model import default_model_path
from tests.e2e.bad_media import bad_media
from tests.e2e.bad_tensors import TowerFacts
from tests.e2e.hostile_media import MOST_EXTRA_BYTES, MOST_SECONDS, Sent, send_bad_media
from tests.e2e.serving import server_process
from tools.bars.table import Figure, judged, not_measurable

LEAST_FILES = 40


def measure_bar_7() -> Iterator[Figure]:
    """A row per medium that did not get what it must, and what holds for all of them."""
    rows = bad_media(TowerFacts.of(read_checkpoint(default_model_path())))
    with server_process("--torch-threads", "1") as server:
        outcome = asyncio.run(send_bad_media(server, rows))
    sent, neighbours = outcome.sent, outcome.neighbours
    yield from _statuses(sent)
    yield _time(sent)
    yield _memory(sent)
    yield judged(
        7, "neighbour streams beside them", f"{neighbours.unchanged} unchanged of {neighbours.count}", "all unchanged",
        neighbours.all_unchanged,
    )  # fmt: skip
    answered = neighbours.next_answered
    yield judged(7, "next requests answered", f"{answered} of {len(sent)}", "all", answered == len(sent))


def _statuses(sent: Sequence[Sent]) -> Iterator[Figure]:
    wrong = [one for one in sent if one.mismatches]
    reasons = Counter(one.reason or "answered" for one in sent)
    note = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    yield judged(
        7, "bombs and broken files with their status", f"{len(sent) - len(wrong)} of {len(sent)}",
        f"all of at least {LEAST_FILES}", not wrong and len(sent) >= LEAST_FILES, note,
    )  # fmt: skip
    for one in wrong:
        required = f"{one.bad.code.name} {' or '.join(one.bad.reasons)}"
        yield judged(7, one.bad.name, f"{one.code.name}, {one.reason}", required, False, "; ".join(one.mismatches))


def _time(sent: Sequence[Sent]) -> Figure:
    slowest = sorted(sent, key=lambda one: -one.seconds)[:3]
    note = "slowest: " + ", ".join(f"{one.bad.name} {one.seconds:.2f} s" for one in slowest)
    return judged(
        7, "the slowest of them", f"{slowest[0].seconds:.2f} s", f"within {MOST_SECONDS:.0f} s", slowest[0].is_in_time,
        note,
    )  # fmt: skip


def _memory(sent: Sequence[Sent]) -> Figure:
    what, required = "the most additional memory of any, processes that it starts included", "under 200 MB"
    told = [(one.extra_bytes, one) for one in sent if one.extra_bytes is not None]
    if not told:
        return not_measurable(7, what, required, "the system does not tell a process's peak")
    largest = sorted(told, key=lambda pair: -pair[0])[:3]
    note = "largest: " + ", ".join(f"{one.bad.name} {extra / 1e6:.0f} MB" for extra, one in largest)
    most = largest[0][0]
    return judged(7, what, f"{most / 1e6:.0f} MB", required, most < MOST_EXTRA_BYTES, note)
