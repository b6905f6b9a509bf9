"""CountTokens beside generation: what it says of a prompt, and what a generation of the same prompt then uses.

The generation's side is read where it cannot be the same computation by mistake: off its events, off the request that
reached the core, and off the pages that its sequence held when the prompt was computed.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from fanlight.answers import read_usage
from fanlight.counting import MediaCount, TokenCount, read_token_count
from fanlight.errors import FanlightError, error_from_call
from fanlight.v1 import events_pb2, generation_pb2, inference_pb2, model_pb2
from fanlight.v1.inference_pb2_grpc import InferenceServiceStub
from fanlight.v1.model_pb2_grpc import ModelServiceStub
from fanlight_engine.core.build import build_engine
from fanlight_engine.core.engine import Engine
from fanlight_engine.core.messages import AddRequest
from fanlight_engine.core.scheduler import Plan
from fanlight_engine.model.runner import Launched
from tests.e2e.made_models import EMBEDDED, MAKERS, model_path
from tests.e2e.random_requests import RandomMedia, RandomRequest, RandomRequests
from tests.e2e.serving import Served, serving

MODELS = (EMBEDDED, *MAKERS)
PAGE_SIZES = (16, 7, 64)


@dataclass(slots=True)
class CoreWatch:
    """What reached the core of each request, and the pages it held at the end of its prompt."""

    requests: dict[str, AddRequest] = field(default_factory=dict)
    pages: dict[str, int] = field(default_factory=dict)

    def build(self, *arguments: Any) -> Engine:
        """A core that is watched."""
        engine = build_engine(*arguments)
        add, runner = engine.add, engine._runner
        launch = runner.launch

        def watched_add(request: AddRequest) -> Any:
            self.requests[request.request_id] = request
            return add(request)

        def watched_launch(plan: Plan, after: Launched | None = None) -> Launched:
            for chunk in plan.chunks:
                if chunk.end == chunk.sequence.prompt_length:
                    self.pages[chunk.sequence.id] = len(chunk.sequence.pages)
            return launch(plan, after)

        engine.add, runner.launch = watched_add, watched_launch
        return engine


@dataclass(slots=True)
class Counts:
    """How many requests were counted and then generated; which differed, in words; how many there were of each kind.

    `refused` were refused, by both and alike; `too_long` did not fit, and both said so. Neither is among `requests`.
    """

    requests: int = 0
    refused: int = 0
    too_long: int = 0
    unequal: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Used:
    """What a generation said."""

    request_id: str
    accepted: events_pb2.Accepted
    usage: events_pb2.Usage


async def compare_counts(requests: int, models: Sequence[str] = MODELS, seed: int = 8) -> Counts:
    """At least so many random requests, spread over the models; those that are refused come on top."""
    counts = Counts()
    for number, model in enumerate(models):
        share = requests * (number + 1) // len(models) - requests * number // len(models)
        rng = random.Random(f"counts/{seed}/{model}")
        await _compare_model(model, share, rng, PAGE_SIZES[number % len(PAGE_SIZES)], counts)
    return counts


async def _compare_model(name: str, requests: int, rng: random.Random, page_size: int, counts: Counts) -> None:
    watch = CoreWatch()
    async with serving(model_path(name), build=watch.build, page_size=page_size) as served:
        model = await served.client.model()
        media = RandomMedia(served, model, rng)
        await media.upload(served)
        drawn = RandomRequests(media, model, rng)
        goal = counts.requests + requests
        for _ in range(4 * requests):
            if counts.requests >= goal:
                return
            await compare_one(served, watch, drawn.draw(), name, counts)
    counts.unequal.append(f"{name}: {goal - counts.requests} of {requests} requests are missing; too many were refused")


async def compare_one(served: Served, watch: CoreWatch, request: RandomRequest, model: str, counts: Counts) -> None:
    """Count a request, generate it, and note what differs."""
    counted, idle = await _counted_idly(served, request.generation)
    used = await _generated(served.channel, request.generation)
    title = f"{model}, {', '.join(request.kinds)}"
    if not idle:
        counts.unequal.append(f"{title}: counting made the core work")
    if isinstance(counted, FanlightError) or isinstance(used, FanlightError):
        _note_refusal(counted, used, title, counts)
        return
    counts.requests += 1
    counts.kinds.update((model, *request.kinds))
    differences = [
        *_count_differences(counted, used),
        *_core_differences(counted, watch.requests[used.request_id], watch.pages[used.request_id]),
        *_field_differences(counted, request.generation),
    ]
    counts.unequal += [f"{title}: {difference}" for difference in differences]


async def _counted_idly(
    served: Served, generation: generation_pb2.Generation
) -> tuple[TokenCount | FanlightError, bool]:
    """The count or the refusal, and whether the core's counters stood still meanwhile."""
    before = await served.statistics()
    counted = await count(served.channel, generation)
    return counted, await served.statistics() == before


