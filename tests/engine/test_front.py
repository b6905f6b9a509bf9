"""The front half as its callers see it: events in order, refusals by field, and an abort on every way out."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fanlight_engine import errors
from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.client import CoreFacts
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import AddRequest, Admitted, FromCore, Generated, Progressed, Rejected
from fanlight_engine.errors import EngineError, OverloadedError, Reason, RequestError
from fanlight_engine.events import Accepted, Delta, Event, Finished, Progress, Usage
from fanlight_engine.front import Front
from fanlight_engine.request import (
    AudioPart,
    Conversation,
    FinishReason,
    Generation,
    ImagePart,
    Message,
    OutputOptions,
    Part,
    RawPrompt,
    Role,
    SamplingOptions,
    TextPart,
    TokenPrompt,
)
from tests.engine.conversations import png, until
from tests.engine.scripted_client import FACTS, ScriptedClient, admitted, completed, saying

HELLO = TextPart("Hello")
PNG = png(100, 80)
PICTURE = ImagePart(PNG)


def user(*parts: Part) -> Conversation:
    return Conversation((Message(Role.USER, parts),))


@contextlib.asynccontextmanager
async def running(checkpoint: Checkpoint, script: Any = None, facts: CoreFacts = FACTS, **settings: Any):
    client = ScriptedClient(script, facts)
    front = Front(EngineConfig(**settings), checkpoint, client)
    await front.start()
    try:
        yield front, client
    finally:
        await front.stop()
        assert not front.running_ids


async def collect(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]


def ids_of(front: Front, text: str) -> list[int]:
    assert front._preparation is not None
    return front._preparation.tokenizer.encode(text, add_special_tokens=False).ids


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


async def test_events_come_in_order_with_usage_last(qwen: Checkpoint):
    async with running(qwen) as (front, client):
        ids = ids_of(front, "the cat looks")
        client._script = saying(ids)
        events = await collect(front.generate(Generation(user(PICTURE, HELLO), SamplingOptions(seed=5)), "r1"))
        accepted, delta, finished, usage = events
        assert isinstance(accepted, Accepted)
        (request,) = client.added
        assert accepted == Accepted("r1", len(request.prompt_ids), request.media[0].embedding_rows, 0)
        assert delta == Delta(0, "the cat looks")
        assert finished == Finished(0, FinishReason.STOP, None, len(ids))
        assert isinstance(usage, Usage)
        assert (usage.prompt_tokens, usage.image_tokens) == (accepted.prompt_tokens, accepted.image_tokens)
        assert (usage.cached_tokens, usage.encoder_cache_hits, usage.preemptions, usage.seed) == (3, 1, 2, 5)
        assert (usage.completion_tokens, usage.images) == (len(ids), 1)
        timings = usage.timings
        assert (timings.queue, timings.encode_images, timings.prefill) == (0.1, 0.2, 0.3)
        assert timings.decode_media > 0
        assert timings.preprocess_media > 0
        assert 0 < timings.time_to_first_token <= timings.total
        assert client.aborted == []


async def test_what_comes_between_two_reads_is_one_delta(llama: Checkpoint):
    async with running(llama) as (front, client):
        stream = front.generate(Generation(user(HELLO), output=OutputOptions(token_ids=True, logprobs=True)), "r")
        first = asyncio.ensure_future(anext(stream))
        await until(lambda: "r" in client.streams)
        core = client.streams["r"]
        core.send(admitted("r", 16), Progressed("r", 0, 0, 7))
        accepted = await first
        assert isinstance(accepted, Accepted)
        assert accepted.cached_tokens == 16
        progress = await anext(stream)
        assert isinstance(progress, Progress)
        assert (progress.prefill_tokens_done, progress.prefill_tokens_total) == (7, accepted.prompt_tokens)
        one, two, *rest = ids_of(front, "the cat")
        core.send(Generated("r", (one,), (-1.0,)), Generated("r", (two, *rest), (-2.0,) * (1 + len(rest))))
        delta = await anext(stream)
        assert isinstance(delta, Delta)
        assert delta.text == "the cat"
        assert [(t.id, t.logprob) for t in delta.tokens] == [(one, -1.0), *((i, -2.0) for i in (two, *rest))]
        core.send(completed("r", FinishReason.LENGTH))
        assert [type(event) for event in await collect(stream)] == [Finished, Usage]


async def test_a_stop_string_ends_the_answer_and_aborts_the_core(llama: Checkpoint):
    async with running(llama) as (front, client):
        ids = [one for word in ("the ", "ci", "ty", " at") for one in ids_of(front, word)]
        client._script = saying(ids)
        options = SamplingOptions(stop=("city",))
        events = await collect(front.generate(Generation(user(HELLO), options, OutputOptions(token_ids=True)), "r"))
        finished = events[-2]
        assert isinstance(finished, Finished)
        assert (finished.reason, finished.stop_sequence) == (FinishReason.STOP_SEQUENCE, "city")
        assert finished.completion_tokens == sum(len(ids_of(front, word)) for word in ("the ", "ci", "ty"))
        assert text_of(events) == "the "
        sent = [token.id for event in events if isinstance(event, Delta) for token in event.tokens]
        assert sent == ids_of(front, "the ")
        assert client.aborted == ["r"]


async def test_a_stop_string_that_only_began_is_text(llama: Checkpoint):
    async with running(llama) as (front, client):
        client._script = saying(ids_of(front, "the ci"), FinishReason.LENGTH)
        events = await collect(front.generate(Generation(user(HELLO), SamplingOptions(stop=("city",))), "r"))
        assert text_of(events) == "the ci"
        finished = events[-2]
        assert isinstance(finished, Finished)
        assert (finished.reason, finished.stop_sequence) == (FinishReason.LENGTH, None)


async def test_closing_the_stream_aborts_the_request(llama: Checkpoint):
    async with running(llama, lambda request: [admitted(request.request_id)]) as (front, client):
        stream = front.generate(Generation(user(HELLO)), "r")
        await anext(stream)
        assert front.running_ids == {"r"}
        await stream.aclose()
        assert client.aborted == ["r"]
        assert front.running_ids == frozenset()


async def test_a_cancelled_task_aborts_the_request(llama: Checkpoint):
    async with running(llama, lambda request: [admitted(request.request_id)]) as (front, client):
        task = asyncio.ensure_future(collect(front.generate(Generation(user(HELLO)), "r")))
        await until(lambda: bool(client.added))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not front.running_ids)
        assert client.aborted == ["r"]


async def test_cancel_by_id_ends_with_reason_and_usage(llama: Checkpoint):
    async with running(llama) as (front, client):
        word = ids_of(front, "the city")
        client._script = lambda request: [admitted("r"), Generated("r", tuple(word))]
        stream = front.generate(Generation(user(HELLO), SamplingOptions(stop=("city at",))), "r")
        assert isinstance(await anext(stream), Accepted)
        assert await anext(stream) == Delta(0, "the ")
        assert front.cancel("r", FinishReason.INTERRUPTED)
        delta, finished, usage = await collect(stream)
        assert delta == Delta(0, "city")
        assert finished == Finished(0, FinishReason.INTERRUPTED, None, len(word))
        assert isinstance(usage, Usage)
        assert "r" in client.aborted
        assert not front.cancel("r")


async def test_cancel_while_the_prompt_is_prepared(qwen: Checkpoint):
    async with running(qwen) as (front, client):
        gate, begun = threading.Event(), threading.Event()
        assert front._preparation is not None
        renderer = front._preparation.renderer
        render = renderer.render

        def held_up(*args: Any):
            begun.set()
            assert gate.wait(20)
            return render(*args)

        renderer.render = held_up  # type: ignore[method-assign]
        task = asyncio.ensure_future(collect(front.generate(Generation(user(HELLO)), "r")))
        await asyncio.to_thread(begun.wait, 20)
        assert front.cancel("r")
        finished, usage = await task
        assert finished == Finished(0, FinishReason.CANCELLED)
        assert isinstance(usage, Usage)
        gate.set()
        assert client.received == []


async def test_an_id_runs_once_at_a_time(llama: Checkpoint):
    async with running(llama, lambda request: [admitted(request.request_id)]) as (front, _):
        stream = front.generate(Generation(user(HELLO)), "r")
        await anext(stream)
        with pytest.raises(errors.DuplicateRequestError):
            await collect(front.generate(Generation(user(HELLO)), "r"))
        assert front.running_ids == {"r"}
        await stream.aclose()
        again = front.generate(Generation(user(HELLO)), "r")
        assert isinstance(await anext(again), Accepted)
        await again.aclose()


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (Reason.OVERLOADED, errors.OverloadedError),
        (Reason.ENGINE_FAILURE, errors.CoreFailureError),
        (Reason.SHUTTING_DOWN, errors.EngineStoppedError),
        (Reason.PROMPT_TOO_LONG, errors.InvalidRequestError),
    ],
)
async def test_refusals_of_the_core_become_exceptions(llama: Checkpoint, reason: Reason, expected: type[EngineError]):
    rejected = Rejected("r", reason.value, "prompt", "because", retry_after=2.5)
    async with running(llama, lambda request: [rejected]) as (front, client):
        with pytest.raises(expected, match="because") as caught:
            await collect(front.generate(Generation(user(HELLO)), "r"))
        if isinstance(caught.value, errors.OverloadedError):
            assert caught.value.retry_after == 2.5
        if isinstance(caught.value, RequestError):
            assert (caught.value.reason, caught.value.violations[0].field) == (reason, "prompt")
        assert client.aborted == []


async def test_a_stopping_engine_ends_its_streams(llama: Checkpoint):
    async with running(llama, lambda request: [admitted(request.request_id)]) as (front, _):
        stream = front.generate(Generation(user(HELLO)), "r")
        await anext(stream)
        await front.stop()
        with pytest.raises(errors.EngineStoppedError):
            await anext(stream)
        with pytest.raises(errors.EngineStoppedError):
            await collect(front.generate(Generation(user(HELLO)), "later"))


async def refused(front: Front, generation: Generation) -> tuple[str, Reason, str]:
    with pytest.raises(RequestError) as caught:
        await collect(front.generate(generation, "r"))
    (violation,) = caught.value.violations
    return violation.field, caught.value.reason, violation.description


BAD_PROMPTS = [
    (Generation(user(ImagePart(b"no picture"))), "conversation.messages[0].parts[0].image", Reason.IMAGE_UNREADABLE),
    (Generation(user(HELLO, ImagePart(b""))), "conversation.messages[0].parts[1].image", Reason.IMAGE_UNREADABLE),
    (Generation(Conversation(())), "conversation.messages", Reason.EMPTY_PROMPT),
    (Generation(user()), "conversation.messages[0].parts", Reason.EMPTY_PROMPT),
    (Generation(RawPrompt(())), "raw.parts", Reason.EMPTY_PROMPT),
    (Generation(TokenPrompt(())), "tokens.ids", Reason.EMPTY_PROMPT),
    (Generation(TokenPrompt((1, 2, 10**6))), "tokens.ids[2]", Reason.TOKEN_OUT_OF_RANGE),
    (Generation(TokenPrompt((1,), (PICTURE,))), "tokens.ids", Reason.IMAGE_COUNT_MISMATCH),
    (Generation(user(HELLO, AudioPart())), "conversation.messages[0].parts[1].audio", Reason.MODALITY_UNSUPPORTED),
    (Generation(user(TextPart("\ud800"))), "conversation.messages[0].parts[0].text", Reason.INVALID_ARGUMENT),
    (Generation(user(*[PICTURE] * 3)), "conversation.messages[0].parts[2].image", Reason.TOO_MANY_IMAGES),
    (Generation(user(TextPart("a b " * 600))), "prompt", Reason.PROMPT_TOO_LONG),
    (Generation(user(TextPart("a" * 10**5))), "prompt", Reason.PROMPT_TOO_LONG),
    (
        Generation(user(HELLO), SamplingOptions(temperature=float("nan"))),
        "config.sampling.temperature",
        Reason.SAMPLING_OUT_OF_RANGE,
    ),
    (Generation(user(HELLO), output=OutputOptions(text=False)), "config.output", Reason.INVALID_ARGUMENT),
    (Generation(user(HELLO), model="other"), "model", Reason.MODEL_NOT_FOUND),
]


async def test_bad_requests_are_refused_by_field_and_the_next_one_is_answered(qwen: Checkpoint):
    async with running(qwen, saying([1, 2]), max_images=2, max_image_bytes=1 << 18) as (front, client):
        for generation, field, reason in BAD_PROMPTS:
            assert (await refused(front, generation))[:2] == (field, reason)
        oversize = ImagePart(PNG + bytes(1 << 18))
        field, reason, text = await refused(front, Generation(RawPrompt((oversize,))))
        assert (field, reason) == ("raw.parts[0].image", Reason.IMAGE_TOO_LARGE)
        assert str(1 << 18) in text
        assert client.received == []
        events = await collect(front.generate(Generation(user(PICTURE, HELLO)), "r"))
        assert isinstance(events[-1], Usage)


async def test_an_image_for_a_text_checkpoint_is_refused(llama: Checkpoint):
    async with running(llama) as (front, _):
        field, reason, text = await refused(front, Generation(user(HELLO, PICTURE)))
        assert (field, reason) == ("conversation.messages[0].parts[1].image", Reason.MODALITY_UNSUPPORTED)
        assert "takes text only" in text


async def test_an_image_that_never_fits_is_refused_with_both_numbers(qwen: Checkpoint):
    facts = CoreFacts(context_length=512, page_size=16, pages=64, vision_cache_bytes=5000, embedding_row_bytes=1000)
    async with running(qwen, saying([1]), facts) as (front, _):
        field, reason, text = await refused(front, Generation(user(PICTURE, HELLO)))
        assert (field, reason) == ("conversation.messages[0].parts[0].image", Reason.IMAGE_TOO_LARGE)
        assert "5000" in text
        small, large = ImagePart(png(10, 10)), ImagePart(png(100, 81))
        assert (await refused(front, Generation(user(small, large))))[0] == "conversation.messages[0].parts[1].image"
        assert await collect(front.generate(Generation(user(small, small)), "r"))


async def test_images_count_towards_the_context(qwen: Checkpoint):
    facts = CoreFacts(context_length=60, page_size=16, pages=64, vision_cache_bytes=1 << 20, embedding_row_bytes=64)
    async with running(qwen, saying([1]), facts) as (front, client):
        assert await collect(front.generate(Generation(user(PICTURE)), "r"))
        assert client.added[0].sampling.max_new_tokens == 60 - len(client.added[0].prompt_ids)
        field, reason, _ = await refused(front, Generation(user(PICTURE, PICTURE, PICTURE)))
        assert (field, reason) == ("prompt", Reason.PROMPT_TOO_LONG)


async def test_a_turns_answer_goes_into_the_next_turns_history(llama: Checkpoint):
    async with running(llama) as (front, client):
        said = [*ids_of(front, "the city"), llama.end_ids[0]]
        client._script = saying(said)
        transcript = front.transcript()
        async for event in front.generate(Generation(user(HELLO), output=OutputOptions(token_ids=True)), "r1"):
            transcript.add(event)
        part = transcript.part()
        assert part == TextPart("the city", tuple(said))
        conversation = Conversation((*user(HELLO).messages, Message(Role.ASSISTANT, (part,)), *user(HELLO).messages))
        await collect(front.generate(Generation(conversation), "r2"))
        first, second = client.added
        length = len(first.prompt_ids) + len(said)
        assert second.prompt_ids[:length] == (*first.prompt_ids, *said)


async def test_text_is_not_held_up_by_a_large_image(qwen: Checkpoint):
    async with running(qwen, saying([1]), media_workers=1) as (front, _):
        gate, begun = threading.Event(), threading.Event()
        assert front._preparation is not None
        assert front._preparation.media is not None
        preprocessor = front._preparation.media._preprocessor
        prepare = preprocessor.prepare

        def held_up(*args: Any):
            begun.set()
            assert gate.wait(20)
            return prepare(*args)

        preprocessor.prepare = held_up  # type: ignore[method-assign]
        slow = asyncio.ensure_future(collect(front.generate(Generation(user(PICTURE)), "slow")))
        await asyncio.to_thread(begun.wait, 20)
        await collect(front.generate(Generation(user(HELLO)), "fast"))
        assert not slow.done()
        gate.set()
        assert isinstance((await slow)[-1], Usage)


async def test_a_checkpoint_without_processor_does_not_start(qwen: Checkpoint, tmp_path: Path):
    front = Front(EngineConfig(), replace(qwen, path=tmp_path), ScriptedClient())
    with pytest.raises(errors.CheckpointError, match="processor"):
        await front.start()
    await front.stop()


async def test_what_the_core_could_not_even_queue_is_refused_before_its_image_is_decoded(qwen: Checkpoint):
    def admits(request: AddRequest) -> list[FromCore]:
        return [admitted(request.request_id)]

    async with running(qwen, admits, max_running_requests=1, max_waiting_requests=1) as (front, _):
        streams = [front.generate(Generation(user(HELLO)), f"r{number}") for number in range(2)]
        for stream in streams:
            assert isinstance(await anext(stream), Accepted)
        broken = Generation(user(ImagePart(b"not an image"), HELLO))
        with pytest.raises(OverloadedError) as refusal:
            await collect(front.generate(broken, "r2"))
        assert refusal.value.retry_after > 0
        for stream in streams:
            await stream.aclose()


async def test_a_request_that_waits_is_told_how_many_are_before_it(llama: Checkpoint):
    def script(request: AddRequest) -> list[FromCore]:
        return [Admitted(request.request_id, 0, 3), *saying([1])(request)[1:]]

    async with running(llama, script) as (front, _):
        events = await collect(front.generate(Generation(user(HELLO)), "r"))
        assert [event.queue_position for event in events if isinstance(event, Progress)] == [3]
