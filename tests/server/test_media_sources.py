"""Every source of images and videos over a socket: what reaches the engine, and which field a malformed one names."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from fanlight.v1 import generation_pb2, media_pb2
from fanlight_engine.request import (
    Detail,
    Embeddings,
    FrameOptions,
    Frames,
    ImagePart,
    MediaUrl,
    Patches,
    PatchLayout,
    PixelOptions,
    RawPrompt,
    StoredEmbeddings,
    StoredMedia,
    StoredTensor,
    Tiles,
    TokenPrompt,
    VideoPart,
)
from fanlight_engine.tensor_data import TensorData
from tests.server.conftest import Served
from tests.server.messages import generate, refusal

DIGEST = "sha256:" + "0123456789abcdef" * 4
FINGERPRINT = "sha256:" + "cd" * 32
FLOAT32 = media_pb2.DATA_TYPE_FLOAT32
GRID = media_pb2.Grid(t=1, h=2, w=3)

PIXELS = media_pb2.Tensor(dtype=media_pb2.DATA_TYPE_BFLOAT16, shape=[6, 2], data=bytes(24))
PIXELS_IN_HAND = TensorData("bfloat16", (6, 2), bytes(24))
FILE = media_pb2.TensorFile(digest=DIGEST, name="pixels")
IN_FILE = media_pb2.Tensor(file=FILE)
IN_FILE_IN_HAND = StoredTensor(DIGEST, "pixels")


def patches(**fields: Any) -> media_pb2.Patches:
    return media_pb2.Patches(**{"pixels": PIXELS, "grid": GRID, **fields})


def embeddings(*tensors: media_pb2.NamedTensor, **fields: Any) -> media_pb2.Embeddings:
    named = tensors or (media_pb2.NamedTensor(name="embeddings", tensor=PIXELS),)
    return media_pb2.Embeddings(**{"tensors": named, "model_fingerprint": FINGERPRINT, **fields})


IMAGES: dict[str, tuple[dict[str, Any], Any]] = {
    "data": ({"data": b"png"}, b"png"),
    "digest": ({"digest": DIGEST}, StoredMedia(DIGEST)),
    "url": ({"url": "https://example.com/a.png"}, MediaUrl("https://example.com/a.png")),
    "patches": ({"patches": patches()}, Patches(PIXELS_IN_HAND, (1, 2, 3))),
    "patches in rows, from a file": (
        {"patches": patches(pixels=IN_FILE, layout=media_pb2.PATCH_LAYOUT_ROW_MAJOR)},
        Patches(IN_FILE_IN_HAND, (1, 2, 3), PatchLayout.ROW_MAJOR),
    ),
    "tiles": ({"tiles": media_pb2.Tiles(pixels=PIXELS)}, Tiles(PIXELS_IN_HAND)),
    "tiles of a known picture": (
        {"tiles": media_pb2.Tiles(pixels=IN_FILE, original_size=media_pb2.Size(width=7, height=5))},
        Tiles(IN_FILE_IN_HAND, (7, 5)),
    ),
    "embeddings": ({"embeddings": embeddings()}, Embeddings({"embeddings": PIXELS_IN_HAND}, FINGERPRINT)),
    "embeddings of several layers": (
        {
            "embeddings": embeddings(
                media_pb2.NamedTensor(name="embeddings", tensor=PIXELS),
                media_pb2.NamedTensor(name="deep", tensor=IN_FILE),
                grid=GRID,
            )
        },
        Embeddings({"embeddings": PIXELS_IN_HAND, "deep": IN_FILE_IN_HAND}, FINGERPRINT, (1, 2, 3)),
    ),
    "embeddings by id": ({"embeddings_id": DIGEST}, StoredEmbeddings(DIGEST)),
}

FRAMES = media_pb2.Frames(
    frames=[media_pb2.Frame(data=b"a"), media_pb2.Frame(digest=DIGEST), media_pb2.Frame(url="http://b/")], fps=0.5
)

VIDEOS: dict[str, tuple[dict[str, Any], Any]] = {
    **{name: IMAGES[name] for name in ("data", "digest", "url", "patches", "embeddings", "embeddings by id")},
    "frames": ({"frames": FRAMES}, Frames((b"a", StoredMedia(DIGEST), MediaUrl("http://b/")), 0.5)),
    "frames without a rate": (
        {"frames": media_pb2.Frames(frames=[media_pb2.Frame(data=b"a")])},
        Frames((b"a",), None),
    ),
}


async def parts_that_reach_the_engine(served: Served, *parts: generation_pb2.Part) -> tuple[Any, ...]:
    await served.inference.Generate(generate(raw=generation_pb2.RawPrompt(parts=parts)))
    prompt = served.backend.generations[-1].prompt
    assert isinstance(prompt, RawPrompt)
    return prompt.parts


@pytest.mark.parametrize("name", IMAGES)
async def test_every_source_of_an_image_reaches_the_engine(served: Served, name: str) -> None:
    fields, source = IMAGES[name]
    image = generation_pb2.Part(image=media_pb2.Image(**fields))
    assert await parts_that_reach_the_engine(served, image) == (ImagePart(source),)


@pytest.mark.parametrize("name", VIDEOS)
async def test_every_source_of_a_video_reaches_the_engine(served: Served, name: str) -> None:
    fields, source = VIDEOS[name]
    video = generation_pb2.Part(video=media_pb2.Video(**fields))
    assert await parts_that_reach_the_engine(served, video) == (VideoPart(source),)


async def test_options_that_are_set_reach_the_engine_and_zero_stays_zero(served: Served) -> None:
    image = media_pb2.Image(data=b"a", min_pixels=0, max_pixels=1 << 40, max_tokens=9, detail=media_pb2.DETAIL_LOW)
    video = media_pb2.Video(
        data=b"b", num_frames=0, fps=0.5, start=0.0, end=2.5, max_pixels=4, detail=media_pb2.DETAIL_HIGH
    )
    asked = await parts_that_reach_the_engine(
        served, generation_pb2.Part(image=image), generation_pb2.Part(video=video)
    )
    assert asked == (
        ImagePart(b"a", PixelOptions(0, 1 << 40, 9, Detail.LOW)),
        VideoPart(b"b", PixelOptions(max_pixels=4, detail=Detail.HIGH), FrameOptions(0, 0.5, 0.0, 2.5)),
    )


async def test_a_detail_that_is_not_specified_is_the_default(served: Served) -> None:
    image = media_pb2.Image(data=b"a", detail=media_pb2.DETAIL_UNSPECIFIED)
    assert await parts_that_reach_the_engine(served, generation_pb2.Part(image=image)) == (ImagePart(b"a"),)


async def test_token_prompts_bring_images_and_videos(served: Served) -> None:
    tokens = generation_pb2.TokensPrompt(
        ids=[1, 2], images=[media_pb2.Image(data=b"i")], videos=[media_pb2.Video(digest=DIGEST)]
    )
    await served.inference.Generate(generate(tokens=tokens))
    prompt = served.backend.generations[-1].prompt
    assert prompt == TokenPrompt((1, 2), (ImagePart(b"i"),), (VideoPart(StoredMedia(DIGEST)),))


def image(**fields: Any) -> generation_pb2.Part:
    return generation_pb2.Part(image=media_pb2.Image(**fields))


def video(**fields: Any) -> generation_pb2.Part:
    return generation_pb2.Part(video=media_pb2.Video(**fields))


def tensor(**fields: Any) -> generation_pb2.Part:
    return image(tiles=media_pb2.Tiles(pixels=media_pb2.Tensor(**fields)))


def named(name: str) -> media_pb2.NamedTensor:
    return media_pb2.NamedTensor(name=name, tensor=PIXELS)


MISSING, WRONG = "FIELD_REQUIRED", "FIELD_INVALID"

MALFORMED: dict[str, tuple[generation_pb2.Part, str, str]] = {
    "image without a source": (image(min_pixels=4), MISSING, "image"),
    "video without a source": (video(fps=1), MISSING, "video"),
    "no frames": (video(frames=media_pb2.Frames(fps=1)), MISSING, "video.frames.frames"),
    "frame without a source": (
        video(frames=media_pb2.Frames(frames=[media_pb2.Frame(data=b"a"), media_pb2.Frame()])),
        MISSING,
        "video.frames.frames[1]",
    ),
    "digest of another kind": (image(digest="md5:0123"), WRONG, "image.digest"),
    "digest in capitals": (image(digest=DIGEST.upper()), WRONG, "image.digest"),
    "digest with a line after it": (image(digest=DIGEST + "\n"), WRONG, "image.digest"),
    "digest that walks away": (video(digest="sha256:../../etc/passwd"), WRONG, "video.digest"),
    "empty digest": (image(digest=""), MISSING, "image.digest"),
    "frame with a bad digest": (
        video(frames=media_pb2.Frames(frames=[media_pb2.Frame(digest="x")])),
        WRONG,
        "video.frames.frames[0].digest",
    ),
    "bad id of embeddings": (image(embeddings_id="mine"), WRONG, "image.embeddings_id"),
    "unknown detail": (image(data=b"a", detail=9), WRONG, "image.detail"),
    "unknown detail of a video": (video(data=b"a", detail=9), WRONG, "video.detail"),
    "patches without pixels": (image(patches=media_pb2.Patches(grid=GRID)), MISSING, "image.patches.pixels"),
    "patches without a grid": (video(patches=media_pb2.Patches(pixels=PIXELS)), MISSING, "video.patches.grid"),
    "patches with a hole in the grid": (
        image(patches=patches(grid=media_pb2.Grid(t=1, h=2))),
        MISSING,
        "image.patches.grid.w",
    ),
    "unknown order of patches": (image(patches=patches(layout=7)), WRONG, "image.patches.layout"),
    "tiles without pixels": (image(tiles=media_pb2.Tiles()), MISSING, "image.tiles.pixels"),
    "tiles of a picture without height": (
        image(tiles=media_pb2.Tiles(pixels=PIXELS, original_size=media_pb2.Size(width=3))),
        MISSING,
        "image.tiles.original_size.height",
    ),
    "tensor without content": (tensor(dtype=FLOAT32, shape=[1]), MISSING, "image.tiles.pixels"),
    "numbers without a type": (tensor(shape=[1], data=bytes(4)), MISSING, "image.tiles.pixels.dtype"),
    "numbers of an unknown type": (tensor(dtype=77, shape=[1], data=bytes(4)), WRONG, "image.tiles.pixels.dtype"),
    "numbers without a shape": (tensor(dtype=FLOAT32, data=bytes(4)), MISSING, "image.tiles.pixels.shape"),
    "more dimensions than anyone needs": (
        tensor(dtype=FLOAT32, shape=[1 << 31] * 9, data=bytes(4)),
        WRONG,
        "image.tiles.pixels.shape",
    ),
    "file with a type": (tensor(dtype=FLOAT32, file=FILE), WRONG, "image.tiles.pixels.dtype"),
    "file with a shape": (tensor(shape=[1], file=FILE), WRONG, "image.tiles.pixels.shape"),
    "file without a digest": (tensor(file=media_pb2.TensorFile(name="a")), MISSING, "image.tiles.pixels.file.digest"),
    "file without a name": (tensor(file=media_pb2.TensorFile(digest=DIGEST)), MISSING, "image.tiles.pixels.file.name"),
    "no embeddings": (
        image(embeddings=media_pb2.Embeddings(model_fingerprint=FINGERPRINT)),
        MISSING,
        "image.embeddings.tensors",
    ),
    "embeddings of nobody": (
        image(embeddings=embeddings(model_fingerprint="")),
        MISSING,
        "image.embeddings.model_fingerprint",
    ),
    "embeddings without a name": (image(embeddings=embeddings(named(""))), MISSING, "image.embeddings.tensors[0].name"),
    "embeddings with an endless name": (
        image(embeddings=embeddings(named("n" * 129))),
        WRONG,
        "image.embeddings.tensors[0].name",
    ),
    "embeddings named twice": (
        image(embeddings=embeddings(named("a"), named("a"))),
        WRONG,
        "image.embeddings.tensors[1].name",
    ),
    "name without embeddings": (
        video(embeddings=embeddings(media_pb2.NamedTensor(name="a"))),
        MISSING,
        "video.embeddings.tensors[0].tensor",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_a_malformed_source_is_refused_with_its_whole_path(served: Served, case: str) -> None:
    part, reason, field = MALFORMED[case]
    prompt = generation_pb2.RawPrompt(parts=[generation_pb2.Part(text="look"), part])
    refused = await refusal(served.inference.Generate(generate(raw=prompt)))
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, reason)
    assert refused.fields == [f"generation.raw.parts[1].{field}"]
    assert served.backend.generations == []


async def test_a_malformed_video_of_a_token_prompt_is_named(served: Served) -> None:
    tokens = generation_pb2.TokensPrompt(ids=[1], videos=[media_pb2.Video(data=b"a"), media_pb2.Video()])
    refused = await refusal(served.inference.Generate(generate(tokens=tokens)))
    assert refused.fields == ["generation.tokens.videos[1]"]
