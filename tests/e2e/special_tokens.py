"""The model's own special tokens as a person may type them: before, after and between images, and what comes of it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from fanlight import user
from tests.e2e.pictures import picture
from tests.e2e.serving import Served

PLAIN = "word"


@dataclass(frozen=True, slots=True)
class Typed:
    """One typed token beside so many images, and what the server counted."""

    token: str
    images: int
    prompt_tokens: int
    image_tokens: int
    without: tuple[int, int]
    """Prompt and image tokens of the same message with one ordinary word in its place."""

    @property
    def is_text(self) -> bool:
        """Whether it was spelled out in ordinary tokens, and no image was made or lost."""
        return self.image_tokens == self.without[1] and self.prompt_tokens > self.without[0]


def special_tokens(served: Served) -> list[str]:
    """Every added token of the checkpoint, as it is spelled."""
    tokenizer = json.loads((served.front.checkpoint.path / "tokenizer.json").read_text(encoding="utf-8"))
    return [token["content"] for token in tokenizer["added_tokens"]]


async def type_token(served: Served, token: str, images: int) -> Typed:
    """Send it twice in a message, around all images; and the same message with an ordinary word instead."""
    counts = []
    for word in (PLAIN, token):
        shown = [picture(number) for number in range(images)]
        message = user(f"{word} ", *shown, f" {word} What is it?")
        answer = await served.client.generate([message], max_new_tokens=1, temperature=0.0)
        assert answer.usage is not None
        counts.append((answer.usage.prompt_tokens, answer.usage.image_tokens))
    return Typed(token, images, *counts[1], without=counts[0])
