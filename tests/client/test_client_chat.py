"""Conversations: setup, turns in any order, branches, interrupts, refusals, and every way to end."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from scripted_server import WAIT_SECONDS, ScriptedServer, answer_events

import fanlight
from fanlight import ROOT, AsyncClient, Client, FinishReason, Usage, assistant, user
from fanlight.v1 import chat_pb2, errors_pb2, events_pb2


def reply(turn_id: str = "", **event: Any) -> chat_pb2.ChatResponse:
    return chat_pb2.ChatResponse(turn_id=turn_id, **event)


def ready() -> chat_pb2.ChatResponse:
    return reply(ready=chat_pb2.ChatReady(model="tiny"))


def wait_for_request(server: ScriptedServer, kind: str) -> Any:
    """The first message of a kind that the server gets."""
    for _ in range(int(WAIT_SECONDS * 100)):
        for request in list(server.requests):
            if request.HasField(kind):
                return getattr(request, kind)
        threading.Event().wait(0.01)
    raise AssertionError(f"the server never got {kind}")


async def until_interrupted(requests: Any, context: Any) -> AsyncIterator[Any]:
    """A server that says one word to each turn and goes on when it is interrupted."""
    running: set[str] = set()
    async for request in requests:
        if request.HasField("setup"):
            yield ready()
        elif request.HasField("turn"):
            running.add(request.turn.turn_id)
            yield reply(request.turn.turn_id, delta=events_pb2.Delta(text="word"))
        else:
            running.discard(request.interrupt.turn_id)
            finished = events_pb2.Finished(reason=events_pb2.FINISH_REASON_INTERRUPTED)
            yield reply(request.interrupt.turn_id, finished=finished)
            yield reply(request.interrupt.turn_id, usage=events_pb2.Usage())
    if running:  # requests also end when the client cancels; only then is the task cancelled, too
        await asyncio.Event().wait()


def test_turns_are_answered_and_name_their_parents(client: Client, server: ScriptedServer) -> None:
    history = [user("Hi"), assistant("Hello")]
    with client.chat(history=history, system="Be brief.", model="tiny", temperature=0) as chat:
        assert chat.model == "tiny"
        first = chat.send("abc", images=[b"image"])
        assert list(first) == ["a", "b", "c"]
        assert first.finish_reason is FinishReason.STOP
        assert first.usage is not None
        assert first.text == "abc"
        second = chat.send("d", parent=first, max_new_tokens=5)
        third = chat.send("e", parent=ROOT)
        fourth = chat.send("f")
        # Read in another order than sent.
        assert ["".join(turn) for turn in (fourth, second, third)] == ["f", "d", "e"]
    setup = server.requests[0].setup
    assert [message.role for message in setup.history] == [1, 2, 3]
    assert setup.config.sampling.temperature == 0
    turns = [request.turn for request in server.requests[1:]]
    assert [turn.parent_turn_id for turn in turns] == ["", first.turn_id, "", ""]
    assert [turn.HasField("parent_turn_id") for turn in turns] == [False, True, True, False]
    assert turns[1].config.sampling.max_new_tokens == 5
    assert not turns[0].HasField("config")
    assert not server.call_was_cancelled.is_set()


async def test_turns_by_task(async_client: AsyncClient, server: ScriptedServer) -> None:
    async with async_client.chat() as chat:
        assert chat.model == "tiny"
        first, second = chat.send("abc"), chat.send("de")

        async def read(turn: fanlight.AsyncTurn) -> str:
            return "".join([piece async for piece in turn])

        assert await asyncio.gather(read(second), read(first)) == ["de", "abc"]
        assert second.usage is not None
    assert not server.call_was_cancelled.is_set()


def test_events_of_a_turn(client: Client) -> None:
    with client.chat() as chat:
        events = list(chat.send("a").events())
    assert isinstance(events[-1], Usage)
    assert len(events) == 5


def test_threads_may_read_turns_of_one_chat(client: Client) -> None:
    texts: dict[int, str] = {}
    with client.chat() as chat:
        turns = [chat.send(f"turn {number}") for number in range(4)]

        def read(number: int) -> None:
            texts[number] = "".join(turns[number])

        threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
    assert texts == {number: f"turn {number}" for number in range(4)}


def test_an_interrupted_turn_keeps_its_text(client: Client, server: ScriptedServer) -> None:
    server.chat_script = until_interrupted
    with client.chat() as chat:
        turn = chat.send("Tell me everything")
        assert next(turn) == "word"
        turn.interrupt()
        assert list(turn) == []
        assert turn.finish_reason is FinishReason.INTERRUPTED
        assert turn.text == "word"


async def test_an_interrupted_turn_by_task(async_client: AsyncClient, server: ScriptedServer) -> None:
    server.chat_script = until_interrupted
    async with async_client.chat() as chat:
        turn = chat.send("Tell me everything")
        assert await anext(turn) == "word"
        chat.interrupt(turn)
        assert [piece async for piece in turn] == []
        assert turn.finish_reason is FinishReason.INTERRUPTED


def test_losing_a_turn_interrupts_it(client: Client, server: ScriptedServer) -> None:
    server.chat_script = until_interrupted
    with client.chat() as chat:
        for _ in chat.send("Tell me everything"):
            break
        gc.collect()
        turn_id = wait_for_request(server, "turn").turn_id
        assert wait_for_request(server, "interrupt").turn_id == turn_id


async def test_a_wait_that_is_given_up_does_not_end_the_chat(async_client: AsyncClient, server: ScriptedServer) -> None:
    server.chat_script = until_interrupted
    async with async_client.chat() as chat:
        turn = chat.send("Tell me everything")
        assert await anext(turn) == "word"
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(turn), 0.05)
        turn.interrupt()
        assert [piece async for piece in turn] == []
        assert turn.finish_reason is FinishReason.INTERRUPTED


async def refuse_first_turn(requests: Any, context: Any) -> AsyncIterator[Any]:
    refused = False
    async for request in requests:
        if request.HasField("setup"):
            yield ready()
            yield reply(going_away=chat_pb2.ChatGoingAway(time_left=Duration(seconds=3)))
        elif not refused:
            refused = True
            failure = errors_pb2.Failure(code=14, message="shutting down", reason=errors_pb2.ERROR_REASON_DRAINING)
            yield reply(request.turn.turn_id, turn_error=failure)
        else:
            for event in answer_events("x"):
                yield reply(request.turn.turn_id, **event)


def test_a_refused_turn_raises_and_the_chat_goes_on(client: Client, server: ScriptedServer) -> None:
    server.chat_script = refuse_first_turn
    with client.chat() as chat:
        turn = chat.send("a")
        with pytest.raises(fanlight.Unavailable) as refused:
            list(turn)
        assert refused.value.reason == "DRAINING"
        assert chat.going_away == 3.0
        assert list(turn) == []
        assert "".join(chat.send("b")) == "x"


async def not_found(requests: Any, context: Any) -> AsyncIterator[Any]:
    await anext(requests)
    await context.abort(grpc.StatusCode.NOT_FOUND, "no model 'big'")
    yield


def test_a_setup_that_is_refused_raises_on_entering(client: Client, server: ScriptedServer) -> None:
    server.chat_script = not_found
    with pytest.raises(fanlight.NotFound), client.chat(model="big"):
        pass


async def test_a_setup_that_is_refused_by_task(async_client: AsyncClient, server: ScriptedServer) -> None:
    server.chat_script = not_found
    with pytest.raises(fanlight.NotFound):
        async with async_client.chat(model="big"):
            pass


async def break_off(requests: Any, context: Any) -> AsyncIterator[Any]:
    yield ready()
    async for request in requests:
        if request.HasField("turn"):
            yield reply(request.turn.turn_id, delta=events_pb2.Delta(text="half"))
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the engine stopped")


def test_a_call_that_breaks_off_ends_every_turn(client: Client, server: ScriptedServer) -> None:
    server.chat_script = break_off
    with client.chat() as chat:
        first, second = chat.send("a"), chat.send("b")
        assert next(first) == "half"
        for turn in (first, second, chat.send("c")):
            with pytest.raises(fanlight.Unavailable, match="engine stopped"):
                list(turn)
        with pytest.raises(fanlight.Unavailable):
            list(chat.send("d"))
        assert chat.is_over


def test_leaving_a_chat_with_an_unfinished_turn_cancels_the_call(client: Client, server: ScriptedServer) -> None:
    server.chat_script = until_interrupted
    with client.chat() as chat:
        turn = chat.send("Tell me everything")
        assert next(turn) == "word"
    assert server.call_was_cancelled.wait(WAIT_SECONDS)
    with pytest.raises(fanlight.Cancelled):
        next(turn)


async def test_leaving_a_chat_with_an_unfinished_turn_by_task(
    async_client: AsyncClient, server: ScriptedServer
) -> None:
    server.chat_script = until_interrupted
    async with async_client.chat() as chat:
        turn = chat.send("Tell me everything")
        assert await anext(turn) == "word"
    assert await asyncio.to_thread(server.call_was_cancelled.wait, WAIT_SECONDS)
    with pytest.raises(fanlight.FanlightError):
        await anext(turn)


def test_losing_a_chat_cancels_the_call(client: Client, server: ScriptedServer) -> None:
    server.chat_script = until_interrupted
    next(client.chat().wait_ready().send("Tell me everything"))
    gc.collect()
    assert server.call_was_cancelled.wait(WAIT_SECONDS)
