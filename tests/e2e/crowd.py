"""Many image streams at once, some of which are cancelled, closed or lost in the middle; what becomes of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from fanlight import AsyncClient, AsyncStream, Event, FanlightError
from fanlight.v1 import inference_pb2
from tests.e2e.asking import (
    answers_one_by_one,
    answers_together,
    asks_about,
    changed,
    first_token,
    long_ask,
    whole_answer,
)
from tests.e2e.pictures import pictures
from tests.e2e.proxy import cuttable_wire
from tests.e2e.serving import Books, Served

STREAMS = 32
WAYS_TO_GO = ("cancelled by id", "closed by the client", "lost with the connection")


@dataclass(frozen=True, slots=True)
class CrowdOutcome:
    """What a crowd of streams showed. `changed` lists answers that were not what they are alone."""

    streams: int
    completed: int
    changed: list[str]
    before: Books
    after: Books


async def whole_crowd(served: Served, first_picture: int, streams: int = STREAMS) -> CrowdOutcome:
    """Every stream runs to its end, beside all the others."""
    before = await served.books()
    asks = asks_about(pictures(first_picture, streams))
    alone = await answers_one_by_one(served.client, asks)
    together = await answers_together(served.client, asks)
    return CrowdOutcome(streams, len(together), changed(alone, together), before, await served.books())


async def disturbed_crowd(
    served: Served, first_picture: int, streams: int = STREAMS, neighbours: int = 8
) -> CrowdOutcome:
    """All but the neighbours leave in the middle, in every way there is; the neighbours run to their end."""
    images = pictures(first_picture, streams)
    staying = [long_ask(number, image, 48) for number, image in enumerate(images[:neighbours])]
    leaving = [long_ask(number, image, 1000) for number, image in enumerate(images[neighbours:])]
    before = await served.books()
    alone = await answers_one_by_one(served.client, staying)
    async with cuttable_wire(served.address) as wire, AsyncClient(wire.address) as doomed_client:
        clients = [doomed_client if number % 3 == 2 else served.client for number in range(len(leaving))]
        going = [ask.start(client) for ask, client in zip(leaving, clients, strict=True)]
        kept = [ask.start(served.client) for ask in staying]
        await asyncio.gather(*map(first_token, [*going, *kept]))
        ends = [asyncio.create_task(whole_answer(stream)) for stream in kept]
        await _cancel_by_id(served.client, going[0::3])
        await _close(going[1::3])
        wire.cut()
        await _see_lost(going[2::3])
        together = await asyncio.gather(*ends)
    return CrowdOutcome(streams, len(together), changed(alone, together), before, await served.books())


async def _cancel_by_id(client: AsyncClient, streams: Sequence[AsyncStream[Event]]) -> None:
    for stream in streams:
        outcome = await client.cancel(stream.request_id)
        assert outcome == inference_pb2.CANCEL_OUTCOME_CANCELLED, outcome
        await whole_answer(stream)


async def _close(streams: Sequence[AsyncStream[Event]]) -> None:
    for stream in streams:
        await stream.close()


async def _see_lost(streams: Sequence[AsyncStream[Event]]) -> None:
    for stream in streams:
        try:
            await whole_answer(stream)
        except FanlightError:
            continue
        raise AssertionError("a stream went on though its connection was cut")
