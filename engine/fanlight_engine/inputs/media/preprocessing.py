"""What happens to one picture or clip in a worker thread: judged and digested, then decoded and preprocessed.

The digest names everything that the result depends on: the encoded bytes or tensors, the options, how files are
decoded, the processor's settings and the model. Knows nothing of requests, threads or caches.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import EMBEDDINGS, MediaInput
from fanlight_engine.inputs.expansion import Replacement
from fanlight_engine.inputs.media import images
from fanlight_engine.inputs.media.abandonment import Abandonment
from fanlight_engine.inputs.media.processing import (
    Clip,
    ClipFacts,
    MediaDecision,
    MediaProcessor,
    ProcessedMedia,
)
from fanlight_engine.inputs.media.tensors import embeddings_tensor
from fanlight_engine.inputs.media.video.decode import VIDEO_DECODE_VERSION, decode_clip
from fanlight_engine.inputs.media.video.formats import clip_format
from fanlight_engine.inputs.media.video.frames import clip_of_frames
from fanlight_engine.inputs.media.video.manifest import clip_of_manifest, is_manifest, manifest_digest
from fanlight_engine.inputs.media.video.sampling import window_of
from fanlight_engine.request import (
    Embeddings,
    FrameOptions,
    Frames,
    ImagePart,
    MediaPart,
    Modality,
    Patches,
    Tiles,
    VideoPart,
)
from fanlight_engine.tensor_data import TensorData


@dataclass(frozen=True, slots=True)
class PreparedMedium:
    """One medium ready for the core, what replaces its placeholder, and what it cost in seconds."""

    input: MediaInput
    replacement: Replacement
    decision: MediaDecision
    decode_seconds: float
    preprocess_seconds: float

    @property
    def bytes(self) -> int:
        """Memory that its tensors take."""
        return sum(len(tensor.data) for tensor in self.input.tensors.values())


class MediaPreprocessor:
    """See the module. Parts must be resolved: their sources are bytes, or tensors with their numbers."""

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint, processor: MediaProcessor) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._processor = processor
        self._digest_prefix = _hash_of(
            {
                "decode": [images.DECODE_VERSION, VIDEO_DECODE_VERSION],
                "processor": dict(processor.settings),
                "model": checkpoint.fingerprint,
                "low_detail_tokens": config.low_detail_tokens,
                "frames": [config.max_video_frames, config.default_video_frames],
            }
        )

    @property
    def modalities(self) -> frozenset[Modality]:
        """Kinds of media that the processor takes."""
        return self._processor.modalities

    def placeholder_id(self, modality: Modality) -> int:
        """The id that stands for one medium in a prompt."""
        return self._processor.placeholder_id(modality)

    @staticmethod
    def content_bytes(part: MediaPart) -> int:
        """How many bytes a digest is made of."""
        return sum(map(len, _content_of(part)))

    def inspect(self, part: MediaPart, principal: str = "", is_one_of_several: bool = False) -> bytes:
        """The digest of a principal's medium whose header is within the limits. Raises MediaError.

        A picture that is prepared as one of several is another medium than the same picture alone.
        """
        digest = hashlib.sha256(self._digest_prefix)
        digest.update(hashlib.sha256(principal.encode()).digest())
        digest.update(_hash_of(_options_of(part) | ({"is_one_of_several": True} if is_one_of_several else {})))
        digest.update(self._inspect_file(part))
        for piece in _content_of(part):
            digest.update(hashlib.sha256(piece).digest())
        return digest.digest()

    def prepare(
        self,
        part: MediaPart,
        digest: bytes,
        abandonment: Abandonment | None = None,
        is_one_of_several: bool = False,
    ) -> PreparedMedium:
        """Decode and preprocess. Raises MediaError; where the work is abandoned, something of no interest."""
        source = part.source
        if isinstance(source, Embeddings):
            return self._prepare_embeddings(source, part, digest)
        started = time.perf_counter()
        if isinstance(source, Patches | Tiles):
            decoded = started
            processed = self._processor.process_tensors(source, modality_of(part))
            if isinstance(source, Patches) and source.seconds_per_step is not None:
                processed = replace(processed, seconds_per_grid=source.seconds_per_step)
        elif isinstance(part, ImagePart):
            assert isinstance(source, bytes)
            image = images.decode(source, self._config)
            decoded = time.perf_counter()
            processed = self._processor.process_image(image, part.options, is_one_of_several)
        else:
            clip = self._decode(part, abandonment or Abandonment())
            decoded = time.perf_counter()
            processed = self._processor.process_video(clip, part.options)
        ended = time.perf_counter()
        return PreparedMedium(
            _input_of(processed, modality_of(part), digest),
            processed.replacement,
            processed.decision,
            decoded - started,
            ended - decoded,
        )

    def _inspect_file(self, part: MediaPart) -> bytes:
        """Judge what can be told at once; what a manifest's files hold is part of its digest, too."""
        match part.source:
            case bytes() as data if isinstance(part, ImagePart):
                images.inspect(data, self._config)
            case bytes() as data:
                if is_manifest(data, self._config):
                    return manifest_digest(data, self._config)
                clip_format(data)
            case Frames(frames=frames):
                for frame in frames:
                    assert isinstance(frame, bytes), "resolved before"
                    images.inspect(frame, self._config)
            case _:
                pass
        return b""

    def _decode(self, part: VideoPart, abandonment: Abandonment) -> Clip:
        """The chosen frames of a clip, however it came; its facts are those of the window between start and end."""
        clip = self._decode_whole(part, abandonment)
        window = window_of(clip.facts, part.sampling)
        facts = ClipFacts(clip.facts.frame_times[window.start : window.stop], clip.facts.fps)
        return replace(clip, indices=tuple(index - window.start for index in clip.indices), facts=facts)

    def _decode_whole(self, part: VideoPart, abandonment: Abandonment) -> Clip:
        choose = partial(self._choose_frames, sampling=part.sampling)
        if isinstance(part.source, Frames):
            return clip_of_frames(part.source, choose, self._config)
        assert isinstance(part.source, bytes)
        if is_manifest(part.source, self._config):
            return clip_of_manifest(part.source, part.sampling, self._config)
        return decode_clip(part.source, choose, self._config, abandonment)

    def _choose_frames(self, facts: ClipFacts, sampling: FrameOptions) -> tuple[int, ...]:
        """The processor's choice among the frames between start and end, as indices of the whole clip."""
        window = window_of(facts, sampling)
        inside = ClipFacts(facts.frame_times[window.start : window.stop], facts.fps)
        return tuple(window.start + index for index in self._processor.choose_frames(inside, sampling))

    def _prepare_embeddings(self, embeddings: Embeddings, part: MediaPart, digest: bytes) -> PreparedMedium:
        started = time.perf_counter()
        tensor = embeddings_tensor(embeddings, self._checkpoint)
        rows, modality = tensor.shape[0], modality_of(part)
        medium = MediaInput(
            digest=digest,
            embedding_rows=rows,
            tensors={EMBEDDINGS: tensor},
            modality=modality,
            is_embedded=True,
            grid=embeddings.grid,
            seconds_per_grid=embeddings.seconds_per_step or 1.0,
        )
        replacement = self._processor.replacement_for_rows(rows, modality, embeddings.grid, embeddings.seconds_per_step)
        decision = MediaDecision(grid=embeddings.grid)
        return PreparedMedium(medium, replacement, decision, 0.0, time.perf_counter() - started)


