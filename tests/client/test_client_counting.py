"""Counting, tokenising and encoding: what comes back is typed, and handles are usable."""

from __future__ import annotations

import pytest
from scripted_server import ScriptedServer

import fanlight
from fanlight import (
    AsyncClient,
    Client,
    EncodedImage,
    EncoderUse,
    Grid,
    InvalidRequest,
    MediaUsage,
    Modality,
    Size,
    TextToken,
    TileGrid,
)
from fanlight.v1 import events_pb2
from fanlight.values import known_member


def check_count(count: fanlight.TokenCount) -> None:
    assert (count.prompt_tokens, count.image_tokens, count.kv_blocks, count.kv_block_size) == (60, 32, 4, 16)
    assert (count.context_length, count.max_new_tokens, count.fits) == (2048, 1988, True)
    image, video = count.media
    assert image.field == "generation.conversation.messages[0].parts[0].image"
    assert (image.modality, image.tokens, image.embeddings) == (Modality.IMAGE, 18, 16)
    assert image.mask_ranges == (range(3, 13), range(14, 20))
    assert (image.original_size, image.resized_size) == (Size(640, 480), Size(64, 64))
    assert (image.tiles, image.grid, image.frames) == (TileGrid(2, 1, True), None, None)
    assert (video.modality, video.grid, video.tiles) == (Modality.VIDEO, Grid(t=2, h=4, w=8), None)
    assert (video.original_size, video.frames, video.frame_times) == (None, 4, (0.0, 0.5, 1.0, 1.5))


def test_a_count_is_typed_and_takes_what_a_generation_takes(client: Client, server: ScriptedServer) -> None:
    check_count(client.count_tokens("What?", images=b"1", video=b"2", system="Be brief.", max_new_tokens=5))
    generation = server.requests[0].generation
    assert [message.role for message in generation.conversation.messages] == [1, 2]
    assert generation.config.sampling.max_new_tokens == 5
    with pytest.raises(TypeError, match="'request_id' does not go with this call"):
        client.count_tokens("What?", request_id="mine")  # pyright: ignore[reportCallIssue]


async def test_a_count_by_task(async_client: AsyncClient) -> None:
    check_count(await async_client.count_tokens("What?", images=b"1"))


def test_text_to_tokens_and_back(client: Client, server: ScriptedServer) -> None:
    assert client.tokenize("é", parse_special_tokens=True) == [
        TextToken(0xC3, b"\xc3", 0),
        TextToken(0xA9, b"\xa9", 1),
    ]
    assert client.detokenize(iter([0xC3, 0xA9]), model="other", spell_special_tokens=True) == "é"
    asked, returned = server.requests
    assert (asked.parse_special_tokens, asked.HasField("model")) == (True, False)
    assert (returned.spell_special_tokens, returned.model) == (True, "other")


async def test_text_to_tokens_and_back_by_task(async_client: AsyncClient) -> None:
    assert [token.id for token in await async_client.tokenize("ab")] == [97, 98]
    assert await async_client.detokenize([97, 98]) == "ab"


def test_encoded_images_are_handles(client: Client, server: ScriptedServer) -> None:
    (encoded,) = client.encode_images(fanlight.image(b"1", max_tokens=16))
    assert encoded == EncodedImage(
        encoded.embeddings_id, "sha256:model", Grid(1, 8, 8), embeddings=16, hidden_size=128, size=19, was_cached=True
    )
    client.generate("What?", images=[encoded])
    assert server.requests[0].generation.conversation.messages[0].parts[0].image.embeddings_id == encoded.embeddings_id
    assert client.download(encoded).startswith(b"embeddings of ")


async def test_encoded_images_by_task(async_client: AsyncClient) -> None:
    assert [each.embeddings for each in await async_client.encode_images([b"1", b"2"])] == [16, 16]


def test_usage_tells_each_image(client: Client) -> None:
    usage = client.generate("What?", images=b"1").usage
    assert usage is not None
    assert usage.media == (MediaUsage(Modality.IMAGE, 18, 16, EncoderUse.CACHED),)


def test_values_newer_than_the_client_are_unknown() -> None:
    assert known_member(EncoderUse, events_pb2.EncoderUse, "ENCODER_USE_", 99) is EncoderUse.UNKNOWN
    assert known_member(EncoderUse, events_pb2.EncoderUse, "ENCODER_USE_", 0) is EncoderUse.UNKNOWN


async def test_an_id_that_is_no_token_is_refused_before_it_is_sent(
    client: Client, async_client: AsyncClient, server: ScriptedServer
) -> None:
    with pytest.raises(InvalidRequest, match="ids: got -1; takes whole numbers, 0 and above"):
        client.detokenize([97, -1])
    with pytest.raises(InvalidRequest) as refused:
        await async_client.detokenize([97, "b"])  # pyright: ignore[reportArgumentType]
    assert (refused.value.field, server.requests) == ("ids", [])
