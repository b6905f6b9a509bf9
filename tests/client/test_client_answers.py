"""Whole and streamed answers, by thread and by task; newer servers; lost and closed streams."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from scripted_server import (
    WAIT_SECONDS,
    ScriptedServer,
    answer_script,
    endless_answer,
    stream_response,
)

from fanlight import (
    Accepted,
    AsyncClient,
    Client,
    Delta,
    Finished,
    FinishReason,
    InvalidRequest,
    Progress,
    Token,
    Usage,
)
from fanlight.v1 import errors_pb2, events_pb2, inference_pb2

FAILURE = errors_pb2.Failure(
    code=3,
    message="too many",
    reason=errors_pb2.ERROR_REASON_TOO_MANY_IMAGES,
    field_violations=[errors_pb2.FieldViolation(field="generation.tokens.images", description="too many")],
)


def test_a_streamed_answer_tells_its_text_and_then_the_rest(client: Client, server: ScriptedServer) -> None:
    stream = client.stream("What?", images=[b"image"], temperature=0)
    assert stream.usage is None
    assert stream.finish_reason is None
    assert list(stream) == ["a", " b", " c"]
    assert stream.finish_reason is FinishReason.STOP
    assert stream.usage is not None
    assert stream.usage.prompt_tokens == 40
    assert stream.usage.timings.first_token == 0.25
    assert stream.usage.timings.queue is None
    assert stream.answer.text == stream.text == "a b c"
    assert stream.answer.token_ids == [7, 8, 9]
    assert stream.seed == 99
    assert stream.request_id == server.requests[0].request_id
    assert list(stream) == []


async def test_a_streamed_answer_by_task(async_client: AsyncClient) -> None:
    stream = async_client.stream("What?", images=[b"image"])
    assert [piece async for piece in stream] == ["a", " b", " c"]
    assert stream.finish_reason is FinishReason.STOP
    assert stream.usage is not None
    assert stream.usage.image_tokens == 16


def check_whole_answer(answer: Any) -> None:
    assert answer.text == "a cat"
    assert answer.tokens == (Token(7, -0.5), Token(8, None))
    assert (answer.token_ids, answer.logprobs) == ([7, 8], [-0.5, None])
    assert (answer.finish_reason, answer.stop_sequence) == (FinishReason.STOP_SEQUENCE, "\n")
    assert answer.usage.encoder_cache_hits == 1
    assert answer.seed == 99
    assert answer.request_id == "mine"


def test_a_whole_answer(client: Client) -> None:
    check_whole_answer(client.generate("What?", request_id="mine"))


async def test_a_whole_answer_by_task(async_client: AsyncClient) -> None:
    check_whole_answer(await async_client.generate("What?", request_id="mine"))


def test_events_come_typed_and_in_order(client: Client) -> None:
    events = list(client.events("What?"))
    assert [type(event) for event in events] == [Accepted, Progress, Delta, Delta, Delta, Finished, Usage]
    assert events[1] == Progress(images_encoded=1, images_total=1)
    assert events[2] == Delta(index=0, text="a", tokens=(Token(7, -0.5),))


async def test_events_by_task(async_client: AsyncClient) -> None:
    events = [event async for event in async_client.events("What?")]
    assert [type(event) for event in events] == [Accepted, Progress, Delta, Delta, Delta, Finished, Usage]


def test_unknown_events_are_ignored_and_an_unknown_finish_reason_is_final(
    client: Client, server: ScriptedServer
) -> None:
    async def newer_server(request: Any, context: Any) -> AsyncIterator[Any]:
        # Field 100, a string: an event that this client has never heard of.
        yield inference_pb2.GenerateStreamResponse.FromString(b"\xa2\x06\x03new")
        yield stream_response(delta=events_pb2.Delta(text="text"))
        yield stream_response(finished=events_pb2.Finished(reason=77))  # pyright: ignore[reportArgumentType]

    server.stream_script = newer_server
    stream = client.stream("What?")
    assert list(stream) == ["text"]
    assert stream.finish_reason is FinishReason.UNKNOWN


def test_an_answer_that_fails_raises_after_its_text(client: Client, server: ScriptedServer) -> None:
    server.stream_script = answer_script("half", reason=events_pb2.FINISH_REASON_ERROR, error=FAILURE)
    stream = client.stream("What?", request_id="mine")
    assert next(stream) == "half"
    with pytest.raises(InvalidRequest) as failed:
        next(stream)
    assert failed.value.field == "generation.tokens.images"
    assert failed.value.reason == "TOO_MANY_IMAGES"
    assert failed.value.request_id == "mine"
    assert stream.usage is not None
    assert list(stream) == []


def test_events_of_an_answer_that_fails_tell_it_without_raising(client: Client, server: ScriptedServer) -> None:
    server.stream_script = answer_script(reason=events_pb2.FINISH_REASON_ERROR, error=FAILURE)
    finished = [event for event in client.events("What?") if isinstance(event, Finished)]
    assert isinstance(finished[0].error, InvalidRequest)


def test_leaving_a_stream_early_cancels_its_request(client: Client, server: ScriptedServer) -> None:
    server.stream_script = endless_answer
    with client.stream("What?") as stream:
        assert next(stream) == "first"
    assert server.call_was_cancelled.wait(WAIT_SECONDS)
    assert list(stream) == []
    assert stream.answer.finish_reason is FinishReason.CANCELLED


def test_losing_a_stream_cancels_its_request(client: Client, server: ScriptedServer) -> None:
    server.stream_script = endless_answer
    for _ in client.stream("What?"):
        break
    gc.collect()
    assert server.call_was_cancelled.wait(WAIT_SECONDS)


async def test_losing_a_stream_by_task_cancels_its_request(async_client: AsyncClient, server: ScriptedServer) -> None:
    server.stream_script = endless_answer
    async for _ in async_client.stream("What?"):
        break
    gc.collect()
    assert await asyncio.to_thread(server.call_was_cancelled.wait, WAIT_SECONDS)


async def test_cancelling_the_task_cancels_its_request(async_client: AsyncClient, server: ScriptedServer) -> None:
    server.stream_script = endless_answer
    stream = async_client.stream("What?")
    assert await anext(stream) == "first"
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(server.call_was_cancelled.wait, WAIT_SECONDS)


async def test_closing_a_stream_ends_the_task_that_reads_it(async_client: AsyncClient, server: ScriptedServer) -> None:
    server.stream_script = endless_answer
    stream = async_client.stream("What?")
    assert await anext(stream) == "first"

    async def rest() -> list[str]:
        return [piece async for piece in stream]

    waiting = asyncio.ensure_future(rest())
    await asyncio.sleep(0)
    await stream.close()
    assert await asyncio.wait_for(waiting, WAIT_SECONDS) == []


def test_models_server_and_cancel(client: Client, server: ScriptedServer) -> None:
    assert [model.name for model in client.models()] == ["tiny", "other"]
    assert client.model().name == "tiny"
    assert client.model("other").name == "other"
    assert client.server_info().version == "1.2.3"
    assert client.cancel("gone") == inference_pb2.CANCEL_OUTCOME_UNKNOWN
    assert server.requests[0].request_id == "gone"


async def test_models_server_and_cancel_by_task(async_client: AsyncClient) -> None:
    assert [model.name for model in await async_client.models()] == ["tiny", "other"]
    assert (await async_client.model("other")).name == "other"
    assert (await async_client.server_info()).version == "1.2.3"
    assert await async_client.cancel("gone") == inference_pb2.CANCEL_OUTCOME_UNKNOWN