def modality_of(part: MediaPart) -> Modality:
    """What kind of medium a part is."""
    return Modality.IMAGE if isinstance(part, ImagePart) else Modality.VIDEO


def _input_of(processed: ProcessedMedia, modality: Modality, digest: bytes) -> MediaInput:
    return MediaInput(
        digest=digest,
        embedding_rows=processed.replacement.rows,
        tensors=processed.tensors,
        modality=modality,
        grid=processed.decision.grid,
        seconds_per_grid=processed.seconds_per_grid,
    )


def _options_of(part: MediaPart) -> dict[str, Any]:
    """All of a part but its numbers, as JSON values."""
    source = part.source
    described: dict[str, Any] = {"source": type(source).__name__, "options": asdict(part.options)}
    if isinstance(part, VideoPart):
        described["sampling"] = asdict(part.sampling)
    match source:
        case Frames():
            described["fps"] = source.fps
        case Patches():
            described |= {"grid": source.grid, "layout": source.layout, "tensor": _form(source.pixels)}
            described["seconds_per_step"] = source.seconds_per_step
        case Tiles():
            described |= {"original_size": source.original_size, "tensor": _form(source.pixels)}
        case Embeddings():
            described |= {
                "grid": source.grid,
                "fingerprint": source.model_fingerprint,
                "seconds_per_step": source.seconds_per_step,
                "tensors": [(name, _form(tensor)) for name, tensor in sorted(source.tensors.items())],
            }
        case _:
            pass
    return described


def _form(tensor: object) -> tuple[str, tuple[int, ...]]:
    assert isinstance(tensor, TensorData)
    return tensor.dtype, tensor.shape


def _content_of(part: MediaPart) -> Iterator[bytes]:
    """The numbers of a part, piece by piece; each is hashed on its own, so that no two splits are equal."""
    match part.source:
        case bytes() as data:
            yield data
        case Frames(frames=frames):
            yield from (frame for frame in frames if isinstance(frame, bytes))
        case Patches(pixels=TensorData() as tensor) | Tiles(pixels=TensorData() as tensor):
            yield tensor.data
        case Embeddings(tensors=tensors):
            yield from (tensor.data for _, tensor in sorted(tensors.items()) if isinstance(tensor, TensorData))
        case _:
            raise AssertionError(f"{type(part.source).__name__} was not resolved")


def _hash_of(described: dict[str, Any]) -> bytes:
    canonical = json.dumps(described, sort_keys=True, separators=(",", ":"), default=str).encode()
    return hashlib.sha256(canonical).digest()
