"""Whether other streams keep flowing while one request brings heavy work: the gaps between their tokens."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass, field
from itertools import pairwise

from fanlight import Accepted, AsyncClient, Delta
from tests.e2e.asking import Ask, long_ask
from tests.e2e.pictures import picture

STREAMS = 4
TOKENS_BEFORE = 50
"""Tokens of each stream before anything heavy is sent: what the streams do undisturbed."""


@dataclass(slots=True)
class Listener:
    """One flowing stream, and when each of its tokens arrived, in seconds of time.monotonic()."""

    ask: Ask
    times: list[float] = field(default_factory=list)
    flowing: asyncio.Event = field(default_factory=asyncio.Event)

    async def listen(self, client: AsyncClient) -> None:
        """Until the end of the stream, or until cancelled."""
        async with self.ask.start(client) as stream:
            async for event in stream:
                if isinstance(event, Delta):
                    self.times.append(time.monotonic())
                    if len(self.times) >= TOKENS_BEFORE:
                        self.flowing.set()

    def tokens_between(self, start: float, end: float) -> int:
        """Tokens that arrived in a window."""
        return sum(start <= at <= end for at in self.times)

    def longest_gap(self, start: float, end: float) -> float:
        """The longest silence that overlaps a window."""
        return max((later - earlier for earlier, later in pairwise(self.times) if later >= start and earlier <= end))

    def median_gap(self, before: float) -> float:
        """The usual silence, undisturbed."""
        return statistics.median(later - earlier for earlier, later in pairwise(self.times) if later < before)


@dataclass(frozen=True, slots=True)
class Flow:
    """What flowing streams did while a heavy request was on its way. Seconds."""

    window: float
    """From sending the heavy request until the event that ends the work."""
    least_tokens: int
    """Tokens in the window, of the stream that got the fewest."""
    longest_gap: float
    median_gap: float
    longest_gap_before: float
    """The longest silence when nothing disturbed; on a busy machine it is long, too."""

    @property
    def gap_in_medians(self) -> float:
        """The longest gap of any stream as a multiple of the streams' median gap."""
        return self.longest_gap / self.median_gap

    @property
    def gap_before_in_medians(self) -> float:
        """The same while nothing disturbed."""
        return self.longest_gap_before / self.median_gap

    @property
    def keeps_flowing(self) -> bool:
        """Whether every stream got on meanwhile; nothing need come in a window of hardly a gap's length."""
        return self.least_tokens > 0 or self.window < 2 * self.median_gap


async def flow_beside(client: AsyncClient, heavy: Ask, until_first_token: bool, first_picture: int) -> Flow:
    """Let streams flow, send the heavy request, and watch until it is accepted or has its first token."""
    listeners = [Listener(long_ask(number, picture(first_picture + number), 3000)) for number in range(STREAMS)]
    tasks = [asyncio.create_task(listener.listen(client)) for listener in listeners]
    try:
        await asyncio.gather(*(listener.flowing.wait() for listener in listeners))
        start = time.monotonic()
        await _wait_for(client, heavy, Delta if until_first_token else Accepted)
        end = time.monotonic()
        await _one_more_token_each(listeners)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return Flow(
        window=end - start,
        least_tokens=min(listener.tokens_between(start, end) for listener in listeners),
        longest_gap=max(listener.longest_gap(start, end) for listener in listeners),
        median_gap=statistics.median(listener.median_gap(start) for listener in listeners),
        longest_gap_before=max(listener.longest_gap(listener.times[0], start) for listener in listeners),
    )


async def _wait_for(client: AsyncClient, heavy: Ask, kind: type[Accepted] | type[Delta]) -> None:
    async with heavy.start(client) as stream:
        async for event in stream:
            if isinstance(event, kind):
                return
    raise AssertionError(f"no {kind.__name__} came: {stream.answer}")


async def _one_more_token_each(listeners: list[Listener]) -> None:
    """So that a gap which is still open at the end of the window is measured, too."""
    for listener in listeners:
        listener.flowing.clear()
    await asyncio.gather(*(listener.flowing.wait() for listener in listeners))
