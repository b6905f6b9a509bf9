"""Checkpoint, capacity and settings -> descriptions of the model and of the server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fanlight.v1 import generation_pb2, media_pb2, model_pb2, server_pb2
from fanlight_engine.client import CoreFacts
from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import EngineStoppedError
from fanlight_engine.lora import served_names
from fanlight_engine.request import Modality
from fanlight_server.backend import Backend
from fanlight_server.chat_session import MAX_WAITING_TURNS
from fanlight_server.convert.values import MAX_MESSAGE_BYTES, MODALITIES, duration_of

if TYPE_CHECKING:
    from fanlight_engine.checkpoints.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server knows of itself. Times in seconds, sizes in bytes."""

    version: str
    revision: str
    max_receive_message_bytes: int
    chat_setup_timeout: float
    heartbeat_interval: float


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of one model. `modalities` are the kinds of media that it takes, `placeholder_ids` the ids that
    stand for one of each in a token prompt.

    `name` is that of the checkpoint, or of one of its LoRA adapters, which takes what the checkpoint takes.
    """

    name: str
    checkpoint: Checkpoint
    config: EngineConfig
    modalities: frozenset[Modality]
    placeholder_ids: Mapping[Modality, int]

    @property
    def is_lora(self) -> bool:
        """Whether it is an adapter."""
        return self.name != self.checkpoint.name


def model_facts(backend: Backend, name: str = "") -> ModelFacts:
    """What is known now of the model that `name` stands for, by default the checkpoint.

    Whoever has loaded the checkpoint knows better what it takes than it says itself.
    """
    try:
        modalities, placeholder_ids = backend.modalities, backend.placeholder_ids
    except EngineStoppedError:
        modalities, placeholder_ids = _modalities_of_checkpoint(backend.checkpoint), {}
    return ModelFacts(name or backend.checkpoint.name, backend.checkpoint, backend.config, modalities, placeholder_ids)


def list_models_response(models: Iterable[ModelFacts], core: CoreFacts) -> model_pb2.ListModelsResponse:
    """All models, the default one first."""
    return model_pb2.ListModelsResponse(models=[_model(model, core) for model in models])


def get_model_response(model: ModelFacts, core: CoreFacts) -> model_pb2.GetModelResponse:
    """One model."""
    return model_pb2.GetModelResponse(model=_model(model, core))


def server_info_response(
    model: ModelFacts, server: ServerFacts, max_upload_bytes: int
) -> server_pb2.GetServerInfoResponse:
    """What a client needs to know of the server; needs no loaded engine."""
    config = model.config
    return server_pb2.GetServerInfoResponse(
        version=server.version,
        revision=server.revision,
        features=_features(model),
        limits=server_pb2.ServerLimits(
            max_receive_message_bytes=server.max_receive_message_bytes,
            max_send_message_bytes=MAX_MESSAGE_BYTES,
            max_requests=config.max_running_requests + config.max_waiting_requests,
            max_queued_turns=MAX_WAITING_TURNS,
            chat_setup_timeout=duration_of(server.chat_setup_timeout),
            heartbeat_interval=duration_of(server.heartbeat_interval),
            max_upload_bytes=max_upload_bytes,
        ),
        models=served_names(model.checkpoint.name, config.lora),
    )


def _modalities_of_checkpoint(checkpoint: Checkpoint) -> frozenset[Modality]:
    takes = {Modality.IMAGE: checkpoint.takes_images, Modality.VIDEO: checkpoint.takes_videos}
    return frozenset(kind for kind, is_taken in takes.items() if is_taken)


def _model(model: ModelFacts, core: CoreFacts) -> model_pb2.Model:
    checkpoint = model.checkpoint
    kinds = [MODALITIES[kind] for kind in Modality if kind in model.modalities]
    return model_pb2.Model(
        name=model.name,
        family=checkpoint.family.model_type,
        modalities=[media_pb2.MODALITY_TEXT, *kinds],
        context_length=core.context_length,
        vocabulary_size=checkpoint.vocab_size,
        limits=_limits(model),
        special_tokens=model_pb2.SpecialTokens(
            eos_token_ids=checkpoint.end_ids,
            bos_token_id=_bos_token_id(checkpoint),
            image_token_id=model.placeholder_ids.get(Modality.IMAGE),
            video_token_id=model.placeholder_ids.get(Modality.VIDEO),
        ),
        sampling_defaults=_sampling_defaults(model.config),
        fingerprint=f"sha256:{_fingerprint(model, core)}",
        base_model=checkpoint.name if model.is_lora else None,
    )


def _fingerprint(model: ModelFacts, core: CoreFacts) -> str:
    """An adapter's is made of both digests, since it answers with both weights."""
    if not model.is_lora:
        return model.checkpoint.fingerprint
    lora = next(one for one in core.loras if one.name == model.name)
    return hashlib.sha256(bytes.fromhex(model.checkpoint.fingerprint) + lora.digest).hexdigest()


