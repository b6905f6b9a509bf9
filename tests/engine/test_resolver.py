"""Whatever a source of media is, its bytes or numbers are in hand afterwards; what is not held is named by field."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import numpy as np
import pytest

from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import EMBEDDINGS
from fanlight_engine.errors import (
    InvalidRequestError,
    OverloadedError,
    Reason,
    RequestError,
    UnknownMediaError,
    UnsupportedRequestError,
)
from fanlight_engine.inputs.media.memory_budget import MemoryBudget
from fanlight_engine.inputs.media.processing import MediaError
from fanlight_engine.inputs.media.sources.fetch import UrlFetcher
from fanlight_engine.inputs.media.sources.resolver import SourceResolver, grid_from, seconds_from
from fanlight_engine.inputs.media.sources.safetensors_file import write_embeddings
from fanlight_engine.inputs.media.sources.store import MediaStore
from fanlight_engine.inputs.validation import MediaItem
from fanlight_engine.inputs.workers import Workers
from fanlight_engine.request import (
    Embeddings,
    Frames,
    ImagePart,
    ImageSource,
    MediaPart,
    MediaUrl,
    Patches,
    StoredEmbeddings,
    StoredMedia,
    StoredTensor,
    Tiles,
    VideoPart,
    VideoSource,
)
from fanlight_engine.tensor_data import tensor_data_of

NUMBERS = tensor_data_of(np.arange(6, dtype=np.float32).reshape(2, 3))


class Fetched(UrlFetcher):
    """Gives the URL's own text as the file; refuses the rest."""

    async def fetch(self, url: str, max_bytes: int) -> bytes:
        if "gone" in url:
            raise MediaError(Reason.MEDIA_URL_UNAVAILABLE, "it cannot be fetched")
        return url.encode()[:max_bytes]


class Sources:
    """A resolver over a store in memory."""

    def __init__(self, **settings: object) -> None:
        config = EngineConfig(**{"max_image_bytes": 100, "max_video_bytes": 200, **settings})  # pyright: ignore
        self.store = MediaStore(config)
        self.workers = Workers(1)
        self.memory = MemoryBudget(config.media_memory_bytes, config.max_request_media_bytes)
        self.resolver = SourceResolver(config, self.store, Fetched(config), self.workers)

    async def image(self, source: ImageSource, principal: str = "me") -> object:
        return (await self.parts(ImagePart(source), principal=principal))[0]

    async def video(self, source: VideoSource) -> object:
        return (await self.parts(VideoPart(source)))[0]

    async def parts(self, *parts: MediaPart, principal: str = "me") -> list[object]:
        names = [f"raw.parts[{i}].{'image' if isinstance(one, ImagePart) else 'video'}" for i, one in enumerate(parts)]
        items = [MediaItem(name, part) for name, part in zip(names, parts, strict=True)]
        with self.memory.account() as account:
            return [item.part.source for item in await self.resolver.resolve(items, principal, account)]

    async def kept(self, data: bytes) -> str:
        return (await self.store.put("me", data)).digest


@pytest.fixture
async def sources() -> AsyncIterator[Sources]:
    made = Sources(allow_media_urls=True, media_url_hosts="pictures.example")
    await made.store.start()
    yield made
    await made.store.stop()
    made.workers.close()


async def test_bytes_uploads_and_urls_come_out_as_bytes(sources: Sources):
    assert await sources.image(b"abc") == b"abc"
    assert await sources.image(StoredMedia(await sources.kept(b"kept"))) == b"kept"
    assert await sources.video(MediaUrl("http://pictures.example/x")) == b"http://pictures.example/x"


async def test_each_frame_of_a_sequence_is_resolved(sources: Sources):
    frames = Frames((b"one", StoredMedia(await sources.kept(b"two")), MediaUrl("http://pictures.example/3")), fps=2.0)
    assert await sources.video(frames) == Frames((b"one", b"two", b"http://pictures.example/3"), 2.0)
    missing = Frames((b"one", StoredMedia("sha256:" + "0" * 64)))
    with pytest.raises(UnknownMediaError, match=r"raw\.parts\[0\]\.video\.frames\.frames\[1\]"):
        await sources.video(missing)


async def test_tensors_are_taken_out_of_uploaded_files(sources: Sources):
    digest = await sources.kept(write_embeddings({"pixels": NUMBERS, "other": NUMBERS}, {}))
    assert await sources.image(Patches(StoredTensor(digest, "pixels"), (1, 2, 1))) == Patches(NUMBERS, (1, 2, 1))
    assert await sources.image(Tiles(StoredTensor(digest, "other"))) == Tiles(NUMBERS)
    assert await sources.image(Embeddings({"e": StoredTensor(digest, "other")}, "f")) == Embeddings({"e": NUMBERS}, "f")
    with pytest.raises(InvalidRequestError) as caught:
        await sources.image(Tiles(StoredTensor(digest, "neither")))
    assert caught.value.reason is Reason.TENSOR_INVALID


