"""Images and videos of a chat: where they come from is asked once, and later turns need neither URL nor upload."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from fanlight.v1 import chat_pb2, events_pb2, generation_pb2, media_pb2
from fanlight_engine.errors import InvalidRequestError, Reason, UnknownMediaError
from fanlight_engine.request import ImagePart, MediaUrl, Message, StoredMedia, TextPart
from fanlight_server import chat_session
from tests.server.chats import begin, prompt_of, read, reason
from tests.server.conftest import Served
from tests.server.messages import interrupt, kinds, rest_of, setup, turn, user
from tests.server.scripted_backend import WAIT_SECONDS

ANSWERED = ["accepted", "delta", "delta", "finished", "usage"]
DIGEST = "sha256:" + "ab" * 32
URL = media_pb2.Image(url="http://host/picture.png")
UPLOAD = media_pb2.Image(digest=DIGEST)


def showing(image: media_pb2.Image) -> generation_pb2.Message:
    return generation_pb2.Message(role=generation_pb2.ROLE_USER, parts=[generation_pb2.Part(image=image)])


def show(image: media_pb2.Image, **fields: Any) -> chat_pb2.ChatRequest:
    return chat_pb2.ChatRequest(turn=chat_pb2.ChatTurn(messages=[showing(image)], **fields))


class Library:
    """Gives bytes for URLs and digests, and counts how often each was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.content = b"picture"

    async def __call__(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return tuple(replace(one, parts=tuple(self._resolved(part) for part in one.parts)) for one in messages)

    def _resolved(self, part: Any) -> Any:
        if not isinstance(part, ImagePart) or isinstance(part.source, bytes):
            return part
        assert isinstance(part.source, MediaUrl | StoredMedia)
        self.asked.append(part.source.url if isinstance(part.source, MediaUrl) else part.source.digest)
        return replace(part, source=self.content)


def pictures(messages: tuple[Message, ...]) -> list[Any]:
    return [part.source for message in messages for part in message.parts if isinstance(part, ImagePart)]


async def test_sources_are_resolved_once_and_later_turns_send_what_came(served: Served) -> None:
    library = served.backend.resolve = Library()
    call = await begin(served, show(URL), show(UPLOAD), turn("again"))
    await call.done_writing()
    assert kinds(await rest_of(call)) == ANSWERED * 3
    assert library.asked == ["http://host/picture.png", DIGEST]
    assert [pictures(prompt_of(served, i)) for i in range(3)] == [[b"picture"], [b"picture"] * 2, [b"picture"] * 2]


async def test_the_setups_history_is_resolved_when_it_is_first_used(served: Served) -> None:
    library = served.backend.resolve = Library()
    call = served.inference.Chat()
    await call.write(setup(history=[showing(UPLOAD)]))
    assert kinds([await call.read()]) == ["ready"]
    assert library.asked == []
    for text in ("one", "two"):
        await call.write(turn(text, parent_turn_id=""))
    await call.done_writing()
    assert kinds(await rest_of(call)) == ANSWERED * 2
    assert library.asked == [DIGEST]
    assert pictures(prompt_of(served)) == [b"picture"]


async def test_a_source_that_cannot_be_had_costs_its_turn_and_names_the_field(served: Served) -> None:
    async def refuse(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        if len(messages) == 1:
            raise UnknownMediaError("messages[0].parts[0].image", "nothing is held; upload it")
        return messages

    served.backend.resolve = refuse
    call = await begin(served, show(UPLOAD, turn_id="a"))
    (failed,) = await read(call, 1)
    assert (failed.turn_id, failed.turn_error.code) == ("a", 5)
    assert failed.turn_error.reason == reason("MEDIA_NOT_FOUND")
    assert failed.turn_error.field_violations[0].field == "turn.messages[0].parts[0].image"
    assert served.backend.generations == []
    served.backend.resolve = None
    await call.write(turn("go on"))
    await call.done_writing()
    assert kinds(await rest_of(call)) == ANSWERED


async def test_a_source_of_the_setup_that_cannot_be_had_is_named_there(served: Served) -> None:
    async def refuse(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        raise InvalidRequestError("messages[1].parts[0].image", "cannot be fetched", Reason.MEDIA_URL_UNAVAILABLE)

    served.backend.resolve = refuse
    call = served.inference.Chat()
    await call.write(setup(history=[user("look"), showing(URL)]))
    await call.write(turn("hi"))
    await call.done_writing()
    _ready, failed = await rest_of(call)
    assert failed.turn_error.reason == reason("MEDIA_URL_UNAVAILABLE")
    assert failed.turn_error.field_violations[0].field == "setup.history[1].parts[0].image"


async def test_an_interrupt_ends_a_turn_whose_sources_are_still_on_their_way(served: Served) -> None:
    asked, given_up = asyncio.Event(), asyncio.Event()

    async def never(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()
        return messages

    served.backend.resolve = never
    call = await begin(served, show(URL))
    await asyncio.wait_for(asked.wait(), WAIT_SECONDS)
    await call.write(interrupt())
    ended = await read(call, 2)
    assert kinds(ended) == ["finished", "usage"]
    assert ended[0].finished.reason == events_pb2.FINISH_REASON_INTERRUPTED
    assert given_up.is_set()
    served.backend.resolve = Library()
    await call.write(turn("go on"))
    await call.done_writing()
    assert kinds(await rest_of(call)) == ANSWERED
    asked_first, empty, _following = prompt_of(served)
    assert pictures((asked_first,)) == [b"picture"]
    assert empty.parts == (TextPart(""),)


async def test_a_lost_chat_gives_up_what_it_was_fetching(served: Served) -> None:
    asked, given_up = asyncio.Event(), asyncio.Event()

    async def never(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()
        return messages

    served.backend.resolve = never
    call = await begin(served, show(URL))
    await asyncio.wait_for(asked.wait(), WAIT_SECONDS)
    call.cancel()
    await asyncio.wait_for(given_up.wait(), WAIT_SECONDS)


async def test_what_is_fetched_counts_as_held_by_the_chat(served: Served, monkeypatch: Any) -> None:
    monkeypatch.setattr(chat_session, "MAX_HISTORY_BYTES", 10_000)
    library = served.backend.resolve = Library()
    library.content = bytes(20_000)
    call = await begin(served, show(URL, turn_id="a"))
    (failed,) = await read(call, 1)
    assert (failed.turn_id, failed.turn_error.reason) == ("a", reason("FIELD_INVALID"))
    assert "10000 are allowed" in failed.turn_error.message
    library.content = bytes(5_000)
    await call.write(show(URL))
    await call.done_writing()
    assert kinds(await rest_of(call)) == ANSWERED
