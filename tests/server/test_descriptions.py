"""What the server says of itself and of its model: modalities, limits, special tokens, features."""

from __future__ import annotations

import pytest

from fanlight.v1 import media_pb2, model_pb2, server_pb2
from fanlight_engine.config import EngineConfig
from fanlight_engine.request import Modality
from tests.server.conftest import Served, start_server, stop_server
from tests.server.scripted_backend import ScriptedBackend


async def model_of(served: Served) -> model_pb2.Model:
    return (await served.models.GetModel(model_pb2.GetModelRequest())).model


async def info_of(served: Served) -> server_pb2.GetServerInfoResponse:
    return await served.info.GetServerInfo(server_pb2.GetServerInfoRequest())


async def features_with(config: EngineConfig, takes_images: bool = True) -> set[int]:
    served = await start_server(ScriptedBackend(takes_images, config))
    await served.server.load()
    features = {int(feature) for feature in (await info_of(served)).features}
    await stop_server(served)
    return features


async def test_the_model_is_described(served: Served) -> None:
    model = await model_of(served)
    assert (model.name, model.family, model.context_length) == ("scripted", "scripted_vl", 512)
    kinds = [media_pb2.MODALITY_TEXT, media_pb2.MODALITY_IMAGE, media_pb2.MODALITY_VIDEO]
    assert list(model.modalities) == kinds
    assert list(model.special_tokens.eos_token_ids) == [1, 2]
    assert (model.special_tokens.image_token_id, model.special_tokens.video_token_id) == (5, 6)
    assert not model.special_tokens.HasField("bos_token_id")
    assert model.fingerprint == "sha256:" + "ab" * 32
    listed = await served.models.ListModels(model_pb2.ListModelsRequest())
    assert list(listed.models) == [model]


async def test_the_sampling_defaults_that_hold_are_told(served: Served) -> None:
    told = (await model_of(served)).sampling_defaults
    assert (told.temperature, told.top_p, told.top_k, told.min_p) == (0.0, 1.0, 0, 0.0)
    assert (told.repetition_penalty, told.presence_penalty, told.frequency_penalty) == (1.0, 0.0, 0.0)
    assert not told.HasField("max_new_tokens"), "unset is the rest of the context"
    chosen = EngineConfig(
        default_temperature=0.5,
        default_top_k=20,
        default_max_new_tokens=64,
        default_repetition_penalty=1.25,
        default_frequency_penalty=0.5,
    )
    other = await start_server(ScriptedBackend(config=chosen))
    await other.server.load()
    told = (await model_of(other)).sampling_defaults
    assert (told.temperature, told.top_k, told.max_new_tokens) == (0.5, 20, 64)
    assert (told.repetition_penalty, told.presence_penalty, told.frequency_penalty) == (1.25, 0.0, 0.5)
    await stop_server(other)


async def test_the_limits_of_images_and_videos_are_told(served: Served) -> None:
    limits, config = (await model_of(served)).limits, served.backend.config
    assert limits.max_images_per_request == config.max_images
    assert limits.max_image_bytes == config.max_image_bytes
    assert limits.max_videos_per_request == config.max_videos
    assert limits.max_video_bytes == config.max_video_bytes
    assert limits.max_video_frames == config.max_video_frames
    assert limits.max_video_seconds == config.max_video_seconds
    assert limits.max_video_pixels == config.max_video_pixels
    assert limits.low_detail_tokens == config.low_detail_tokens


async def test_what_is_loaded_says_what_it_takes_whatever_the_checkpoint_says(served: Served) -> None:
    served.backend.kinds = frozenset({Modality.VIDEO})
    model = await model_of(served)
    assert list(model.modalities) == [media_pb2.MODALITY_TEXT, media_pb2.MODALITY_VIDEO]
    assert model.limits.max_images_per_request == 0
    assert model.limits.max_videos_per_request > 0
    features = (await info_of(served)).features
    assert server_pb2.FEATURE_VIDEO in features
    assert server_pb2.FEATURE_IMAGE_DATA not in features


async def test_while_loading_the_checkpoint_says_what_it_takes() -> None:
    loading = await start_server(ScriptedBackend())
    features = (await info_of(loading)).features
    assert server_pb2.FEATURE_IMAGE_DATA in features
    assert server_pb2.FEATURE_VIDEO not in features, "the scripted checkpoint names images only"
    loading.backend.checkpoint.takes_videos = True
    assert server_pb2.FEATURE_VIDEO in (await info_of(loading)).features
    await stop_server(loading)


async def test_the_server_says_what_a_client_needs(served: Served) -> None:
    info = await info_of(served)
    assert info.version
    assert list(info.models) == ["scripted"]
    assert info.limits.max_receive_message_bytes == 32 << 20
    assert info.limits.max_send_message_bytes == 3 << 20
    assert info.limits.max_requests == 288
    assert info.limits.max_queued_turns == 8
    assert info.limits.heartbeat_interval.ToTimedelta().total_seconds() == 15
    assert info.limits.max_upload_bytes == served.backend.store.max_object_bytes > 0


@pytest.mark.parametrize(
    ("without", "feature"),
    [
        (EngineConfig(media_store_bytes=0), server_pb2.FEATURE_MEDIA_UPLOAD),
        (EngineConfig(vision_cache_bytes=0), server_pb2.FEATURE_ENCODER_CACHE),
        (EngineConfig(prefix_cache=False), server_pb2.FEATURE_PREFIX_CACHE),
    ],
)
async def test_what_is_turned_off_is_no_feature(served: Served, without: EngineConfig, feature: int) -> None:
    assert feature in (await info_of(served)).features
    assert feature not in await features_with(without)


async def test_urls_are_a_feature_only_where_they_are_allowed(served: Served) -> None:
    assert server_pb2.FEATURE_MEDIA_URL not in (await info_of(served)).features
    allowing = EngineConfig(allow_media_urls=True, media_url_hosts="example.com")
    assert server_pb2.FEATURE_MEDIA_URL in await features_with(allowing)


async def test_a_model_without_eyes_has_no_features_of_media(served: Served) -> None:
    of_media = {server_pb2.FEATURE_IMAGE_DATA, server_pb2.FEATURE_VIDEO, server_pb2.FEATURE_MEDIA_TENSORS}
    assert of_media <= set((await info_of(served)).features)
    blind = await features_with(EngineConfig(), takes_images=False)
    assert not of_media & blind
    assert server_pb2.FEATURE_COUNT_TOKENS in blind
