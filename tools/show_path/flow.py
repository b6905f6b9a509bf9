"""Bar 6: how long other streams stand still while one image is decoded or encoded, in multiples of their usual gap."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator

from fanlight import AsyncClient
from tests.e2e.asking import Ask
from tests.e2e.flow import STREAMS, Flow, flow_beside
from tests.e2e.pictures import large_picture, photograph_of_20_megapixels
from tests.e2e.serving import server_process
from tools.bars.table import Figure, judged

RUNS = 5


def measure_bar_6() -> Iterator[Figure]:
    """Medians over several runs, every time with images that the server has not seen."""
    with server_process() as server:
        decoded, one, sixteen = asyncio.run(_flows(server.address))
    yield from _figures("a 20-megapixel JPEG is decoded", decoded)
    yield from _figures("a new image is encoded", one)
    yield from _figures("16 new images are encoded", sixteen)


async def _flows(address: str) -> tuple[list[Flow], list[Flow], list[Flow]]:
    decoded, one, sixteen = [], [], []
    async with AsyncClient(address) as client:
        for run in range(RUNS):
            photograph = Ask("What is it?", (photograph_of_20_megapixels(run),))
            single = Ask("What is it?", (large_picture(1000 + run),))
            many = Ask("What is it?", tuple(large_picture(2000 + 16 * run + number) for number in range(16)))
            decoded.append(await flow_beside(client, photograph, until_first_token=False, first_picture=300))
            one.append(await flow_beside(client, single, until_first_token=True, first_picture=300))
            sixteen.append(await flow_beside(client, many, until_first_token=True, first_picture=300))
    return decoded, one, sixteen


def _figures(work: str, flows: list[Flow]) -> Iterator[Figure]:
    gaps = [flow.gap_in_medians for flow in flows]
    undisturbed = statistics.median(flow.gap_before_in_medians for flow in flows)
    milliseconds = 1000 * statistics.median(flow.median_gap for flow in flows)
    note = f"{RUNS} runs; a median gap is {milliseconds:.1f} ms; undisturbed, the longest is {undisturbed:.1f} of them"
    yield judged(
        6, f"longest gap of {STREAMS} streams while {work}",
        f"{statistics.median(gaps):.1f} median gaps ({min(gaps):.1f}-{max(gaps):.1f})", "printed", True, note,
    )  # fmt: skip
    tokens = statistics.median(flow.least_tokens for flow in flows)
    window = 1000 * statistics.median(flow.window for flow in flows)
    yield judged(
        6, f"tokens of the slowest stream while {work}", f"{tokens:.0f} in {window:.0f} ms", "they keep flowing",
        all(flow.keeps_flowing for flow in flows),
    )  # fmt: skip
