"""Questions to a running server, asked alone or many at once, with whole answers to compare.

Token ids are always asked for: they are compared along with the text, and tokens without text show progress as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fanlight import Answer, AsyncClient, AsyncStream, Delta, Event

QUESTIONS = ("What is it?", "What colour is it?", "Where is it?", "How many shapes are there?", "Describe the picture.")


@dataclass(frozen=True)
class Ask:
    """One question about images; `options` are those of the client's `events`. Greedy unless they say otherwise."""

    text: str
    images: tuple[bytes, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def start(self, client: AsyncClient) -> AsyncStream[Event]:
        """Ask it."""
        options = {"temperature": 0.0, "max_new_tokens": 24, "token_ids": True, **self.options}
        return client.events(self.text, images=list(self.images), **options)

    async def answer(self, client: AsyncClient) -> Answer:
        """Ask it and wait for the end of the answer."""
        return await whole_answer(self.start(client))


def asks_about(pictures: Sequence[bytes], **options: Any) -> list[Ask]:
    """A question about each picture, going round the kinds of questions."""
    return [Ask(QUESTIONS[index % len(QUESTIONS)], (one,), options) for index, one in enumerate(pictures)]


def long_ask(number: int, image: bytes, tokens: int) -> Ask:
    """A question whose answer has exactly so many tokens, whatever the model says."""
    return Ask(QUESTIONS[number % len(QUESTIONS)], (image,), {"ignore_eos": True, "max_new_tokens": tokens})


async def answers_one_by_one(client: AsyncClient, asks: Sequence[Ask]) -> list[Answer]:
    """Each alone in the server."""
    return [await ask.answer(client) for ask in asks]


async def answers_together(client: AsyncClient, asks: Sequence[Ask]) -> list[Answer]:
    """All at once."""
    return list(await asyncio.gather(*(ask.answer(client) for ask in asks)))


async def first_token(stream: AsyncStream[Event]) -> None:
    """Wait until the answer has begun: from here on its request is in the middle of its work."""
    async for event in stream:
        if isinstance(event, Delta):
            return
    raise AssertionError(f"the stream ended before its first token: {stream.answer}")


async def whole_answer(stream: AsyncStream[Event]) -> Answer:
    """Read to the end. Raises what made the answer fail."""
    async for _ in stream:
        pass
    return stream.answer


def same_words(one: Answer, other: Answer) -> bool:
    """Whether two answers are the same, token for token and to their end."""
    mine, theirs = (
        (answer.text, answer.token_ids, answer.finish_reason, answer.stop_sequence) for answer in (one, other)
    )
    return mine == theirs


def changed(before: Sequence[Answer], after: Sequence[Answer]) -> list[str]:
    """The answers that are not the same, as "before -> after"."""
    pairs = zip(before, after, strict=True)
    return [f"{one.text!r} -> {other.text!r}" for one, other in pairs if not same_words(one, other)]
