"""What is computed once: an image that returns in requests or turns, and the pages of a prompt that begins alike.

Everything is read off the core's counters, which only grow.
"""

from __future__ import annotations

from dataclasses import dataclass

from fanlight import tokens_prompt
from fanlight_engine.client import CoreStatistics
from tests.e2e.asking import QUESTIONS, Ask, answers_together
from tests.e2e.serving import Served

TEXT_BEFORE_IMAGE = 40
TEXT_AFTER_IMAGE = 30


@dataclass(frozen=True, slots=True)
class Work:
    """What the core did meanwhile."""

    images_encoded: int
    prefix_cached_tokens: int

    @classmethod
    def between(cls, before: CoreStatistics, after: CoreStatistics) -> Work:
        """The growth of the counters."""
        return cls(
            after.images_encoded - before.images_encoded, after.prefix_cached_tokens - before.prefix_cached_tokens
        )


async def same_image_in_requests(served: Served, image: bytes, requests: int) -> Work:
    """Different questions about one image, half of them at the same time, the rest one after the other."""
    asks = [Ask(f"{QUESTIONS[number % len(QUESTIONS)]} {number}", (image,)) for number in range(requests)]
    before = await served.statistics()
    await answers_together(served.client, asks[: requests // 2])
    for ask in asks[requests // 2 :]:
        await ask.answer(served.client)
    return Work.between(before, await served.statistics())


async def same_image_in_turns(served: Served, image: bytes, turns: int) -> Work:
    """A conversation whose every turn is about the image of the first."""
    before = await served.statistics()
    async with served.client.chat(temperature=0.0, max_new_tokens=8) as chat:
        for number in range(turns):
            turn = chat.send(QUESTIONS[number % len(QUESTIONS)], images=[image] if number == 0 else [])
            async for _ in turn:
                pass
    return Work.between(before, await served.statistics())


@dataclass(frozen=True, slots=True)
class PageSharing:
    """Tokens that came from the prefix cache, per request; all three requests have the very same text."""

    page_size: int
    prompt_tokens: int
    first: int
    other_image: int
    same_image: int

    @property
    def pages_of_text_before_image(self) -> int:
        """All that two prompts with different images may share, in tokens."""
        return TEXT_BEFORE_IMAGE // self.page_size * self.page_size


async def page_sharing(served: Served, image: bytes, other_image: bytes, first_id: int) -> PageSharing:
    """Text, image, text: asked with one image, then with another of equal size, then with the first again.

    `first_id` makes the text one that no earlier prompt began with.
    """
    ids = [first_id + number % 50 for number in range(TEXT_BEFORE_IMAGE)]
    model = await served.client.model()
    text_after = [first_id + 50 + number % 50 for number in range(TEXT_AFTER_IMAGE)]
    prompt_ids = [*ids, model.special_tokens.image_token_id, *text_after]
    cached, prompt_tokens = [], set()
    for shown in (image, other_image, image):
        before = await served.statistics()
        answer = await served.client.generate(tokens_prompt(prompt_ids, [shown]), max_new_tokens=1, temperature=0.0)
        assert answer.usage is not None
        prompt_tokens.add(answer.usage.prompt_tokens)
        counted = Work.between(before, await served.statistics()).prefix_cached_tokens
        assert counted == answer.usage.cached_tokens, "the answer's usage and the core's counters tell the same"
        cached.append(counted)
    (length,) = prompt_tokens
    return PageSharing(served.front.client.facts.page_size, length, *cached)
