"""Requests that nobody may generate, sent to CountTokens as well: it must refuse them in the very same words.

The one difference is a prompt that is too long, which CountTokens counts, so that a caller learns by how much.
"""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import grpc.aio
import numpy as np

import fanlight
from fanlight.counting import TokenCount
from fanlight.errors import FanlightError
from fanlight.v1 import generation_pb2, media_pb2, model_pb2
from tests.e2e.bad_input import asking, bad_inputs, refusal_of, text
from tests.e2e.comparison import Compared
from tests.e2e.doors import part_of
from tests.e2e.pictures import picture
from tests.e2e.serving import Served
from tests.e2e.token_counts import count
from tests.engine.clips import broken_clips, clip

TOO_LONG = "PROMPT_TOO_LONG"
NOBODYS = "sha256:" + "0" * 64
BROKEN_CLIPS = ("random bytes", "no frames", "sound only", "playlist")


async def compare_refusals(served: Served) -> list[Compared]:
    """A row for each bad request: whether counting refuses it as generating does."""
    model = await served.client.model()
    rows = [await _compare(served, name, generation) for name, generation in _bad_generations(model)]
    rows += [
        await _compare(served, name, asking(part_of(medium), text("Hi")).generation) for name, medium in bad_media()
    ]
    return rows


def _bad_generations(model: model_pb2.Model) -> Iterator[tuple[str, generation_pb2.Generation]]:
    facts = model.special_tokens.image_token_id, model.vocabulary_size, model.context_length
    for bad in bad_inputs(*facts):
        if bad.request.HasField("generation"):
            yield bad.name, bad.request.generation
    image, video = media_pb2.Image(data=picture(0)), media_pb2.Video(data=clip(6))
    special, almost_full = model.special_tokens, [5] * (model.context_length - 8)
    with_picture = generation_pb2.TokensPrompt(ids=[*almost_full, special.image_token_id], images=[image])
    with_clip = generation_pb2.TokensPrompt(ids=[*almost_full, special.video_token_id], videos=[video])
    yield "a picture too many", generation_pb2.Generation(tokens=with_picture)
    yield "a clip too many", generation_pb2.Generation(tokens=with_clip)


def bad_media() -> Iterator[tuple[str, media_pb2.Image | media_pb2.Video]]:
    """Media of every source with something wrong about it, for a model with patches of 8 x 8 pixels."""
    data, shown = picture(0), clip(6)
    numbers = np.zeros((4, 3 * 2 * 8 * 8), np.float32)
    infinite = np.full_like(numbers, np.inf)
    rows = np.zeros((4, 192), np.float32)
    yield "an unknown digest", media_pb2.Image(digest=NOBODYS)
    yield "a malformed digest", media_pb2.Image(digest="md5:1234")
    yield "unknown embeddings", media_pb2.Image(embeddings_id=NOBODYS)
    yield "a URL where none is fetched", media_pb2.Image(url="http://pictures.test/cat.png")
    yield "patches of another grid", media_pb2.Image(patches=fanlight.patches(numbers, (1, 2, 4)))
    yield "patches of an odd grid", media_pb2.Image(patches=fanlight.patches(numbers[:3], (1, 1, 3)))
    yield "patches that are not finite", media_pb2.Image(patches=fanlight.patches(infinite, (1, 2, 2)))
    yield "tiles for a model of patches", media_pb2.Image(tiles=fanlight.tiles(np.zeros((1, 3, 56, 56), np.float32)))
    yield "another model's embeddings", media_pb2.Image(embeddings=fanlight.embeddings(rows, NOBODYS, (1, 4, 4)))
    yield "no room for one embedding", media_pb2.Image(data=data, max_pixels=1)
    yield "contradicting bounds", media_pb2.Image(data=data, min_pixels=9000, max_pixels=3000)
    yield "no embeddings allowed", media_pb2.Image(data=data, max_tokens=0)
    yield "both fps and num_frames", media_pb2.Video(data=shown, fps=2, num_frames=3)
    yield "a negative rate", media_pb2.Video(data=shown, fps=-1)
    yield "no frames asked for", media_pb2.Video(data=shown, num_frames=0)
    yield "too many frames asked for", media_pb2.Video(data=shown, num_frames=100_000)
    yield "an end before the start", media_pb2.Video(data=shown, start=0.4, end=0.2)
    yield "a start beyond the end", media_pb2.Video(data=shown, start=900)
    yield "frames without pictures", media_pb2.Video(frames=media_pb2.Frames())
    yield "a picture as a clip", media_pb2.Video(data=data)
    for name in BROKEN_CLIPS:
        yield f"a broken clip, {name}", media_pb2.Video(data=broken_clips()[name])


async def _compare(served: Served, name: str, generation: generation_pb2.Generation) -> Compared:
    request = asking()
    request.generation.CopyFrom(generation)
    refused = await refusal_of(served.channel, request)
    before = await served.statistics()
    counted = await count(served.channel, generation)
    if await served.statistics() != before:
        return Compared(name, False, "counting made the core work")
    if isinstance(counted, FanlightError):
        generating, counting = _words(refused), _words(counted)
        return Compared(name, generating == counting, f"generating says {generating}, counting {counting}")
    return Compared(name, _says_too_long(refused, counted), f"generating says {_words(refused)}, counting {counted}")


def _words(refused: FanlightError) -> tuple[grpc.StatusCode | None, str | None, str | None, str]:
    return refused.code, refused.field, refused.reason, refused.message


def _says_too_long(refused: FanlightError, counted: TokenCount) -> bool:
    return refused.reason == TOO_LONG and not counted.fits and counted.prompt_tokens >= counted.context_length
