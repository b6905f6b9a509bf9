"""A backend that says what a test tells it to, with the interface of the engine's front half and none of its weight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from fanlight_engine.client import CoreFacts
from fanlight_engine.config import EngineConfig
from fanlight_engine.dry_run import EncodedMedia, TextToken, TokenCount
from fanlight_engine.errors import CheckpointError, EngineError, EngineStoppedError
from fanlight_engine.events import Accepted, Delta, Event, Finished, Timings, Token, Usage
from fanlight_engine.inputs.media.sources.store import MediaStore
from fanlight_engine.request import FinishReason, Generation, ImagePart, Message, Modality, TextPart

MODEL_NAME = "scripted"
CONTEXT_LENGTH = 512
IMAGE_TOKEN_ID = 5
VIDEO_TOKEN_ID = 6
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
    """Answers "Hello", " world" by itself; with `by_hand` a test drives each generation through `next_run`.

    Media are kept in the real store. What is asked at the side doors is noted in `asked` and answered with what a test
    put into `counted`, `tokens`, `text` and `encoded`, or with `refusal`; `resolve` resolves the sources of a chat.
    """

    def __init__(self, takes_images: bool = True, config: EngineConfig | None = None) -> None:
        self.config = config or EngineConfig()
        self.checkpoint: Any = SimpleNamespace(
            name=MODEL_NAME,
            family=SimpleNamespace(model_type="scripted_vl"),
            takes_images=takes_images,
            takes_videos=False,
            vocab_size=1000,
            end_ids=(1, 2),
            fingerprint="ab" * 32,
            config=SimpleNamespace(get_text_config=lambda: SimpleNamespace(bos_token_id=None)),
        )
        self.core_died = asyncio.Event()
        facts = CoreFacts(CONTEXT_LENGTH, 16, 64, 1 << 20, 64, dtype="bfloat16")
        self.client: Any = SimpleNamespace(facts=facts, wait_until_stopped=self.core_died.wait)
        self.by_hand = False
        self.answer = answer_events("Hello", " world")
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.misfit: CheckpointError | None = None
        """What a probe of its media finds."""
        self.started = False
        self.stopped = False
        self.kinds = frozenset({Modality.IMAGE, Modality.VIDEO} if takes_images else ())
        self.store = MediaStore(self.config)
        self.asked: list[Any] = []
        self.counted: TokenCount | None = None
        self.tokens: tuple[TextToken, ...] = ()
        self.text = ""
        self.encoded: tuple[EncodedMedia, ...] = ()
        self.refusal: EngineError | None = None
        self.resolve: Callable[[tuple[Message, ...]], Awaitable[tuple[Message, ...]]] | None = None
        self.generations: list[Generation] = []
        self._running: dict[str, Run] = {}
        self._runs: asyncio.Queue[Run] = asyncio.Queue()

    async def start(self) -> None:
        await self.may_start.wait()
        await self.store.start()
        self.started = True

    async def probe(self) -> None:
        if self.misfit is not None:
            raise self.misfit

    async def stop(self) -> None:
        await self.store.stop()
        self.stopped = True

    @property
    def modalities(self) -> frozenset[Modality]:
        if not self.started or self.stopped:
            raise EngineStoppedError("the engine is not running")
        return self.kinds

    @property
    def placeholder_ids(self) -> dict[Modality, int]:
        ids = {Modality.IMAGE: IMAGE_TOKEN_ID, Modality.VIDEO: VIDEO_TOKEN_ID}
        return {kind: ids[kind] for kind in self.kinds}

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

    async def count_tokens(self, generation: Generation) -> TokenCount:
        self._note(generation)
        assert self.counted is not None
        return self.counted

    async def tokenize(self, model: str, text: str, parse_special_tokens: bool) -> tuple[TextToken, ...]:
        self._note(model, text, parse_special_tokens)
        return self.tokens

    async def detokenize(self, model: str, ids: Sequence[int], spell_special_tokens: bool) -> str:
        self._note(model, tuple(ids), spell_special_tokens)
        return self.text

    async def encode_media(self, model: str, parts: Sequence[ImagePart], principal: str) -> tuple[EncodedMedia, ...]:
        self._note(model, tuple(parts), principal)
        return self.encoded

    async def resolve_sources(self, messages: Sequence[Message], principal: str) -> tuple[Message, ...]:
        return await self.resolve(tuple(messages)) if self.resolve is not None else tuple(messages)

    def _note(self, *asked: Any) -> None:
        self.asked.append(asked[0] if len(asked) == 1 else asked)
        if self.refusal is not None:
            raise self.refusal


def as_any(value: object) -> Any:
    """For handing the scripted parts to typed places."""
    return cast(Any, value)
