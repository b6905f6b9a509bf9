"""A backend that says what a test tells it to, with the interface of the engine's front half and none of its weight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

from fanlight_engine.client import CoreFacts
from fanlight_engine.config import EngineConfig
from fanlight_engine.events import Accepted, Delta, Event, Finished, Timings, Token, Usage
from fanlight_engine.request import FinishReason, Generation, TextPart

MODEL_NAME = "scripted"
CONTEXT_LENGTH = 512
IMAGE_TOKEN_ID = 5
WAIT_SECONDS = 5.0


def accepted(request_id: str = "") -> Accepted:
    return Accepted(request_id, prompt_tokens=7, image_tokens=4, cached_tokens=2)


def finished(reason: FinishReason = FinishReason.STOP, tokens: int = 2) -> tuple[Event, ...]:
    usage = Usage(7, 4, 2, tokens, images=1, encoder_cache_hits=1, timings=Timings(queue=0.25, total=1.5))
    return Finished(0, reason, completion_tokens=tokens), usage


def answer_events(*pieces: str) -> list[Event]:
    deltas = [Delta(0, piece, (Token(100 + i, -0.5),)) for i, piece in enumerate(pieces)]
    return [accepted(), *deltas, *finished(tokens=len(pieces))]


class Run:
    """One generation under way. The test feeds it; `freed` is set when its generator was closed."""

    def __init__(self, generation: Generation, request_id: str) -> None:
        self.generation = generation
        self.request_id = request_id
        self.freed = asyncio.Event()
        self._feed: asyncio.Queue[Event | Exception | None] = asyncio.Queue()

    def say(self, *events: Event) -> None:
        for event in events:
            self._feed.put_nowait(event)

    def fail(self, error: Exception) -> None:
        self._feed.put_nowait(error)

    def end(self, reason: FinishReason = FinishReason.STOP) -> None:
        self.say(*finished(reason))
        self._feed.put_nowait(None)

    async def events(self) -> AsyncGenerator[Event, None]:
        try:
            while (item := await self._feed.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.freed.set()

    async def wait_until_freed(self) -> None:
        await asyncio.wait_for(self.freed.wait(), WAIT_SECONDS)


class ScriptedTranscript:
    """Text and ids of all deltas."""

    def __init__(self) -> None:
        self._deltas: list[Delta] = []

    def add(self, event: Event) -> None:
        if isinstance(event, Delta):
            self._deltas.append(event)

    def part(self) -> TextPart:
        ids = tuple(token.id for delta in self._deltas for token in delta.tokens)
        return TextPart("".join(delta.text for delta in self._deltas), ids or None)


class ScriptedBackend:
    """Answers "Hello", " world" by itself; with `by_hand` a test drives each generation through `next_run`."""

    def __init__(self, takes_images: bool = True) -> None:
        self.config = EngineConfig()
        self.checkpoint: Any = SimpleNamespace(
            name=MODEL_NAME,
            family=SimpleNamespace(model_type="scripted_vl"),
            takes_images=takes_images,
            vocab_size=1000,
            end_ids=(1, 2),
            image_token_id=IMAGE_TOKEN_ID if takes_images else None,
            sampling_defaults=SimpleNamespace(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0),
            fingerprint="ab" * 32,
            config=SimpleNamespace(get_text_config=lambda: SimpleNamespace(bos_token_id=None)),
        )
        self.core_died = asyncio.Event()
        facts = CoreFacts(CONTEXT_LENGTH, 16, 64, 1 << 20, 64)
        self.client: Any = SimpleNamespace(facts=facts, wait_until_stopped=self.core_died.wait)
        self.by_hand = False
        self.answer = answer_events("Hello", " world")
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.stopped = False
        self.generations: list[Generation] = []
        self._running: dict[str, Run] = {}
        self._runs: asyncio.Queue[Run] = asyncio.Queue()

    async def start(self) -> None:
        await self.may_start.wait()

    async def stop(self) -> None:
        self.stopped = True

    async def next_run(self) -> Run:
        return await asyncio.wait_for(self._runs.get(), WAIT_SECONDS)

    @property
    def running_ids(self) -> list[str]:
        return list(self._running)

    def transcript(self) -> ScriptedTranscript:
        return ScriptedTranscript()

    async def generate(self, generation: Generation, request_id: str) -> AsyncGenerator[Event, None]:
        run = self._running[request_id] = Run(generation, request_id)
        self.generations.append(generation)
        if self.by_hand:
            self._runs.put_nowait(run)
        else:
            run.say(*self.answer)
            run._feed.put_nowait(None)
        events = run.events()
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()
            del self._running[request_id]

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> bool:
        run = self._running.get(request_id)
        if run is None:
            return False
        run.end(reason)
        return True


def as_any(value: object) -> Any:
    """For handing the scripted parts to typed places."""
    return cast(Any, value)
