"""The check at load that pictures and clips fit together all the way: processor, positions, vision tower, decoder.

A processor says how many positions a medium takes of a prompt, and a tower how many rows it has for them. Both come
from the checkpoint, from different files, by rules of sizes that nobody can read off; so a few sizes are tried, in the
way that requests go. Nothing of it stays: no pins, nothing in the store, nothing among prepared media.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from uuid import uuid4

from PIL import Image

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.client import EngineClient
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import EMBEDDINGS, EncodeRequest
from fanlight_engine.errors import (
    CheckpointError,
    ConfigError,
    CoreFailureError,
    InvalidRequestError,
    Reason,
    RequestError,
)
from fanlight_engine.events import Event
from fanlight_engine.inputs.media.preprocessing import PreparedMedium
from fanlight_engine.inputs.preparation import Preparation
from fanlight_engine.request import (
    Frames,
    Generation,
    ImagePart,
    MediaPart,
    Modality,
    RawPrompt,
    SamplingOptions,
    TextPart,
    VideoPart,
)

SIZES = ((160, 60), (60, 160), (96, 96), (24, 20), (400, 300))
"""(width, height) of the pictures, the one that goes first may go alone: wide, tall, square, tiny, more than a tile."""
LEAST_SIZE = 1, 1
"""A single row of embeddings where a model sees pictures at their own size. Not ordinary: it may be refused."""
ENOUGH_SECONDS = 20.0
"""After so long no further size is begun; where a tower takes seconds a picture, the first sizes must do."""

_CLIP_SIZE = 96, 64
_CLIP_FRAMES = 4
_PRINCIPAL = "startup-probe"
_FILES = (
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "image_processing_config.json",
)
_TELL_FAILURES = ("fanlight_engine.model.runner", "fanlight_engine.core.engine")
"""Loggers that show a failure of foreign code with its traceback."""

_REASONS_OF_LIMITS = (Reason.IMAGE_TOO_LARGE, Reason.VIDEO_TOO_LARGE, Reason.TOO_MANY_IMAGES, Reason.MEDIA_TOO_LARGE)

Generate = Callable[[Generation, str], AsyncIterator[Event]]


@dataclass(frozen=True, slots=True)
class MediaProbe:
    """One checkpoint, ready to serve; `generate` is that of the Front."""

    config: EngineConfig
    checkpoint: Checkpoint
    preparation: Preparation
    client: EngineClient
    generate: Generate

    async def run(self) -> None:
        """Raises CheckpointError naming the files that do not fit, the size and both counts; ConfigError for limits."""
        kinds = self.preparation.modalities
        with _failures_in_one_line():
            if Modality.IMAGE in kinds:
                await self._try_pictures()
            if Modality.VIDEO in kinds and self.config.max_videos:
                frames = min(_CLIP_FRAMES, self.config.max_video_frames)
                await self._try([_clip(frames)], Modality.VIDEO)

    async def _try_pictures(self) -> None:
        picture, medium = await self._try([ImagePart(_png(size)) for size in SIZES], Modality.IMAGE)
        try:
            with suppress(RequestError):
                await self._encode(ImagePart(_png(LEAST_SIZE)))
            await self._try_prompt(picture)
        finally:
            self.preparation.forget_media([medium])

    async def _try(self, parts: list[MediaPart], modality: Modality) -> tuple[MediaPart, PreparedMedium]:
        """Every medium that is not refused; the first of them is returned.

        One must go through. Raises ConfigError where it is the limits of the settings that refuse them.
        """
        passed: list[tuple[MediaPart, PreparedMedium]] = []
        refusal: RequestError | None = None
        began = time.monotonic()
        for part in parts:
            if passed and time.monotonic() - began > ENOUGH_SECONDS:
                break
            try:
                passed.append((part, await self._encode(part)))
            except RequestError as error:
                refusal = error
        if passed:
            return passed[0]
        assert refusal is not None
        what = f"none of {len(parts)} {modality}s of ordinary sizes is taken ({refusal.violations[0].description})"
        if refusal.reason in _REASONS_OF_LIMITS:
            raise ConfigError(f"the settings leave no room for media: {what}; raise the limits of the engine")
        raise self._misfit(what)

    async def _encode(self, part: MediaPart) -> PreparedMedium:
        """Raises RequestError where the medium is refused as one of a request would be."""
        (medium,) = await self.preparation.prepare_media([part], _PRINCIPAL, self.client.facts)
        self.preparation.forget_media([medium])
        shown, needed = _shown(part), medium.input.embedding_rows
        by_processor = f"by the processor {shown} takes {needed} positions of a prompt"
        try:
            encoded = await self.client.encode(EncodeRequest(f"{_PRINCIPAL}-{uuid4().hex}", medium.input))
        except InvalidRequestError as error:
            if error.reason is not Reason.IMAGE_COUNT_MISMATCH:
                raise
            raise self._misfit(f"{by_processor}, but {error.violations[0].description}") from error
        except CoreFailureError as error:
            raise self._misfit(f"{by_processor}, and the vision tower fails on it; the log says how") from error
        rows = encoded.tensors[EMBEDDINGS].shape[0]
        if rows != needed:
            raise self._misfit(f"{by_processor}, but the vision tower has {rows} rows for it")
        return medium

    async def _try_prompt(self, part: MediaPart) -> None:
        """A token for a prompt with the medium: its positions are worked out and its rows injected, too."""
        one_token = SamplingOptions(max_new_tokens=1, temperature=0.0, seed=0)
        generation = Generation(RawPrompt((part, TextPart("What is it?"))), one_token, principal=_PRINCIPAL)
        try:
            async for _event in self.generate(generation, f"{_PRINCIPAL}-{uuid4().hex}"):
                pass
        except InvalidRequestError as error:
            if error.reason is Reason.PROMPT_TOO_LONG:  # the context was set to less than a picture takes
                return
            raise self._misfit(f"a prompt with {_shown(part)} is refused: {error.violations[0].description}") from error
        except CoreFailureError as error:
            raise self._misfit(f"computing a prompt with {_shown(part)} fails; the log says how") from error

    def _misfit(self, what: str) -> CheckpointError:
        path = self.checkpoint.path
        files = [name for name in _FILES if (path / name).is_file()] or [_FILES[0]]
        return CheckpointError(
            f"{' and '.join(f'{path.name}/{name}' for name in files)} and its config.json do not fit together: {what}; "
            "take these files and the weights from one checkpoint"
        )


@contextmanager
def _failures_in_one_line() -> Iterator[None]:
    """The log tells what failed without its traceback: the files are at fault, and the error names them."""

    def shorten(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            record.msg, record.args = f"{record.getMessage()}: {type(error).__name__}: {error}", ()
            record.exc_info = None
        return True

    loggers = [logging.getLogger(name) for name in _TELL_FAILURES]
    for logger in loggers:
        logger.addFilter(shorten)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(shorten)


def _shown(part: MediaPart) -> str:
    source = part.source
    if isinstance(source, Frames):
        assert isinstance(source.frames[0], bytes)
        return f"a clip of {len(source.frames)} frames of {_size_of(source.frames[0])} pixels"
    assert isinstance(source, bytes)
    return f"a picture of {_size_of(source)} pixels"


def _size_of(file: bytes) -> str:
    with Image.open(io.BytesIO(file)) as image:
        return f"{image.width} x {image.height}"


def _clip(frames: int) -> MediaPart:
    return VideoPart(Frames((_png(_CLIP_SIZE),) * frames, fps=2.0))


def _png(size: tuple[int, int]) -> bytes:
    """A picture that grows brighter from top to bottom."""
    file = io.BytesIO()
    Image.linear_gradient("L").resize(size).convert("RGB").save(file, "PNG")
    return file.getvalue()
