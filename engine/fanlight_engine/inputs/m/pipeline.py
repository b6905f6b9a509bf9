"""Images of a request -> ImageInput: decoded and preprocessed in worker threads, once per distinct image, cached.

    digest --hit--> cache
           --miss--> decode -> the checkpoint's own image processor -> tensors as plain bytes

Requests that bring the same image at the same time share one piece of work; one of them leaving does not end it for the
others. The bookkeeping runs on the event loop alone, so it needs no locks. Knows nothing of prompts or of the core.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image

from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import ImageInput, TensorData
from fanlight_engine.errors import CheckpointError, InvalidRequestError, Reason
from fanlight_engine.inputs import images
from fanlight_engine.inputs.expansion import Replacement, replacement_from
from fanlight_engine.inputs.guarded_tokenizer import GuardedTokenizer
from fanlight_engine.inputs.images import ImageError
from fanlight_engine.inputs.validation import ImageSource
from fanlight_engine.inputs.workers import Workers
from fanlight_engine.model.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """One image ready for the core, what replaces its placeholder, and what it cost in seconds."""

    input: ImageInput
    replacement: Replacement
    decode_seconds: float
    preprocess_seconds: float

    @property
    def bytes(self) -> int:
        """Memory that its tensors take."""
        return sum(len(tensor.data) for tensor in self.input.tensors.values())


@dataclass(frozen=True, slots=True)
class PreparedMedia:
    """The images of one request in order. Seconds are 0 for what came from the cache."""

    images: tuple[PreparedImage, ...] = ()
    decode_seconds: float = 0.0
    preprocess_seconds: float = 0.0


class ImagePreprocessor:
    """What happens to one image in a worker thread. `processor` is the checkpoint's own, as it ships it."""

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint, processor: Any, guarded: GuardedTokenizer) -> None:
        image_token_id = checkpoint.image_token_id
        if image_token_id is None:
            raise CheckpointError("config.json has a vision tower but no image token; give a complete checkpoint")
        self._config = config
        self._checkpoint = checkpoint
        self._processor = processor
        self._guarded = guarded
        self._image_token_id = image_token_id
        settings = {
            "decode": images.DECODE_VERSION,
            "processor": json.loads(processor.image_processor.to_json_string()),
            "model": checkpoint.fingerprint,
        }
        canonical = json.dumps(settings, sort_keys=True, separators=(",", ":")).encode()
        self._digest_prefix = hashlib.sha256(canonical).digest()

    def inspect(self, data: bytes) -> bytes:
        """The digest of an image whose header is within the limits. Raises ImageError."""
        images.inspect(data, self._config)
        digest = hashlib.sha256(self._digest_prefix)
        digest.update(data)
        return digest.digest()

    def prepare(self, data: bytes, digest: bytes) -> PreparedImage:
        """Decode and preprocess. Raises ImageError."""
        started = time.perf_counter()
        image = images.decode(data, self._config)
        decoded = time.perf_counter()
        tensors, replacement = self._process(image)
        processed = time.perf_counter()
        return PreparedImage(
            ImageInput(digest, replacement.rows, tensors), replacement, decoded - started, processed - decoded
        )

    def _process(self, image: Image.Image) -> tuple[dict[str, TensorData], Replacement]:
        try:
            outputs = self._processor.image_processor(images=[image], return_tensors="pt")
            text = self._processor.replace_image_token(outputs, 0)
        except (ValueError, TypeError, IndexError, ZeroDivisionError, RuntimeError) as error:
            raise ImageError(
                Reason.IMAGE_UNREADABLE,
                f"the checkpoint's image processor refuses {image.width} x {image.height} pixels; scale or crop it",
            ) from error
        tensors = {name: _tensor_data(outputs[name]) for name in self._checkpoint.family.vision_tensors}
        return tensors, replacement_from(self._guarded.encode_trusted(text), self._image_token_id)


@dataclass(slots=True)
class _Flight:
    """Work on one digest that is under way, and how many requests wait for it."""

    task: asyncio.Task[PreparedImage]
    waiters: int = 0


@dataclass(slots=True)
class MediaCache:
    """Prepared images by digest, least recently used first; never more than `capacity` bytes."""

    capacity: int
    size: int = 0
    entries: OrderedDict[bytes, PreparedImage] = field(default_factory=OrderedDict)

    def get(self, digest: bytes) -> PreparedImage | None:
        """The image, which becomes the most recently used."""
        if digest in self.entries:
            self.entries.move_to_end(digest)
        return self.entries.get(digest)

    def put(self, image: PreparedImage) -> None:
        """Keep an image unless it alone is larger than the cache."""
        digest = image.input.digest
        if image.bytes > self.capacity or digest in self.entries:
            return
        self.entries[digest] = image
        self.size += image.bytes
        while self.size > self.capacity:
            _, oldest = self.entries.popitem(last=False)
            self.size -= oldest.bytes


class MediaPipeline:
    """Prepares the images of requests. One per front; all methods run on the event loop."""

    def __init__(self, config: EngineConfig, preprocessor: ImagePreprocessor, workers: Workers) -> None:
        self.cache = MediaCache(config.media_cache_bytes)
        self._preprocessor = preprocessor
        self._workers = workers
        self._flights: dict[bytes, _Flight] = {}

    async def inspect(self, sources: Sequence[ImageSource]) -> tuple[bytes, ...]:
        """Digests of images whose headers are within the limits. Raises InvalidRequestError naming the first other."""
        return tuple([await self._inspect_one(source) for source in sources])

    async def prepare(self, sources: Sequence[ImageSource], digests: Sequence[bytes]) -> PreparedMedia:
        """Prepare inspected images, all at once as far as there are workers. Raises InvalidRequestError."""
        tasks = [asyncio.ensure_future(self._prepare_one(*pair)) for pair in zip(sources, digests, strict=True)]
        try:
            results = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return PreparedMedia(
            images=tuple(image for image, _ in results),
            decode_seconds=sum(image.decode_seconds for image, fresh in results if fresh),
            preprocess_seconds=sum(image.preprocess_seconds for image, fresh in results if fresh),
        )

    async def _inspect_one(self, source: ImageSource) -> bytes:
        try:
            return await self._workers.run_light(self._preprocessor.inspect, source.data)
        except ImageError as error:
            raise InvalidRequestError(source.field, error.description, error.reason) from error

    async def _prepare_one(self, source: ImageSource, digest: bytes) -> tuple[PreparedImage, bool]:
        """The image, and whether this call made it (a shared one counts for whoever asked first)."""
        cached = self.cache.get(digest)
        if cached is not None:
            return cached, False
        fresh = digest not in self._flights
        if fresh:
            self._flights[digest] = _Flight(asyncio.ensure_future(self._fly(source.data, digest)))
        flight = self._flights[digest]
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task), fresh
        except ImageError as error:
            raise InvalidRequestError(source.field, error.description, error.reason) from error
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                self._flights.pop(digest, None)
                flight.task.cancel()  # ends it only if no worker has begun

    async def _fly(self, data: bytes, digest: bytes) -> PreparedImage:
        try:
            image = await self._workers.run_media(self._preprocessor.prepare, data, digest)
            self.cache.put(image)
            return image
        finally:
            # A flight that everybody left may have been replaced by a new one of the same digest.
            flight = self._flights.get(digest)
            if flight is not None and flight.task is asyncio.current_task():
                del self._flights[digest]


def _tensor_data(tensor: torch.Tensor) -> TensorData:
    array = np.ascontiguousarray(tensor.detach().cpu().numpy())
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return TensorData(little.dtype.name, tuple(little.shape), little.tobytes())
