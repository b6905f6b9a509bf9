"""What goes to the core is what the checkpoint's own processor makes of a prompt: ids, positions of rows, tensors.

Reference, prompts and checkpoints are those of the parity tests; no model runs here. Text decoders do not differ in
what happens here, so that one stands for all of them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from PIL import Image

from fanlight_engine.checkpoints.families import PixelForm
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import AddRequest
from fanlight_engine.dry_run import TokenCount
from fanlight_engine.front import Front
from fanlight_engine.request import (
    Conversation,
    FrameOptions,
    Frames,
    Generation,
    ImagePart,
    Message,
    Part,
    Prompt,
    RawPrompt,
    Role,
    TextPart,
    VideoPart,
)
from fanlight_engine.tensor_data import array_of
from tests.engine import further_text_checkpoints, text_checkpoints
from tests.engine.conversations import encoded
from tests.engine.parity import MODELS
from tests.engine.random_prompts import (
    CLIP_KINDS,
    Film,
    Medium,
    RandomPrompt,
    random_film,
    random_picture,
    random_prompt,
)
from tests.engine.reference import Reference, _mask_runs
from tests.engine.reference_media import processed
from tests.engine.scripted_client import FACTS, ScriptedClient, saying

BEFORE = ("", "a ", "a\n", "a\n\n")
AFTER = ("", " b", "\n\n\nb", "0")
"""Texts at the border of a medium."""


CHECKPOINTS = [name for name in MODELS if name not in text_checkpoints.MODELS | further_text_checkpoints.MODELS]


@pytest.fixture(scope="module", params=CHECKPOINTS)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(MODELS[request.param](tmp_path_factory.mktemp("preparation") / request.param))


def prompts(reference: Reference) -> Iterator[tuple[str, RandomPrompt]]:
    rng = random.Random(11)
    for kind in reference.kinds:
        prompt = random_prompt(kind, rng, reference.checkpoint.takes_images)
        if reference.checkpoint.family.video_form is PixelForm.FRAMES:
            prompt.cut_films_to_one_length()
        prompt.media = [with_all_frames_where_all_are_asked_for(medium) for medium in prompt.media]
        yield kind, prompt


def with_all_frames_where_all_are_asked_for(medium: Medium) -> Medium:
    """Some processors show fewer frames than were asked for, where a clip is short; we show what was asked for."""
    if isinstance(medium, Film) and medium.num_frames is not None and medium.num_frames >= len(medium.frames):
        return replace(medium, num_frames=None)
    return medium


async def test_the_core_gets_what_the_checkpoints_own_processor_makes(reference: Reference) -> None:
    front, client = await started(reference)
    try:
        for kind, prompt in prompts(reference):
            ours = as_ours(prompt, reference)
            counted = await front.count_tokens(Generation(ours))
            request = await request_of(front, client, ours)
            check_dry_run(counted, request)
            ids = reference.inputs(prompt)["input_ids"][0]
            assert request.prompt_ids == tuple(ids.tolist()), kind
            assert request.mask_runs == _mask_runs(reference._is_medium(ids).tolist()), kind
            shown = reference._in_order(prompt)
            assert len(request.media) == len(shown)
            for own, medium in zip(request.media, shown, strict=True):
                theirs = reference.media_input(medium, len(prompt.pictures))
                assert (own.modality, own.embedding_rows) == (theirs.modality, theirs.embedding_rows), kind
                assert own.tensors.keys() == theirs.tensors.keys()
                for name, tensor in theirs.tensors.items():
                    assert (array_of(own.tensors[name]) == array_of(tensor)).all(), (kind, name)
                if theirs.grid is not None:
                    assert own.grid == theirs.grid
                if reference.checkpoint.family.reads_seconds_per_grid:
                    assert own.seconds_per_grid == pytest.approx(theirs.seconds_per_grid)
    finally:
        await front.stop()


async def test_text_beside_a_medium_is_tokenised_together_with_what_the_medium_becomes(reference: Reference) -> None:
    """New lines and spaces are what tokenizers join; a raw prompt puts them where no template does."""
    family, rng = reference.checkpoint.family, random.Random(5)
    if not reference.checkpoint.takes_images or family.text_after_media:
        return
    processor = reference.processor
    media: list[Medium] = [random_picture(rng)]
    tokens = [f"{family.image_prefix}{processor.image_token}{family.image_suffix}"]
    if any(kind in reference.kinds for kind in CLIP_KINDS):
        media.append(random_film("clip", rng))
        tokens.append(f"{family.video_prefix}{processor.video_token}{family.video_suffix}")
    front, client = await started(reference)
    try:
        for medium, token in zip(media, tokens, strict=True):
            for before, after in itertools.product(BEFORE, AFTER):
                raw = RawPrompt((TextPart(before), as_part(medium), TextPart(after)))
                request = await request_of(front, client, raw)
                theirs = processed(processor, family, before + token + after, [medium], add_special_tokens=True)
                ids = theirs["input_ids"][0]
                assert request.prompt_ids == tuple(ids.tolist()), (before, after)
                assert request.mask_runs == _mask_runs(reference._is_medium(ids).tolist())
    finally:
        await front.stop()


def check_dry_run(counted: TokenCount, request: AddRequest) -> None:
    """A dry run counts what a generation of the same prompt then uses."""
    assert counted.prompt_tokens == len(request.prompt_ids)
    assert counted.image_tokens == sum(run.length for run in request.mask_runs)
    ranges = sorted(one for medium in counted.media for one in medium.mask_ranges)
    assert covered(ranges) == covered([(run.start, run.length) for run in request.mask_runs])
    for medium in counted.media:
        assert medium.embeddings == sum(length for _, length in medium.mask_ranges)


async def started(reference: Reference) -> tuple[Front, ScriptedClient]:
    client = ScriptedClient(saying([1]), FACTS)
    front = Front(EngineConfig(media_workers=1), reference.checkpoint, client)
    await front.start()
    return front, client


async def request_of(front: Front, client: ScriptedClient, prompt: Prompt) -> AddRequest:
    client.received.clear()
    async for _ in front.generate(Generation(prompt), "request"):
        pass
    (request,) = client.added
    return request


def as_ours(prompt: RandomPrompt, reference: Reference) -> Prompt:
    """The same prompt as callers of the engine send it."""
    media = iter(prompt.media)
    messages: list[Message] = []
    for message in prompt.messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        ours = tuple(TextPart(one["text"]) if one["type"] == "text" else as_part(next(media)) for one in parts)
        messages.append(Message(Role(message["role"]), ours))
    if not reference.checkpoint.family.text_after_media:
        return Conversation(tuple(messages))
    (message,) = messages
    return RawPrompt(tuple(sorted(message.parts, key=lambda part: isinstance(part, TextPart))))


def as_part(medium: Medium) -> Part:
    if not isinstance(medium, Film):
        return ImagePart(encoded(medium, "PNG"))
    sampling = FrameOptions(num_frames=medium.num_frames or len(medium.frames))
    if medium.file is not None:
        return VideoPart(medium.file, sampling=sampling)
    return VideoPart(
        Frames(tuple(encoded(Image.fromarray(frame), "PNG") for frame in medium.frames), medium.fps), sampling=sampling
    )


def covered(ranges: list[tuple[int, int]]) -> list[int]:
    return [position for start, length in ranges for position in range(start, start + length)]