async def count(channel: grpc.aio.Channel, generation: generation_pb2.Generation) -> TokenCount | FanlightError:
    """What CountTokens says, or how it refuses."""
    request = model_pb2.CountTokensRequest(generation=generation)
    try:
        return read_token_count(await ModelServiceStub(channel).CountTokens(request))
    except grpc.aio.AioRpcError as error:
        return error_from_call(error)


async def _generated(channel: grpc.aio.Channel, generation: generation_pb2.Generation) -> Used | FanlightError:
    """What a stream says, or how it is refused."""
    accepted, usage = events_pb2.Accepted(), events_pb2.Usage()
    request = inference_pb2.GenerateStreamRequest(generation=generation)
    try:
        async for message in InferenceServiceStub(channel).GenerateStream(request):
            if message.HasField("accepted"):
                accepted = message.accepted
            elif message.HasField("usage"):
                usage = message.usage
    except grpc.aio.AioRpcError as error:
        return error_from_call(error)
    return Used(accepted.request_id, accepted, usage)


def _note_refusal(counted: object, used: object, title: str, counts: Counts) -> None:
    """Refused by both and alike, or counted as too long and then refused for that."""
    if isinstance(used, FanlightError) and isinstance(counted, TokenCount) and used.reason == "PROMPT_TOO_LONG":
        counts.too_long += 1
        if counted.fits or counted.max_new_tokens or counted.prompt_tokens < counted.context_length:
            counts.unequal.append(f"{title}: {counted} was refused as too long")
        return
    counts.refused += 1
    told = [
        (one.code, one.field, one.reason, one.message) if isinstance(one, FanlightError) else one
        for one in (counted, used)
    ]
    if told[0] != told[1]:
        counts.unequal.append(f"{title}: counting says {told[0]}, generating {told[1]}")


def _count_differences(counted: TokenCount, used: Used) -> Iterator[str]:
    """Between the count and the generation's own events."""
    usage = read_usage(used.usage)
    for name in ("prompt_tokens", "image_tokens"):
        for event in (used.accepted, used.usage):
            yield from _unless_equal(name, getattr(counted, name), getattr(event, name))
    told = [(medium.modality, medium.tokens, medium.embeddings) for medium in counted.media]
    yield from _unless_equal("media", told, [(one.modality, one.tokens, one.embeddings) for one in usage.media])
    left = counted.context_length - counted.prompt_tokens
    yield from _unless_equal("fits", counted.fits, True)
    yield from _unless_equal("max_new_tokens", counted.max_new_tokens, min(1, left))


def _core_differences(counted: TokenCount, request: AddRequest, pages: int) -> Iterator[str]:
    """Between the count and what reached the core."""
    yield from _unless_equal("prompt_tokens in the core", counted.prompt_tokens, len(request.prompt_ids))
    yield from _unless_equal("kv_blocks", counted.kv_blocks, pages)
    in_core = [
        position
        for run in sorted(request.mask_runs, key=lambda run: run.row)
        for position in range(run.start, run.start + run.length)
    ]
    in_order = sorted(counted.media, key=_first_position)
    positions = [position for medium in in_order for run in medium.mask_ranges for position in run]
    yield from _unless_equal("masked positions", positions, in_core)
    rows = [sum(map(len, medium.mask_ranges)) for medium in in_order]
    yield from _unless_equal("rows of each medium", rows, [medium.embedding_rows for medium in request.media])
    yield from _unless_equal("embeddings", [medium.embeddings for medium in in_order], rows)


def _first_position(medium: MediaCount) -> int:
    return medium.mask_ranges[0].start


def _field_differences(counted: TokenCount, generation: generation_pb2.Generation) -> Iterator[str]:
    """Every medium must be named by a path that leads to one of its kind, and each one of the request once."""
    request = model_pb2.CountTokensRequest(generation=generation)
    found = [(medium.modality.value.title(), _descriptor_name(request, medium.field)) for medium in counted.media]
    yield from _unless_equal("kinds of media", [kind for kind, _ in found], [name for _, name in found])
    yield from _unless_equal("media", len({medium.field for medium in counted.media}), _media_of(generation))


def _media_of(generation: generation_pb2.Generation) -> int:
    """Images and videos of a request."""
    messages = generation.conversation.messages
    parts = [*generation.raw.parts, *(part for message in messages for part in message.parts)]
    in_parts = sum(part.WhichOneof("kind") in ("image", "video") for part in parts)
    return in_parts + len(generation.tokens.images) + len(generation.tokens.videos)


def _descriptor_name(message: Any, path: str) -> str:
    """Name of the type that a path leads to, such as generation.raw.parts[2].image."""
    for name, index in re.findall(r"([a-z_]+)(?:\[(\d+)])?", path):
        if not index and not message.HasField(name):
            return f"nothing at {path}"
        message = getattr(message, name)
        if index:
            message = message[int(index)]
    return message.DESCRIPTOR.name


def _unless_equal(name: str, counted: Any, used: Any) -> Iterator[str]:
    if counted != used:
        yield f"{name}: counting says {counted}, generating {used}"
