"""CountTokens, Tokenize and Detokenize over a socket."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from fanlight.v1 import generation_pb2, media_pb2, model_pb2
from fanlight_engine.dry_run import MediaCount, TextToken, TokenCount
from fanlight_engine.errors import InvalidRequestError, OverloadedError, Reason, UnknownModelError
from fanlight_engine.inputs.media.processing import MediaDecision
from fanlight_engine.request import Generation, Modality
from tests.server.conftest import Served
from tests.server.messages import conversation, generate, refusal

INVALID = grpc.StatusCode.INVALID_ARGUMENT

PICTURE = MediaCount(
    field="conversation.messages[0].parts[1].image",
    modality=Modality.IMAGE,
    decision=MediaDecision((640, 480), (224, 224), tiles=(3, 2), has_thumbnail=True),
    tokens=12,
    embeddings=10,
    mask_ranges=((4, 6), (11, 4)),
)
CLIP = MediaCount(
    field="conversation.messages[0].parts[2].video",
    modality=Modality.VIDEO,
    decision=MediaDecision(grid=(2, 4, 6), frames=4, frame_times=(0.0, 0.5, 1.0, 1.5)),
    tokens=8,
    embeddings=8,
    mask_ranges=((20, 8),),
)
COUNTED = TokenCount(
    prompt_tokens=40,
    image_tokens=18,
    media=(PICTURE, CLIP),
    kv_pages=3,
    page_size=16,
    context_length=512,
    max_new_tokens=472,
    fits=True,
)


async def count(served: Served, generation: generation_pb2.Generation) -> model_pb2.CountTokensResponse:
    return await served.models.CountTokens(model_pb2.CountTokensRequest(generation=generation))


async def test_a_prompt_is_counted_with_what_becomes_of_its_media(served: Served) -> None:
    served.backend.counted = COUNTED
    counted = await count(served, conversation())
    assert (counted.prompt_tokens, counted.image_tokens, counted.max_new_tokens, counted.fits) == (40, 18, 472, True)
    assert (counted.kv_blocks, counted.kv_block_size, counted.context_length) == (3, 16, 512)
    picture, clip = counted.media
    assert picture.field == "generation.conversation.messages[0].parts[1].image"
    assert (picture.modality, picture.tokens, picture.embeddings) == (media_pb2.MODALITY_IMAGE, 12, 10)
    assert [(one.start, one.length) for one in picture.mask_ranges] == [(4, 6), (11, 4)]
    assert (picture.original_size.width, picture.original_size.height) == (640, 480)
    assert (picture.resized_size.width, picture.resized_size.height) == (224, 224)
    assert (picture.tiles.columns, picture.tiles.rows, picture.tiles.has_thumbnail) == (3, 2, True)
    assert not picture.HasField("grid")
    assert not picture.HasField("frames")
    assert clip.modality == media_pb2.MODALITY_VIDEO
    assert (clip.grid.t, clip.grid.h, clip.grid.w) == (2, 4, 6)
    assert (clip.frames, list(clip.frame_times)) == (4, [0.0, 0.5, 1.0, 1.5])
    assert not clip.HasField("original_size")
    assert not clip.HasField("tiles")


async def test_counting_asks_for_the_very_generation_that_generating_asks_for(served: Served) -> None:
    served.backend.counted = COUNTED
    sampling = generation_pb2.Sampling(seed=7, max_new_tokens=5)
    parts = [generation_pb2.Part(text="what"), generation_pb2.Part(image=media_pb2.Image(data=b"a", max_tokens=3))]
    asked: dict[str, Any] = {
        "raw": generation_pb2.RawPrompt(parts=parts),
        "config": generation_pb2.GenerationConfig(sampling=sampling),
    }
    await count(served, generation_pb2.Generation(**asked))
    await served.inference.Generate(generate(**asked))
    (counted,) = served.backend.asked
    assert isinstance(counted, Generation)
    assert served.backend.generations == [counted]


async def test_what_a_generation_refuses_a_count_refuses_with_the_same_path(served: Served) -> None:
    refused = await refusal(served.models.CountTokens(model_pb2.CountTokensRequest()))
    assert (refused.code, refused.reason, refused.fields) == (INVALID, "FIELD_REQUIRED", ["generation"])
    refused = await refusal(count(served, generation_pb2.Generation()))
    assert refused.fields == ["generation.prompt"]
    served.backend.refusal = InvalidRequestError(
        "conversation.messages[0].parts[0].video", "is none", Reason.VIDEO_UNREADABLE
    )
    refused = await refusal(count(served, conversation()))
    assert (refused.code, refused.reason) == (INVALID, "VIDEO_UNDECODABLE")
    assert refused.fields == ["generation.conversation.messages[0].parts[0].video"]
    served.backend.refusal = OverloadedError("full", 2.0)
    assert (await refusal(count(served, conversation()))).retry_seconds == 2.0


async def test_a_text_becomes_tokens_with_bytes_and_offsets(served: Served) -> None:
    served.backend.tokens = (TextToken(7, b"\xc3", 0), TextToken(8, b"\xa9a", 1))
    response = await served.models.Tokenize(model_pb2.TokenizeRequest(text="éa", parse_special_tokens=True))
    assert [(token.id, token.data, token.offset) for token in response.tokens] == [(7, b"\xc3", 0), (8, b"\xa9a", 1)]
    assert served.backend.asked == [("", "éa", True)]


async def test_ids_become_text(served: Served) -> None:
    served.backend.text = "Hello"
    response = await served.models.Detokenize(model_pb2.DetokenizeRequest(model="scripted", ids=[5, 6]))
    assert response.text == "Hello"
    assert served.backend.asked == [("scripted", (5, 6), False)]


@pytest.mark.parametrize(
    ("method", "request_message", "reason", "field"),
    [
        ("Tokenize", model_pb2.TokenizeRequest(), "FIELD_REQUIRED", "text"),
        ("Tokenize", model_pb2.TokenizeRequest(text="é" * (3 << 19) + "a"), "FIELD_INVALID", "text"),
        ("Detokenize", model_pb2.DetokenizeRequest(), "FIELD_REQUIRED", "ids"),
        ("Detokenize", model_pb2.DetokenizeRequest(ids=[1] * ((1 << 20) + 1)), "FIELD_INVALID", "ids"),
    ],
    ids=["no text", "endless text", "no ids", "endless ids"],
)
async def test_what_cannot_be_split_or_joined_is_refused(
    served: Served, method: str, request_message: Any, reason: str, field: str
) -> None:
    refused = await refusal(getattr(served.models, method)(request_message))
    assert (refused.code, refused.reason, refused.fields) == (INVALID, reason, [field])
    assert served.backend.asked == []


async def test_an_answer_that_fits_no_message_is_refused_with_advice(served: Served) -> None:
    served.backend.tokens = tuple(TextToken(1 << 30, b"a", 1 << 20) for _ in range(250_000))
    served.backend.text = "a" * (3 << 20)
    for call in (
        served.models.Tokenize(model_pb2.TokenizeRequest(text="a")),
        served.models.Detokenize(model_pb2.DetokenizeRequest(ids=[1])),
    ):
        refused = await refusal(call)
        assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE")
        assert "in pieces" in refused.text


async def test_an_unknown_model_is_not_found_whatever_is_asked(served: Served) -> None:
    served.backend.refusal = UnknownModelError("model", "'gpt' is not served", Reason.MODEL_NOT_FOUND)
    asks: dict[str, Any] = {
        "model": served.models.Tokenize(model_pb2.TokenizeRequest(model="gpt", text="a")),
        "generation.model": count(served, generation_pb2.Generation(model="gpt", raw=raw("a"))),
    }
    for field, call in asks.items():
        refused = await refusal(call)
        assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
        assert refused.fields == [field]


async def test_questions_are_refused_while_the_server_drains(served: Served) -> None:
    hurry = asyncio.Event()
    hurry.set()
    await served.server.drain(hurry)
    for call in (
        count(served, conversation()),
        served.models.Tokenize(model_pb2.TokenizeRequest(text="a")),
        served.models.Detokenize(model_pb2.DetokenizeRequest(ids=[1])),
    ):
        refused = await refusal(call)
        assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")


def raw(text: str) -> generation_pb2.RawPrompt:
    return generation_pb2.RawPrompt(parts=[generation_pb2.Part(text=text)])
