"""Conversations and pictures for the tests of the front half, in the engine's form and in transformers' form."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from fanlight_engine.request import Conversation, ImagePart, Message, Role, TextPart

TEXTS = (
    "the cat looks at the river.",
    "Hello",
    " leading and trailing spaces ",
    "\n\nnew lines\n\tand tabs\n\n",
    "Grüße, 你好, здравствуй, नमस्ते 👩🏽‍🚀🏳️‍🌈",
    "1 < 2 and 3 > 2; a <b> | c [d] {e} </f> <",
    "if (a <= b || c |= d) { return x<y>z; }",
    "a  b   c    d\r\n",
    "e\u0301 \u200b \ufeff",
    "seven birds describes an old clock!" * 5,
)


def png(width: int, height: int, seed: int = 0, mode: str = "RGB") -> bytes:
    """A noisy picture as PNG bytes."""
    channels = {"L": (), "RGB": (3,), "RGBA": (4,), "LA": (2,)}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, *channels), dtype=np.uint8)
    return encoded(Image.fromarray(pixels, mode), "PNG")


def encoded(image: Image.Image, image_format: str, **options: Any) -> bytes:
    """The file of a picture."""
    stream = io.BytesIO()
    image.save(stream, image_format, **options)
    return stream.getvalue()


def random_conversation(rng: random.Random, images: int, texts: tuple[str, ...] = TEXTS) -> Conversation:
    """An optional system message, one to three turns, and the images spread over the user's messages."""
    turns = rng.randint(1, 3)
    pictures: list[list[ImagePart]] = [[] for _ in range(turns)]
    for index in range(images):
        size = rng.randint(20, 150), rng.randint(20, 150)
        pictures[rng.randrange(turns)].append(ImagePart(png(*size, seed=rng.randrange(1000) + index)))
    messages = [Message(Role.SYSTEM, (TextPart(rng.choice(texts)),))] if rng.random() < 0.3 else []
    for turn in range(turns):
        parts = [*pictures[turn], *(TextPart(rng.choice(texts)) for _ in range(rng.randint(1, 2)))]
        rng.shuffle(parts)
        messages.append(Message(Role.USER, tuple(parts)))
        if turn < turns - 1:
            messages.append(Message(Role.ASSISTANT, (TextPart(rng.choice(texts)),)))
    return Conversation(tuple(messages))


def as_transformers(conversation: Conversation, text_only: bool) -> list[dict[str, Any]]:
    """The same conversation as apply_chat_template takes it; texts joined to a string for text-only checkpoints."""
    messages = []
    for message in conversation.messages:
        content: Any = [
            {"type": "text", "text": part.text}
            if isinstance(part, TextPart)
            else {"type": "image", "image": _opened(part)}
            for part in message.parts
            if isinstance(part, TextPart | ImagePart)
        ]
        if text_only:
            content = "".join(part["text"] for part in content)
        messages.append({"role": message.role.value, "content": content})
    return messages


def _opened(part: ImagePart) -> Image.Image:
    assert isinstance(part.source, bytes)
    return Image.open(io.BytesIO(part.source)).convert("RGB")


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop turn until something has come about."""
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise TimeoutError("it never came about")