def _features(model: ModelFacts) -> list[server_pb2.Feature]:
    config, takes_images = model.config, Modality.IMAGE in model.modalities
    present = {
        server_pb2.FEATURE_CHAT: True,
        server_pb2.FEATURE_RAW_PROMPT: True,
        server_pb2.FEATURE_TOKENS_PROMPT: True,
        server_pb2.FEATURE_LOGPROBS: True,
        server_pb2.FEATURE_COUNT_TOKENS: True,
        server_pb2.FEATURE_IMAGE_DATA: takes_images,
        server_pb2.FEATURE_VIDEO: Modality.VIDEO in model.modalities,
        server_pb2.FEATURE_MEDIA_TENSORS: bool(model.modalities),
        server_pb2.FEATURE_ENCODER_CACHE: bool(model.modalities) and config.vision_cache_bytes > 0,
        server_pb2.FEATURE_PREFIX_CACHE: config.prefix_cache,
        server_pb2.FEATURE_MEDIA_UPLOAD: config.media_store_bytes > 0,
        server_pb2.FEATURE_MEDIA_URL: config.allow_media_urls,
    }
    return [feature for feature, is_present in present.items() if is_present]


def _limits(model: ModelFacts) -> model_pb2.ModelLimits:
    config = model.config
    limits = model_pb2.ModelLimits(
        max_stop_strings=config.max_stop_strings,
        max_stop_string_characters=config.max_stop_string_characters,
        max_stop_token_ids=config.max_stop_token_ids,
    )
    if Modality.IMAGE in model.modalities:
        limits.max_images_per_request = config.max_images
        limits.max_image_bytes = config.max_image_bytes
        limits.max_image_pixels = config.max_image_pixels
        limits.max_image_side = config.max_image_side
        limits.max_image_aspect_ratio = config.max_image_aspect_ratio
    if Modality.VIDEO in model.modalities:
        limits.max_videos_per_request = config.max_videos
        limits.max_video_bytes = config.max_video_bytes
        limits.max_video_frames = config.max_video_frames
        limits.max_video_seconds = config.max_video_seconds
        limits.max_video_pixels = config.max_video_pixels
    if model.modalities:
        limits.low_detail_tokens = config.low_detail_tokens
    return limits


def _bos_token_id(checkpoint: Checkpoint) -> int | None:
    value = getattr(checkpoint.config.get_text_config(), "bos_token_id", None)
    return value if isinstance(value, int) else None


def _sampling_defaults(config: EngineConfig) -> generation_pb2.Sampling:
    return generation_pb2.Sampling(
        max_new_tokens=config.default_max_new_tokens or None,
        temperature=config.default_temperature,
        top_p=config.default_top_p,
        top_k=config.default_top_k,
        min_p=config.default_min_p,
        repetition_penalty=config.default_repetition_penalty,
        presence_penalty=config.default_presence_penalty,
        frequency_penalty=config.default_frequency_penalty,
    )
