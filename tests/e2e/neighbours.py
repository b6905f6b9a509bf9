"""Streams beside something bad: whether they went on as if nothing had happened, and whether the next request did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fanlight import Answer, AsyncClient
from tests.e2e.asking import Ask, first_token, same_words, whole_answer


class Neighbours:
    """One question, asked again and again; every answer is compared with the one that it had alone."""

    def __init__(self, ask: Ask) -> None:
        self.count = self.unchanged = self.next_answered = 0
        self._ask = ask
        self._alone: Answer | None = None

    async def learn(self, client: AsyncClient) -> None:
        """What the neighbour answers when it is alone."""
        self._alone = await self._ask.answer(client)

    @asynccontextmanager
    async def beside(self, client: AsyncClient) -> AsyncIterator[None]:
        """A neighbour that is in the middle of its answer when the block begins; after it, the next request."""
        stream = self._ask.start(client)
        await first_token(stream)
        yield
        self._judge(await whole_answer(stream))
        await self.ask_next(client)

    @asynccontextmanager
    async def all_along(self, client: AsyncClient) -> AsyncIterator[None]:
        """Neighbours one after the other for as long as the block takes, the first of them in the middle already."""
        first = self._ask.start(client)
        await first_token(first)
        ended = asyncio.Event()

        async def keep_asking() -> None:
            self._judge(await whole_answer(first))
            while not ended.is_set():
                self._judge(await self._ask.answer(client))

        asking = asyncio.create_task(keep_asking())
        try:
            yield
        finally:
            ended.set()
            await asking

    async def ask_next(self, client: AsyncClient) -> None:
        """Count whether a request that comes now is answered."""
        self.next_answered += (await client.generate("Hello", max_new_tokens=1)).usage is not None

    def _judge(self, answer: Answer) -> None:
        assert self._alone is not None, "learn first"
        self.count += 1
        self.unchanged += same_words(answer, self._alone)

    @property
    def all_unchanged(self) -> bool:
        """Whether none of them noticed anything."""
        return self.unchanged == self.count > 0