async def test_embeddings_by_id_bring_their_grid_and_model(sources: Sources):
    file = write_embeddings({EMBEDDINGS: NUMBERS}, {"model_fingerprint": "sha256:ab", "grid": "1,4,2"})
    got = await sources.image(StoredEmbeddings(await sources.kept(file)))
    assert got == Embeddings({EMBEDDINGS: NUMBERS}, "sha256:ab", (1, 4, 2))


async def test_embeddings_of_a_clip_bring_their_time(sources: Sources):
    metadata = {"model_fingerprint": "sha256:ab", "grid": "2,4,2", "seconds_per_step": "0.25"}
    file = write_embeddings({EMBEDDINGS: NUMBERS}, metadata)
    got = await sources.video(StoredEmbeddings(await sources.kept(file)))
    assert got == Embeddings({EMBEDDINGS: NUMBERS}, "sha256:ab", (2, 4, 2), 0.25)
    assert [seconds_from(text) for text in ("", "x", "0", "-1", "nan", "inf", "1e-3")] == [None] * 6 + [0.001]


async def test_what_is_not_held_or_held_for_others_is_not_found(sources: Sources):
    digest = await sources.kept(b"mine")
    for source, principal in ((StoredMedia(digest), "you"), (StoredMedia("sha256:" + "0" * 64), "me")):
        with pytest.raises(UnknownMediaError, match="upload it"):
            await sources.image(source, principal)


async def test_sizes_are_judged_whatever_the_source(sources: Sources):
    large = StoredMedia(await sources.kept(bytes(150)))
    with pytest.raises(InvalidRequestError, match="got 150 encoded bytes, at most 100") as caught:
        await sources.image(large)
    assert caught.value.reason is Reason.IMAGE_TOO_LARGE
    assert await sources.video(large) == bytes(150)


async def test_a_url_that_fails_is_refused_at_its_field(sources: Sources):
    with pytest.raises(InvalidRequestError, match=r"raw\.parts\[0\]\.image: it cannot be fetched") as caught:
        await sources.image(MediaUrl("http://pictures.example/gone"))
    assert caught.value.reason is Reason.MEDIA_URL_UNAVAILABLE


async def test_a_server_that_fetches_nothing_says_so():
    made = Sources()
    with pytest.raises(UnsupportedRequestError, match="fetches no URLs"):
        await made.image(MediaUrl("http://pictures.example/x"))
    made.workers.close()


async def test_the_first_failure_ends_the_request(sources: Sources):
    missing = ImagePart(StoredMedia(f"sha256:{hashlib.sha256().hexdigest()}"))
    with pytest.raises(RequestError, match=r"^raw\.parts\[1\]\.image: "):
        await sources.parts(ImagePart(b"fine"), missing)
    assert sources.memory.used == 0


async def test_frames_are_judged_together(sources: Sources):
    with pytest.raises(InvalidRequestError, match="its frames have 270 encoded bytes, at most 200") as caught:
        await sources.video(Frames((bytes(90),) * 3))
    assert caught.value.reason is Reason.VIDEO_TOO_LARGE


async def test_what_is_read_for_one_request_is_bounded_before_it_is_read():
    made = Sources(max_request_media_bytes=100)
    clip = VideoPart(StoredMedia(await made.kept(bytes(60))))
    assert await made.parts(clip) == [bytes(60)]
    with pytest.raises(InvalidRequestError, match=r"raw\.parts\[1\]\.video: .* 120 bytes, at most 100") as caught:
        await made.parts(clip, clip)
    assert caught.value.reason is Reason.MEDIA_TOO_LARGE
    assert made.memory.used == 0
    made.workers.close()


async def test_what_is_read_for_all_requests_is_bounded_and_given_back():
    made = Sources(media_memory_bytes=100)
    part = VideoPart(StoredMedia(await made.kept(bytes(60))))
    with made.memory.account() as account:
        await made.resolver.resolve([MediaItem("raw.parts[0].video", part)], "me", account)
        with pytest.raises(OverloadedError):
            await made.parts(part)
    assert await made.parts(part) == [bytes(60)]
    assert made.memory.used == 0
    made.workers.close()


@pytest.mark.parametrize("text", ["", "1,2", "1,2,3,4", "a,b,c", "-1,2,3", "1,,2", "1,2,99999999999"])
def test_a_grid_is_three_numbers_or_none(text: str):
    assert grid_from(text) is None
    assert grid_from("1,20,30") == (1, 20, 30)
