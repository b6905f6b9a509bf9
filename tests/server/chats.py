"""Open chats, and what to read of them."""

from __future__ import annotations

from fanlight.v1 import chat_pb2, errors_pb2
from fanlight_engine.request import Conversation, Message
from tests.server.conftest import Served
from tests.server.messages import setup
from tests.server.scripted_backend import MODEL_NAME


async def begin(served: Served, *messages: chat_pb2.ChatRequest):
    """An open chat that has been told `messages` and has said that it is ready."""
    call = served.inference.Chat()
    for message in (setup(), *messages):
        await call.write(message)
    ready = await call.read()
    assert ready.ready.model == MODEL_NAME
    return call


async def read(call, count: int):
    return [await call.read() for _ in range(count)]


def prompt_of(served: Served, index: int = -1) -> tuple[Message, ...]:
    prompt = served.backend.generations[index].prompt
    assert isinstance(prompt, Conversation)
    return prompt.messages


def reason(name: str) -> int:
    return errors_pb2.ErrorReason.Value(f"ERROR_REASON_{name}")
