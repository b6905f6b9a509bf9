"""A medium is prepared once for all that bring it, under its own digest, off the event loop, and kept within bounds."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import AutoProcessor

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import InvalidRequestError, Reason
from fanlight_engine.inputs.guarded_tokenizer import GuardedTokenizer
from fanlight_engine.inputs.media.abandonment import Abandonment
from fanlight_engine.inputs.media.pipeline import MediaPipeline
from fanlight_engine.inputs.media.preprocessing import MediaPreprocessor
from fanlight_engine.inputs.media.wrapped import WrappedProcessor
from fanlight_engine.inputs.validation import MediaItem
from fanlight_engine.inputs.workers import Workers
from fanlight_engine.request import ImagePart, MediaPart
from tests.engine.conversations import encoded, png, until


class Media:
    """A pipeline on a checkpoint's own processor, that counts what is decoded and can be held up."""

    def __init__(self, checkpoint: Checkpoint, **settings: Any) -> None:
        settings.setdefault("media_workers", 1)
        config = EngineConfig(**settings)
        self.processor: Any = AutoProcessor.from_pretrained(checkpoint.path)
        guarded = GuardedTokenizer(self.processor.tokenizer)
        wrapped = WrappedProcessor(config, checkpoint, self.processor, guarded)
        self.preprocessor = MediaPreprocessor(config, checkpoint, wrapped)
        self.workers = Workers(config.media_workers)
        self.pipeline = MediaPipeline(config, self.preprocessor, self.workers)
        self.prepared: list[bytes] = []
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self._prepare = self.preprocessor.prepare
        self.preprocessor.prepare = self._counted  # type: ignore[method-assign]

    def _counted(self, part: MediaPart, digest: bytes, *arguments: Any):
        self.begun.set()
        assert self.gate.wait(20)
        self.prepared.append(digest)
        return self._prepare(part, digest, *arguments)

    async def __call__(self, *pictures: bytes, principal: str = ""):
        items = [MediaItem(f"raw.parts[{i}].image", ImagePart(data)) for i, data in enumerate(pictures)]
        return await self.pipeline.prepare(items, await self.pipeline.inspect(items, principal))


@pytest.fixture(params=["qwen", "llava"])
async def media(request: pytest.FixtureRequest) -> AsyncIterator[Media]:
    made = Media(request.getfixturevalue(request.param))
    yield made
    made.gate.set()
    made.workers.close()


async def test_tensors_are_those_of_the_checkpoints_own_processor(media: Media):
    for size in ((1, 1), (1, 7), (7, 1), (3, 1), (2, 2), (64, 48), (31, 150), (300, 200)):
        data = png(*size)
        (image,) = (await media(data)).media
        outputs = media.processor.image_processor(images=[Image.open(io.BytesIO(data))], return_tensors="np")
        for name, tensor in image.input.tensors.items():
            array = np.frombuffer(tensor.data, np.dtype(tensor.dtype).newbyteorder("<")).reshape(tensor.shape)
            assert (array == np.asarray(outputs[name])).all()
        assert image.input.embedding_rows == image.replacement.rows > 0


async def test_the_same_image_is_prepared_once(media: Media):
    first, second = png(40, 30), png(40, 30, seed=1)
    one = await media(first, second, first)
    assert len(media.prepared) == 2
    assert one.media[0] is one.media[2]
    assert one.decode_seconds > 0
    again = await media(first)
    assert len(media.prepared) == 2
    assert (again.decode_seconds, again.preprocess_seconds) == (0.0, 0.0)
    assert again.media[0].input is one.media[0].input


async def test_equal_pixels_in_other_bytes_or_shapes_are_other_images(media: Media):
    grey = np.random.default_rng(0).integers(0, 256, (30, 100), np.uint8)
    wide, tall = (encoded(Image.fromarray(array), "PNG") for array in (grey, grey.reshape(100, 30)))
    prepared = await media(wide, tall)
    assert prepared.media[0].input.digest != prepared.media[1].input.digest


