"""Large media of a request go by upload, small ones inline; uploads that the server let go of are repeated once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
from scripted_media import digest_of_bytes, refuse
from scripted_server import (
    MEDIA_GONE,
    WAIT_SECONDS,
    ScriptedServer,
    answer_events,
    answer_script,
    echoing_chat,
    forgetful,
    whole_answer,
)

import fanlight
from fanlight import AsyncClient, Client, transfers, user
from fanlight.large_media import INLINE_BYTES, find_large_media
from fanlight.media_store import ROOM_FOR_THE_REST
from fanlight.requests import build_generation
from fanlight.v1 import chat_pb2, generation_pb2, server_pb2

SMALL = b"small"
LARGE = bytes(INLINE_BYTES + 1)
DIGEST = digest_of_bytes(LARGE)
FULL = (grpc.StatusCode.RESOURCE_EXHAUSTED, "MEDIA_STORE_FULL")


@pytest.fixture(autouse=True)
def server_takes_uploads(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.features = [server_pb2.FEATURE_MEDIA_UPLOAD]
    monkeypatch.setattr(transfers, "FIRST_PAUSE_SECONDS", 0.001)


def parts_of(generation: generation_pb2.Generation) -> list[generation_pb2.Part]:
    return list(generation.conversation.messages[-1].parts)


def check_digest_in_place(request: Any) -> None:
    small, large, _ = parts_of(request.generation)
    assert small.image.data == SMALL
    assert large.video.digest == DIGEST


def test_a_large_clip_is_uploaded_and_a_small_image_is_not(client: Client, server: ScriptedServer) -> None:
    assert list(client.stream("What?", images=SMALL, video=LARGE)) == ["a", " b", " c"]
    assert client.generate("What?", images=SMALL, video=LARGE).text == "a cat"
    assert client.count_tokens("What?", images=SMALL, video=LARGE).fits
    for request in server.requests:
        check_digest_in_place(request)
    assert len(server.media.upload_offsets) == 1


async def test_a_large_clip_by_task(async_client: AsyncClient, server: ScriptedServer) -> None:
    stream = async_client.stream("What?", images=SMALL, video=LARGE)
    assert [piece async for piece in stream] == ["a", " b", " c"]
    assert (await async_client.generate("What?", images=SMALL, video=LARGE)).text == "a cat"
    assert (await async_client.count_tokens("What?", images=SMALL, video=LARGE)).fits
    for request in server.requests:
        check_digest_in_place(request)
    assert len(server.media.upload_offsets) == 1


def test_the_callers_messages_stay_as_they_are(client: Client) -> None:
    message = user("What?", fanlight.video(LARGE))
    client.generate([message])
    assert message.parts[1].video.data == LARGE


def test_a_server_without_uploads_gets_everything_inline(client: Client, server: ScriptedServer) -> None:
    server.features = []
    assert client.generate("What?", images=LARGE).text == "a cat"
    assert parts_of(server.requests[0].generation)[0].image.data == LARGE
    assert server.media.questions == 0


def test_a_message_that_would_be_too_large_sheds_its_largest_media_first(
    client: Client, server: ScriptedServer
) -> None:
    server.max_receive_message_bytes = ROOM_FOR_THE_REST + 5_000_000
    images = [bytes([number]) * (1_000_000 + number) for number in range(8)]
    assert client.generate("What?", images=images).text == "a cat"
    sources = [part.image.WhichOneof("source") for part in parts_of(server.requests[0].generation)[:-1]]
    assert sources == ["data"] * 4 + ["digest"] * 4


def test_every_place_that_holds_data_is_found() -> None:
    pixels = np.zeros((1024, 1025), np.float32)
    message = user(
        fanlight.image(LARGE),
        fanlight.video(LARGE),
        fanlight.frames([LARGE, SMALL]),
        fanlight.patches(pixels, (32, 32)),
        fanlight.video(fanlight.embeddings({"a": pixels, "b": pixels}, "sha256:model")),
    )
    generation = build_generation([message], (), (), None, None, {})
    found = find_large_media(generation, room=32 * 1024 * 1024)
    assert sorted(type(medium.holder).__name__ for medium in found) == [
        "Frame",
        "Image",
        "Tensor",
        "Tensor",
        "Tensor",
        "Video",
    ]
    for medium in found:
        medium.name_by(DIGEST)
    patches = parts_of(generation)[3].image.patches
    assert (patches.pixels.file.digest, patches.pixels.file.name) == (DIGEST, "tensor")
    assert (patches.pixels.dtype, list(patches.pixels.shape)) == (0, [])
    assert generation.ByteSize() < 2_000
    tensors = fanlight.patches(pixels, (32, 32)), fanlight.tiles(pixels)
    prompt = fanlight.tokens_prompt([5, 6], images=tensors)
    assert len(find_large_media(prompt, room=32 * 1024 * 1024)) == 2


def test_a_large_tensor_goes_as_a_safetensors_file(client: Client, server: ScriptedServer) -> None:
    from safetensors.numpy import load

    pixels = np.arange(1024 * 1025, dtype=np.float32).reshape(1024, 1025)
    client.generate("What?", images=fanlight.patches(pixels, (32, 32)))
    file = parts_of(server.requests[0].generation)[0].image.patches.pixels.file
    np.testing.assert_array_equal(load(server.media.held[file.digest])[file.name], pixels)


def test_an_upload_that_breaks_off_inside_a_request_goes_on(client: Client, server: ScriptedServer) -> None:
    server.media.break_uploads_at = [100, 2_000_000]
    assert client.generate("What?", video=LARGE).text == "a cat"
    assert server.media.upload_offsets == [0, 100, 2_000_000]


def test_media_that_the_server_let_go_of_are_uploaded_again_once(client: Client, server: ScriptedServer) -> None:
    server.stream_script = forgetful(server, answer_script("a"))
    assert list(client.stream("What?", video=LARGE)) == ["a"]
    assert server.media.upload_offsets == [0, 0]
    server.stream_script = forgetful(server, answer_script("a"), times=2)
    with pytest.raises(fanlight.NotFound) as failed:
        list(client.stream("What?", video=LARGE))
    assert failed.value.reason == "MEDIA_NOT_FOUND"


async def test_media_that_the_server_let_go_of_by_task(async_client: AsyncClient, server: ScriptedServer) -> None:
    server.stream_script = forgetful(server, answer_script("a"))
    assert [piece async for piece in async_client.stream("What?", video=LARGE)] == ["a"]
    server.stream_script = forgetful(server, answer_script("a"), times=2)
    with pytest.raises(fanlight.NotFound):
        await anext(async_client.stream("What?", video=LARGE))


def forget_once(server: ScriptedServer) -> Any:
    left = [1]

    async def generate(request: Any, context: Any) -> Any:
        if left.pop() if left else 0:
            server.media.held.clear()
            await refuse(context, grpc.StatusCode.NOT_FOUND, "nothing held", "MEDIA_NOT_FOUND")
        return await whole_answer(request, context)

    return generate


async def test_whole_answers_have_their_media_uploaded_again(
    client: Client, async_client: AsyncClient, server: ScriptedServer
) -> None:
    server.generate_script = forget_once(server)
    assert (await asyncio.to_thread(client.generate, "What?", video=LARGE)).text == "a cat"
    server.generate_script = forget_once(server)
    assert (await async_client.generate("What?", video=LARGE)).text == "a cat"
    assert server.media.upload_offsets == [0, 0, 0]


def test_a_handle_that_the_server_let_go_of_is_the_callers_to_upload(client: Client, server: ScriptedServer) -> None:
    server.stream_script = forgetful(server, answer_script("a"))
    with pytest.raises(fanlight.NotFound):
        list(client.stream("What?", video=client.upload(LARGE)))
    assert server.media.upload_offsets == [0]


def test_a_refused_upload_is_raised_before_the_stream(client: Client, server: ScriptedServer) -> None:
    server.media.refusals = [FULL]
    with pytest.raises(fanlight.Overloaded):
        client.stream("What?", video=LARGE)
    assert server.requests == []


async def test_a_refused_upload_by_task_is_raised_while_iterating(
    async_client: AsyncClient, server: ScriptedServer
) -> None:
    server.media.refusals = [FULL] * transfers.MOST_BREAKS
    stream = async_client.stream("What?", video=LARGE)
    with pytest.raises(fanlight.Overloaded):
        await anext(stream)
    assert [piece async for piece in stream] == []
    assert server.requests == []


async def test_closing_a_stream_stops_its_upload(async_client: AsyncClient, server: ScriptedServer) -> None:
    stream = async_client.stream("What?", video=LARGE)

    async def read() -> list[str]:
        return [piece async for piece in stream]

    reading = asyncio.ensure_future(read())
    await asyncio.sleep(0)
    await stream.close()
    assert await asyncio.wait_for(reading, WAIT_SECONDS) == []
    assert server.requests == []


def turns_of(server: ScriptedServer) -> list[chat_pb2.ChatTurn]:
    return [request.turn for request in server.requests if request.HasField("turn")]


def test_a_turn_with_a_large_clip(client: Client, server: ScriptedServer) -> None:
    history = [user(fanlight.image(LARGE), "Look.")]
    with client.chat(history=history) as chat:
        assert "".join(chat.send("abc", images=SMALL, video=LARGE)) == "abc"
    assert server.requests[0].setup.history[0].parts[0].image.digest == DIGEST
    assert turns_of(server)[0].messages[0].parts[1].video.digest == DIGEST


async def test_turns_by_task_keep_their_order_behind_an_upload(
    async_client: AsyncClient, server: ScriptedServer
) -> None:
    history = [user(fanlight.image(LARGE), "Look.")]
    async with async_client.chat(history=history) as chat:
        first, second, third = chat.send("ab", video=LARGE), chat.send("c"), chat.send("d", video=bytes(5_000_000))
        assert [[piece async for piece in turn] for turn in (third, first, second)] == [["d"], ["a", "b"], ["c"]]
    assert server.requests[0].setup.history[0].parts[0].image.digest == DIGEST
    turns = turns_of(server)
    assert [turn.turn_id for turn in turns] == [first.turn_id, second.turn_id, third.turn_id]
    assert turns[0].messages[0].parts[0].video.digest == DIGEST


async def lets_go_once(server: ScriptedServer, requests: Any, context: Any) -> AsyncIterator[Any]:
    seen: set[str] = set()
    async for request in requests:
        if request.HasField("setup"):
            yield chat_pb2.ChatResponse(ready=chat_pb2.ChatReady(model="tiny"))
        elif request.turn.turn_id not in seen:
            seen.add(request.turn.turn_id)
            server.media.held.clear()
            yield chat_pb2.ChatResponse(turn_id=request.turn.turn_id, turn_error=MEDIA_GONE)
        else:
            for event in answer_events("x"):
                yield chat_pb2.ChatResponse(turn_id=request.turn.turn_id, **event)


def test_a_turn_whose_media_the_server_let_go_of_is_sent_again(client: Client, server: ScriptedServer) -> None:
    server.chat_script = lambda requests, context: lets_go_once(server, requests, context)
    with client.chat() as chat:
        assert "".join(chat.send("a", video=LARGE)) == "x"
        with pytest.raises(fanlight.NotFound):
            list(chat.send("b"))
    assert server.media.upload_offsets == [0, 0]


async def test_a_turn_by_task_whose_media_the_server_let_go_of(
    async_client: AsyncClient, server: ScriptedServer
) -> None:
    server.chat_script = lambda requests, context: lets_go_once(server, requests, context)
    async with async_client.chat() as chat:
        assert [piece async for piece in chat.send("a", video=LARGE)] == ["x"]
    assert server.media.upload_offsets == [0, 0]


def test_a_turn_that_another_one_follows_is_not_sent_again(client: Client, server: ScriptedServer) -> None:
    async def lets_go_of_the_first(requests: Any, context: Any) -> AsyncIterator[Any]:
        turns = []
        async for request in requests:
            if request.HasField("setup"):
                yield chat_pb2.ChatResponse(ready=chat_pb2.ChatReady(model="tiny"))
            else:
                turns.append(request.turn.turn_id)
            if len(turns) == 2:
                yield chat_pb2.ChatResponse(turn_id=turns[0], turn_error=MEDIA_GONE)
                for event in answer_events("x"):
                    yield chat_pb2.ChatResponse(turn_id=turns[1], **event)

    server.chat_script = lets_go_of_the_first
    with client.chat() as chat:
        first, second = chat.send("a", video=LARGE), chat.send("b")
        assert "".join(second) == "x"
        with pytest.raises(fanlight.NotFound):
            list(first)


def test_a_turn_whose_upload_is_refused_is_not_sent(client: Client, server: ScriptedServer) -> None:
    server.media.refusals = [FULL]
    with client.chat() as chat:
        with pytest.raises(fanlight.Overloaded):
            chat.send("a", video=LARGE)
        assert "".join(chat.send("b")) == "b"
    assert len(turns_of(server)) == 1


async def test_a_turn_by_task_whose_upload_is_refused_raises_and_the_chat_goes_on(
    async_client: AsyncClient, server: ScriptedServer
) -> None:
    server.media.refusals = [FULL] * transfers.MOST_BREAKS
    async with async_client.chat() as chat:
        first, second = chat.send("a", video=LARGE), chat.send("b")
        with pytest.raises(fanlight.Overloaded):
            await anext(first)
        assert [piece async for piece in second] == ["b"]
    assert len(turns_of(server)) == 1


async def test_a_turn_that_is_interrupted_while_it_uploads_is_not_sent(
    async_client: AsyncClient, server: ScriptedServer
) -> None:
    async with async_client.chat() as chat:
        turn = chat.send("a", video=LARGE)
        turn.interrupt()
        with pytest.raises(fanlight.Cancelled, match="before it was sent"):
            await anext(turn)
        assert [piece async for piece in chat.send("b")] == ["b"]
    assert len(turns_of(server)) == 1


async def test_leaving_a_chat_stops_its_uploads(async_client: AsyncClient, server: ScriptedServer) -> None:
    server.chat_script = echoing_chat
    async with async_client.chat() as chat:
        turn = chat.send("a", video=LARGE)
    with pytest.raises(fanlight.FanlightError):
        await anext(turn)
    assert turns_of(server) == []
