"""The core in a thread: streams arrive in order and end for a reason, and nobody is left waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.client import CoreFacts, CoreStatistics, error_of
from fanlight_engine.client_in_process import InProcessClient, InProcessStream
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import (
    EMBEDDINGS,
    AddRequest,
    Admitted,
    Completed,
    Encoded,
    EncodeRequest,
    FromCore,
    Generated,
    Rejected,
)
from fanlight_engine.errors import (
    CheckpointError,
    ConfigError,
    CoreFailureError,
    DuplicateRequestError,
    EngineError,
    EngineStoppedError,
    InvalidRequestError,
    OverloadedError,
    Reason,
    StartupError,
)
from fanlight_engine.request import FinishReason
from tests.engine.builders import llava_picture, picture, request, words
from tests.engine.driver import Driver

CONFIG = EngineConfig(torch_threads=1, kv_pages=64, context_length=512)


@pytest_asyncio.fixture(params=[False, True], ids=["plain", "serialised"], scope="module")
async def client(request: pytest.FixtureRequest, llava: Checkpoint) -> AsyncIterator[InProcessClient]:
    client = InProcessClient(CONFIG, llava, serialise=request.param)
    await client.start()
    yield client
    await client.stop()


async def messages_of(stream: InProcessStream) -> list[FromCore]:
    """Everything a stream says until it ends."""
    return [message async for batch in stream for message in batch]


def ids_of(messages: list[FromCore]) -> list[int]:
    return [token for message in messages if isinstance(message, Generated) for token in message.token_ids]


async def test_a_stream_is_admitted_generates_and_completes(client: InProcessClient) -> None:
    said = await messages_of(client.submit(request("one", words(5), llava_picture("a"), words(3), max_new_tokens=6)))
    assert isinstance(said[0], Admitted)
    assert len(ids_of(said)) == 6
    assert isinstance(said[-1], Completed)
    assert said[-1].reason is FinishReason.LENGTH
    assert sum(isinstance(one, Completed | Rejected) for one in said) == 1
    await client.check_integrity()


async def test_streams_beside_each_other_get_what_each_gets_alone(client: InProcessClient, llava: Checkpoint) -> None:
    asked = [request(str(number), words(4 + number, seed=number), max_new_tokens=8) for number in range(6)]
    together = await asyncio.gather(*(messages_of(client.submit(one)) for one in asked))
    driver = Driver(CONFIG, llava)
    for one in asked:
        driver.add(one)
        driver.run()
    assert [ids_of(said) for said in together] == [driver.answers[one.request_id].ids for one in asked]


async def test_a_refused_request_ends_with_its_reason(client: InProcessClient) -> None:
    (said,) = await messages_of(client.submit(request("long", words(2000))))
    assert isinstance(said, Rejected)
    assert said.reason == Reason.PROMPT_TOO_LONG


async def test_an_abort_ends_the_stream_and_frees_the_request(client: InProcessClient) -> None:
    stream = client.submit(request("endless", words(9), max_new_tokens=500))
    seen: list[FromCore] = []
    async for batch in stream:
        seen.extend(batch)
        if ids_of(seen):
            client.abort("endless")
    assert not any(isinstance(one, Completed | Rejected) for one in seen)
    statistics = await client.statistics()
    assert (statistics.running_requests, statistics.waiting_requests) == (0, 0)
    assert statistics.free_pages == statistics.total_pages
    await client.check_integrity()
    client.abort("endless")
    client.abort("never heard of")


async def test_embeddings_come_without_a_generation(client: InProcessClient) -> None:
    asked = EncodeRequest("encode", llava_picture("encoded by a client", tiles=2))
    said = await client.encode(asked)
    assert said.tensors[EMBEDDINGS].shape == (32, 64)
    assert not said.was_cached
    again = await client.encode(asked)
    assert again == Encoded("encode", said.tensors, was_cached=True)
    await client.check_integrity()


async def test_many_media_can_be_encoded_at_once(client: InProcessClient) -> None:
    before = (await client.statistics()).images_encoded
    media = [llava_picture(f"one of {number % 5}") for number in range(20)]
    said = await asyncio.gather(
        *(client.encode(EncodeRequest(str(number), medium)) for number, medium in enumerate(media))
    )
    assert [one.request_id for one in said] == [str(number) for number in range(20)]
    assert all(said[number].tensors == said[number % 5].tensors for number in range(20))
    assert (await client.statistics()).images_encoded - before == 5


async def test_a_medium_that_cannot_be_encoded_raises_what_a_generation_would(client: InProcessClient) -> None:
    with pytest.raises(InvalidRequestError, match="do not fit"):
        await client.encode(EncodeRequest("large", picture("large", 1 << 24)))
    with pytest.raises(CoreFailureError):
        await client.encode(EncodeRequest("broken", picture("nothing in it", 16)))
    await client.check_integrity()


async def test_facts_say_what_fits(client: InProcessClient, llava: Checkpoint) -> None:
    step = CONFIG.max_step_tokens - CONFIG.max_running_requests + 1
    memory, attention = client.facts.memory, client.facts.attention
    assert attention in ("cpu", "reference")
    sizes = (512, 16, 64, CONFIG.vision_cache_bytes, llava.hidden_size * 4)
    assert client.facts == CoreFacts(*sizes, "float32", attention, longest_span=step, memory=memory)
    assert memory.vision_tower_bytes > 0
    assert memory.vision_cache_bytes == CONFIG.vision_cache_bytes


@dataclass
class ScriptedEngine:
    """A core that steps when the test lets it, and says what the test wrote."""

    facts: CoreFacts = field(default_factory=lambda: CoreFacts(64, 16, 8, 0, 1))
    script: list[list[FromCore]] = field(default_factory=list)
    steps: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    stepping: threading.Event = field(default_factory=threading.Event)
    failure: Exception | None = None
    aborted: list[str] = field(default_factory=list)
    encodes: list[str] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        return bool(self.script or self.failure)

    def add(self, asked: AddRequest) -> FromCore:
        return Admitted(asked.request_id, 0, 0)

    def encode(self, asked: EncodeRequest) -> FromCore | None:
        self.encodes.append(asked.request_id)
        return None

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def step(self) -> list[FromCore]:
        self.stepping.set()
        self.steps.acquire()
        if self.failure:
            raise self.failure
        return self.script.pop(0)

    def statistics(self) -> CoreStatistics:
        """`steps` is how many are left."""
        return CoreStatistics(steps=len(self.script))

    def check_integrity(self) -> None:
        raise AssertionError("a page is lost")


async def started(engine: ScriptedEngine, llama: Checkpoint) -> InProcessClient:
    client = InProcessClient(CONFIG, llama, build=lambda *_: engine)  # pyright: ignore[reportArgumentType]
    await client.start()
    return client


def completed(request_id: str) -> Completed:
    return Completed(request_id, FinishReason.LENGTH, 0)


async def test_a_slow_reader_gets_fewer_and_larger_batches(llama: Checkpoint) -> None:
    engine = ScriptedEngine(script=[*([Generated("slow", (number,))] for number in range(5)), [completed("slow")]])
    client = await started(engine, llama)
    stream = client.submit(request("slow", [1]))
    engine.steps.release(6)
    while (await client.statistics()).steps:  # answered between two steps, behind all that those said
        pass
    batches = [batch async for batch in stream]
    assert len(batches) == 1
    assert ids_of(batches[0]) == [0, 1, 2, 3, 4]
    assert isinstance(batches[0][-1], Completed)
    await client.stop()


async def test_late_messages_of_an_aborted_request_never_reach_its_successor(llama: Checkpoint) -> None:
    engine = ScriptedEngine(script=[[Generated("id", (666,)), completed("id")]])
    client = await started(engine, llama)
    client.submit(request("id", [1]))
    await asyncio.to_thread(engine.stepping.wait)
    client.abort("id")
    engine.script.append([Generated("id", (1,)), completed("id")])
    successor = client.submit(request("id", [1]))
    engine.steps.release(2)
    assert ids_of(await messages_of(successor)) == [1]
    assert engine.aborted == ["id"]
    await client.stop()


async def test_a_call_that_is_cancelled_aborts_what_it_wanted_encoded(llama: Checkpoint) -> None:
    engine = ScriptedEngine()
    client = await started(engine, llama)
    call = asyncio.ensure_future(client.encode(EncodeRequest("id", picture("a", 1))))
    await asyncio.sleep(0)
    await client.statistics()  # answered behind what was asked before
    assert engine.encodes == ["id"]
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await client.statistics()
    assert engine.aborted == ["id"]
    await client.stop()


async def test_stopping_ends_what_waits_to_be_encoded(llama: Checkpoint) -> None:
    client = await started(ScriptedEngine(), llama)
    call = asyncio.ensure_future(client.encode(EncodeRequest("id", picture("a", 1))))
    await asyncio.sleep(0)
    await client.statistics()  # answered behind what was asked before
    await client.stop()
    with pytest.raises(EngineStoppedError):
        await call
    with pytest.raises(EngineStoppedError):
        await client.encode(EncodeRequest("late", picture("a", 1)))


async def test_stopping_ends_open_streams_and_refuses_new_ones(llama: Checkpoint) -> None:
    client = await started(ScriptedEngine(), llama)
    stream = client.submit(request("open", [1]))
    assert isinstance((await anext(aiter(stream)))[0], Admitted)
    await client.stop()
    with pytest.raises(EngineStoppedError):
        await messages_of(stream)
    with pytest.raises(EngineStoppedError):
        client.submit(request("late", [1]))
    with pytest.raises(EngineStoppedError):
        await client.statistics()
    await client.stop()


async def test_a_question_that_a_stopping_core_no_longer_reads_is_answered_with_its_end(llama: Checkpoint) -> None:
    engine = ScriptedEngine(script=[[]])
    client = await started(engine, llama)
    await asyncio.to_thread(engine.stepping.wait)
    stopping = asyncio.ensure_future(client.stop())
    await asyncio.sleep(0)
    question = asyncio.ensure_future(client.statistics())
    await asyncio.sleep(0)
    engine.steps.release()
    with pytest.raises(EngineStoppedError):
        await asyncio.wait_for(question, timeout=30)
    await stopping


async def test_a_dead_core_ends_open_streams(llama: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine(failure=RuntimeError("the device is gone"))
    client = await started(engine, llama)
    stream = client.submit(request("open", [1]))
    engine.steps.release()
    with pytest.raises(EngineStoppedError):
        await messages_of(stream)
    with pytest.raises(EngineStoppedError):
        await client.check_integrity()
    assert "the device is gone" in caplog.text
    await client.stop()


async def test_broken_books_are_reported_to_whoever_asks(llama: Checkpoint) -> None:
    client = await started(ScriptedEngine(), llama)
    with pytest.raises(AssertionError, match="a page is lost"):
        await client.check_integrity()
    assert await client.statistics() == CoreStatistics()
    await client.stop()


@pytest.mark.parametrize(
    ("settings", "error", "why"),
    [
        ({"kv_cache_bytes": 100}, ConfigError, "raise kv_cache_bytes"),
        ({"context_length": 1 << 20}, ConfigError, "was made for 2048"),
        ({"device": "abacus"}, ConfigError, "abacus"),
        ({"deterministic": True, "cpu_kernels": False}, ConfigError, "deterministic"),
    ],
)
async def test_a_core_that_cannot_start_says_why(
    settings: dict[str, Any], error: type[StartupError], why: str, llama: Checkpoint
) -> None:
    client = InProcessClient(EngineConfig(torch_threads=1, **settings), llama)
    with pytest.raises(error, match=why):
        await client.start()
    with pytest.raises(EngineStoppedError):
        client.submit(request("late", [1]))
    await client.stop()


async def test_an_error_while_loading_reaches_the_caller_as_it_is(llama: Checkpoint) -> None:
    def build(*_: object) -> Any:
        raise CheckpointError("the weights are elsewhere")

    with pytest.raises(CheckpointError, match="the weights are elsewhere"):
        await InProcessClient(CONFIG, llama, build=build).start()


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (Reason.OVERLOADED, OverloadedError),
        (Reason.SHUTTING_DOWN, EngineStoppedError),
        (Reason.ENGINE_FAILURE, CoreFailureError),
        (Reason.REQUEST_ID_IN_USE, DuplicateRequestError),
        (Reason.IMAGE_TOO_LARGE, InvalidRequestError),
        ("A_REASON_OF_A_LATER_CORE", CoreFailureError),
    ],
)
def test_every_refusal_of_the_core_is_an_exception_of_its_kind(reason: str, error: type[EngineError]) -> None:
    assert type(error_of(Rejected("id", reason, "prompt", "why", 2.0))) is error
