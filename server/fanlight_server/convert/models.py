"""Checkpoint, capacity and settings -> descriptions of the model and of the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fanlight.v1 import generation_pb2, model_pb2, server_pb2
from fanlight_engine.client import CoreFacts
from fanlight_engine.config import EngineConfig
from fanlight_server.chat_session import MAX_WAITING_TURNS
from fanlight_server.convert.events import MAX_MESSAGE_BYTES, duration_of

if TYPE_CHECKING:
    from fanlight_engine.model.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server knows of itself. Times in seconds, sizes in bytes."""

    version: str
    revision: str
    max_receive_message_bytes: int
    chat_setup_timeout: float
    heartbeat_interval: float


def model_of(checkpoint: Checkpoint, facts: CoreFacts, config: EngineConfig) -> model_pb2.Model:
    """The served model and what it takes."""
    modalities = [model_pb2.MODALITY_TEXT, *([model_pb2.MODALITY_IMAGE] if checkpoint.takes_images else [])]
    return model_pb2.Model(
        name=checkpoint.name,
        family=checkpoint.family.model_type,
        modalities=modalities,
        context_length=facts.context_length,
        vocabulary_size=checkpoint.vocab_size,
        limits=_limits(checkpoint, config),
        special_tokens=model_pb2.SpecialTokens(
            eos_token_ids=checkpoint.end_ids,
            bos_token_id=_bos_token_id(checkpoint),
            image_token_id=checkpoint.image_token_id,
        ),
        sampling_defaults=_sampling_defaults(checkpoint),
        fingerprint=f"sha256:{checkpoint.fingerprint}",
    )


def list_models_response(
    checkpoint: Checkpoint, facts: CoreFacts, config: EngineConfig
) -> model_pb2.ListModelsResponse:
    """All models: one today."""
    return model_pb2.ListModelsResponse(models=[model_of(checkpoint, facts, config)])


def get_model_response(checkpoint: Checkpoint, facts: CoreFacts, config: EngineConfig) -> model_pb2.GetModelResponse:
    """The one model."""
    return model_pb2.GetModelResponse(model=model_of(checkpoint, facts, config))


def server_info_response(
    checkpoint: Checkpoint, config: EngineConfig, server: ServerFacts
) -> server_pb2.GetServerInfoResponse:
    """What a client needs to know of the server; needs no loaded engine."""
    return server_pb2.GetServerInfoResponse(
        version=server.version,
        revision=server.revision,
        features=_features(checkpoint, config),
        limits=server_pb2.ServerLimits(
            max_receive_message_bytes=server.max_receive_message_bytes,
            max_send_message_bytes=MAX_MESSAGE_BYTES,
            max_requests=config.max_running_requests + config.max_waiting_requests,
            max_queued_turns=MAX_WAITING_TURNS,
            chat_setup_timeout=duration_of(server.chat_setup_timeout),
            heartbeat_interval=duration_of(server.heartbeat_interval),
        ),
        models=[checkpoint.name],
    )


def _features(checkpoint: Checkpoint, config: EngineConfig) -> list[server_pb2.Feature]:
    features = [
        server_pb2.FEATURE_CHAT,
        server_pb2.FEATURE_RAW_PROMPT,
        server_pb2.FEATURE_TOKENS_PROMPT,
        server_pb2.FEATURE_LOGPROBS,
    ]
    if checkpoint.takes_images:
        features += [server_pb2.FEATURE_IMAGE_DATA]
    if checkpoint.takes_images and config.vision_cache_bytes:
        features += [server_pb2.FEATURE_ENCODER_CACHE]
    if config.prefix_cache:
        features += [server_pb2.FEATURE_PREFIX_CACHE]
    return features


def _limits(checkpoint: Checkpoint, config: EngineConfig) -> model_pb2.ModelLimits:
    limits = model_pb2.ModelLimits(
        max_stop_strings=config.max_stop_strings,
        max_stop_string_characters=config.max_stop_string_characters,
        max_stop_token_ids=config.max_stop_token_ids,
    )
    if checkpoint.takes_images:
        limits.max_images_per_request = config.max_images
        limits.max_image_bytes = config.max_image_bytes
        limits.max_image_pixels = config.max_image_pixels
        limits.max_image_side = config.max_image_side
        limits.max_image_aspect_ratio = config.max_image_aspect_ratio
    return limits


def _bos_token_id(checkpoint: Checkpoint) -> int | None:
    value = getattr(checkpoint.config.get_text_config(), "bos_token_id", None)
    return value if isinstance(value, int) else None


def _sampling_defaults(checkpoint: Checkpoint) -> generation_pb2.Sampling:
    defaults = checkpoint.sampling_defaults
    return generation_pb2.Sampling(
        temperature=defaults.temperature, top_p=defaults.top_p, top_k=defaults.top_k, min_p=defaults.min_p
    )
