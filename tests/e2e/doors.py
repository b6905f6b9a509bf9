"""The doors that a prompt can be sent through: a whole answer, a stream of events, a turn of a chat.

Whatever the door, the answer must be the same; so they are asked alike here: greedily, past the end of what the model
has to say, for text, token ids and logprobs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fanlight import Answer, AsyncClient
from fanlight.v1 import generation_pb2, media_pb2
from tests.e2e.asking import whole_answer

NEW_TOKENS = 12
GREEDY: dict[str, Any] = {
    "temperature": 0.0,
    "max_new_tokens": NEW_TOKENS,
    "ignore_eos": True,
    "token_ids": True,
    "logprobs": True,
}

Part = str | media_pb2.Image | media_pb2.Video
Door = Callable[[AsyncClient, Sequence[generation_pb2.Message]], Awaitable[Answer]]


def saying(*parts: Part, role: generation_pb2.Role = generation_pb2.ROLE_USER) -> generation_pb2.Message:
    """A message of text, images and videos in order."""
    return generation_pb2.Message(role=role, parts=[part_of(part) for part in parts])


def part_of(part: Part) -> generation_pb2.Part:
    """One piece of a message."""
    if isinstance(part, str):
        return generation_pb2.Part(text=part)
    if isinstance(part, media_pb2.Image):
        return generation_pb2.Part(image=part)
    return generation_pb2.Part(video=part)


async def through_generate(client: AsyncClient, messages: Sequence[generation_pb2.Message]) -> Answer:
    """The whole answer of one call."""
    return await client.generate(messages, **GREEDY)


async def through_generate_stream(client: AsyncClient, messages: Sequence[generation_pb2.Message]) -> Answer:
    """The answer that the events of a stream add up to."""
    return await whole_answer(client.events(messages, **GREEDY))


async def through_chat(client: AsyncClient, messages: Sequence[generation_pb2.Message]) -> Answer:
    """The answer to the last message in a chat whose history are the others."""
    async with client.chat(history=messages[:-1], **GREEDY) as chat:
        turn = chat.send(messages[-1:])
        async for _ in turn:
            pass
        return turn.answer


DOORS: dict[str, Door] = {
    "Generate": through_generate,
    "GenerateStream": through_generate_stream,
    "Chat": through_chat,
}