async def test_callers_share_nothing_that_would_tell_of_each_other(media: Media):
    mine, yours = await media(png(40, 30), principal="me"), await media(png(40, 30), principal="you")
    assert mine.media[0].input.digest != yours.media[0].input.digest
    assert mine.media[0].input.tensors == yours.media[0].input.tensors
    assert len(media.prepared) == 2


async def test_work_that_nobody_waits_for_is_told_so(media: Media):
    told: list[Abandonment] = []
    prepare = media._prepare

    def listening(part: MediaPart, digest: bytes, abandonment: Abandonment | None = None, *arguments: Any, **more: Any):
        assert abandonment is not None
        told.append(abandonment)
        return prepare(part, digest, abandonment, *arguments, **more)

    media._prepare = listening
    media.gate.clear()
    request = asyncio.ensure_future(media(png(40, 30)))
    await asyncio.to_thread(media.begun.wait, 20)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    media.gate.set()
    await media(png(40, 30, seed=4))
    ended: list[str] = []
    with told[0].ending_with(lambda: ended.append("at once")):
        assert ended == ["at once"]
    with told[1].ending_with(lambda: ended.append("never")):
        assert ended == ["at once"]


async def test_digests_depend_on_processor_and_model(qwen: Checkpoint, llava: Checkpoint):
    digests = {Media(checkpoint).preprocessor.inspect(ImagePart(png(40, 30))) for checkpoint in (qwen, llava)}
    assert len(digests) == 2
    assert len(Media(qwen).preprocessor.inspect(ImagePart(png(40, 30)))) == 32


async def test_requests_that_come_together_share_the_work(media: Media):
    media.gate.clear()
    requests = [asyncio.ensure_future(media(png(40, 30))) for _ in range(5)]
    await asyncio.to_thread(media.begun.wait, 20)
    requests[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await requests[0]
    media.gate.set()
    results = await asyncio.gather(*requests[1:])
    assert len(media.prepared) == 1
    assert len({id(result.media[0]) for result in results}) == 1


async def test_work_that_nobody_waits_for_is_not_begun(media: Media):
    media.gate.clear()
    busy = asyncio.ensure_future(media(png(40, 30)))
    await asyncio.to_thread(media.begun.wait, 20)
    queued = asyncio.ensure_future(media(png(40, 30, seed=9)))
    await until(lambda: len(media.pipeline._flights) == 2)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    media.gate.set()
    await busy
    await media(png(40, 30, seed=10))
    assert len(media.prepared) == 2
    assert not media.pipeline._flights


async def test_a_bad_image_is_refused_to_everyone_under_their_own_path(media: Media):
    bad = png(40, 30)[:-60]
    results = await asyncio.gather(media(bad), media(png(9, 9), bad), return_exceptions=True)
    for result, field in zip(results, ("raw.parts[0].image", "raw.parts[1].image"), strict=True):
        assert isinstance(result, InvalidRequestError)
        assert result.violations[0].field == field
        assert result.reason is Reason.IMAGE_UNREADABLE


async def test_the_cache_is_bounded_by_bytes(qwen: Checkpoint):
    media = Media(qwen, media_cache_bytes=0)
    await media(png(40, 30))
    assert media.pipeline.cache.size == 0
    (image,) = (await media(png(40, 30))).media
    media.workers.close()
    media = Media(qwen, media_cache_bytes=image.bytes * 2)
    for seed in (0, 1, 0, 2):
        await media(png(40, 30, seed=seed))
    assert media.pipeline.cache.size == image.bytes * 2
    assert len(media.prepared) == 3
    await media(png(40, 30, seed=0))
    assert len(media.prepared) == 3
    await media(png(40, 30, seed=1))
    assert len(media.prepared) == 4
    media.workers.close()


async def test_decoding_never_runs_on_the_event_loop(media: Media):
    media.gate.clear()
    request = asyncio.ensure_future(media(png(40, 30)))
    await asyncio.to_thread(media.begun.wait, 20)
    assert await asyncio.wait_for(media.workers.run_light(lambda: 7), 10) == 7
    assert not request.done()
    media.gate.set()
    await request
