"""EngineConfig: every setting of the engine, declared with its default and its range, and resolved once and frozen.

    settings         how layers are merged: flag > environment (FANLIGHT_...) > file (TOML) > checkpoint > default
    contradictions   which settings cannot hold together

Knows nothing of the model's code; what a checkpoint says reaches `resolve` as plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from fanlight_engine.contradictions import CheckpointTraits, refuse_contradictions, settle_kv_cache
from fanlight_engine.errors import ConfigError
from fanlight_engine.lora import parse_lora, refuse_name_of_base
from fanlight_engine.settings import (
    CHECKPOINT,
    FLAG,
    Setting,
    environment_layer,
    file_layer,
    refuse_other_words,
    refuse_out_of_range,
    resolve_layers,
    without,
)

__all__ = ["CheckpointTraits", "EngineConfig", "ResolvedConfig", "Setting", "resolve"]

SETTINGS_OF_A_SERVER = (
    "admin",
    "admin_host",
    "admin_port",
    "config",
    "drain_seconds",
    "host",
    "insecure",
    "log_format",
    "model",
    "name",
    "port",
)
"""Names that only a server declares. Whoever uses the engine alone may share a file and an environment with one."""

SEVERAL = {"separator": ","}
"""Metadata of a setting that lists things, so that its flag may be given once for each."""
_MEBIBYTE = 1 << 20
_D = TypeVar("_D")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine. Sizes in bytes, lengths in tokens unless the name says otherwise; 0 means "decide"."""

    device: str = "cpu"
    """Torch device of weights and KV cache."""
    dtype: str = "auto"
    """Number type of weights and KV cache: float32, bfloat16, float16, or auto (float32 on a CPU, else the model's)."""
    quantization: str = ""
    """How the decoder's linear layers are stored: int8 (weights only, made while loading), or empty as they are."""
    attention: str = "auto"
    """Attention backend: reference (every device), cpu, triton, flash, or auto (measured at start-up)."""
    graphs: bool = True
    """Capture decode steps as CUDA graphs, where the device has them."""
    async_scheduling: bool = True
    """Plan a decode step before the results of the last one are read, where the device computes beside the host."""
    cpu_kernels: bool = True
    """Compute on a CPU with our own kernels, compiled at the first start, where processor and checkpoint allow it."""
    deterministic: bool = False
    """Give a request the same answer, bit for bit, whatever is computed beside it; slower, and refused where torch
    itself computes the decoder."""
    torch_threads: int = 0
    """Threads of one operator in the step loop; 0 leaves torch's own choice."""
    context_length: int = 0
    """Prompt + answer of one request, in tokens; 0 takes the checkpoint's."""
    page_size: int = 16
    """Tokens per KV page."""
    kv_cache_bytes: int = 512 * _MEBIBYTE
    """Upper bound of the paged KV cache; never more is allocated than max_running_requests full contexts need."""
    kv_pages: int = 0
    """Pages of the KV cache; 0 derives them from kv_cache_bytes."""
    prefix_cache: bool = True
    """Keep the pages of finished prompts for later ones that start alike."""
    max_running_requests: int = 32
    """Requests computed together in one step."""
    max_waiting_requests: int = 256
    """Requests queued beyond those; more are refused with a hint when to retry."""
    max_step_tokens: int = 512
    """Token budget of one step; decodes come first, prefill chunks take the rest. Running streams wait for a whole step
    between two tokens. Prompts of up to an eighth of it get ahead of a longer one's next chunk."""
    max_step_embedding_rows: int = 1024
    """Encoder budget of one step, in embeddings; one medium larger than that is encoded alone. A quarter of it while
    streams decode."""
    vision_cache_bytes: int = 64 * _MEBIBYTE
    """Embeddings of pictures and clips that are kept, so that equal ones are not encoded again."""
    media_workers: int = 2
    """Threads that decode and preprocess pictures and clips."""
    media_cache_bytes: int = 64 * _MEBIBYTE
    """Preprocessed pictures and clips that are kept, so that equal ones are not decoded again."""
    media_memory_bytes: int = 2048 * _MEBIBYTE
    """Uploads and URLs read for requests that are being prepared, over all of them; more are refused for a moment."""
    max_request_media_bytes: int = 1024 * _MEBIBYTE
    """Uploads and URLs read for one request."""
    max_image_bytes: int = 20 * _MEBIBYTE
    """Encoded size of one image."""
    max_image_pixels: int = 50_000_000
    """Width x height of one image, judged from its header before anything is decoded."""
    max_image_side: int = 16_384
    """Width or height of one image, in pixels."""
    max_image_aspect_ratio: int = 200
    """Longer side : shorter side of one image."""
    max_images: int = 16
    """Images of one request."""
    max_videos: int = 4
    """Clips of one request."""
    max_video_bytes: int = 200 * _MEBIBYTE
    """Encoded size of one clip."""
    max_video_frames: int = 128
    """Frames of one clip that are shown to the model; a request for more is refused."""
    default_video_frames: int = 32
    """Frames that are shown of a longer clip where neither the request nor the checkpoint says how many."""
    max_video_file_frames: int = 100_000
    """Frames that the file of one clip may hold, shown or not."""
    max_video_seconds: int = 3600
    """Length of one clip."""
    max_video_pixels: int = 16_000_000
    """Width x height of one frame."""
    video_decode_seconds: int = 30
    """Time that decoding the frames of one clip may take."""
    frame_manifest_root: str = ""
    """Directory of frame files that clips may name in a manifest; empty turns manifests off."""
    media_store_bytes: int = 1024 * _MEBIBYTE
    """Uploads kept for later requests, partial ones included; the least recently used goes first."""
    media_store_directory: str = ""
    """Directory that uploads are kept in, so that they survive a restart; empty keeps them in memory."""
    media_time_to_live: int = 3600
    """Seconds that an upload is kept after its last use."""
    upload_time_to_live: int = 600
    """Seconds that an upload which was broken off can be resumed."""
    allow_media_urls: bool = False
    """Fetch pictures and clips from the URLs that requests name: of the hosts in media_url_hosts, and only where these
    have public addresses."""
    media_url_hosts: str = ""
    """Hosts that pictures and clips may be fetched from, separated by commas; *.example.com stands for every host below
    it. One that has an address which is not public (loopback, a private network) is never fetched from."""
    media_url_ports: str = "80,443"
    """Ports of these hosts that pictures and clips may be fetched from, separated by commas."""
    media_url_seconds: int = 10
    """Time that fetching one URL may take, redirects included."""
    low_detail_tokens: int = 64
    """Most tokens of a picture, or of a frame, that is asked for with low detail, where the checkpoint can scale."""
    image_processing_config: str = ""
    """JSON file of an ImageProcessingConfig, for a checkpoint that ships none; empty looks into the checkpoint."""
    max_stop_strings: int = 16
    """Stop strings of one request."""
    max_stop_string_characters: int = 256
    """Characters of one stop string."""
    max_stop_token_ids: int = 32
    """Stop token ids of one request."""
    default_temperature: float = 0.0
    """Temperature of a request that names none; 0 takes the likeliest token."""
    default_top_p: float = 1.0
    """Top-p of a request that names none; 1 turns it off."""
    default_top_k: int = 0
    """Top-k of a request that names none; 0 turns it off."""
    default_min_p: float = 0.0
    """Min-p of a request that names none; 0 turns it off."""
    default_repetition_penalty: float = 1.0
    """Repetition penalty of a request that names none; 1 turns it off."""
    default_presence_penalty: float = 0.0
    """Presence penalty of a request that names none; 0 turns it off."""
    default_frequency_penalty: float = 0.0
    """Frequency penalty of a request that names none; 0 turns it off."""
    default_max_new_tokens: int = 0
    """Most new tokens of a request that names no number; 0 is the rest of the context."""
    lora: str = field(default="", metadata=SEVERAL)
    """LoRA adapters in peft's layout, which requests name as models of their own: name=directory, separated by commas.
    The flag may be given several times."""
    cache_dir: str = ""
    """Directory that converted checkpoints are kept in; empty is fanlight in the user's cache directory."""

    def __post_init__(self) -> None:
        _judge({field.name: Setting(field.name, getattr(self, field.name), "") for field in fields(self)})


_DTYPES = ("auto", "float32", "bfloat16", "float16")
_QUANTIZATIONS = ("", "int8")
_ATTENTIONS = ("auto", "reference", "cpu", "triton", "flash")
_RANGES = (
    ("torch_threads", 0, 1024),
    ("context_length", 0, 1 << 24),
    ("page_size", 1, 1024),
    ("kv_cache_bytes", 1, 1 << 50),
    ("kv_pages", 0, 1 << 31),
    ("max_running_requests", 1, 4096),
    ("max_waiting_requests", 1, 1 << 20),
    ("max_step_tokens", 1, 1 << 20),
    ("max_step_embedding_rows", 1, 1 << 20),
    ("vision_cache_bytes", 0, 1 << 50),
    ("media_workers", 1, 256),
    ("media_cache_bytes", 0, 1 << 50),
    ("media_memory_bytes", 1, 1 << 50),
    ("max_request_media_bytes", 1, 1 << 50),
    ("max_image_bytes", 1, 1 << 32),
    ("max_image_pixels", 1, 1 << 32),
    ("max_image_side", 1, 1 << 20),
    ("max_image_aspect_ratio", 1, 1 << 20),
    ("max_images", 1, 4096),
    ("max_videos", 0, 1024),
    ("max_video_bytes", 1, 1 << 40),
    ("max_video_frames", 1, 1 << 16),
    ("default_video_frames", 1, 1 << 16),
    ("max_video_file_frames", 1, 1 << 30),
    ("max_video_seconds", 1, 1 << 20),
    ("max_video_pixels", 1, 1 << 32),
    ("video_decode_seconds", 1, 3600),
    ("media_store_bytes", 0, 1 << 50),
    ("media_time_to_live", 1, 1 << 30),
    ("upload_time_to_live", 1, 1 << 30),
    ("media_url_seconds", 1, 3600),
    ("low_detail_tokens", 1, 1 << 20),
    ("max_stop_strings", 0, 1024),
    ("max_stop_string_characters", 1, 65_536),
    ("max_stop_token_ids", 0, 1024),
    ("default_temperature", 0.0, 100.0),
    ("default_top_p", 1e-6, 1.0),
    ("default_top_k", 0, 1 << 31),
    ("default_min_p", 0.0, 1.0),
    ("default_repetition_penalty", 0.0625, 16.0),
    ("default_presence_penalty", -2.0, 2.0),
    ("default_frequency_penalty", -2.0, 2.0),
    ("default_max_new_tokens", 0, 1 << 20),
)


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """The configuration and its table of sources, which also holds the settings of `others`."""

    config: EngineConfig
    settings: tuple[Setting, ...]

    def made(self, declaration: type[_D]) -> _D:
        """A dataclass that declares some of the settings, filled with them."""
        return _made(declaration, self.settings)


def resolve(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: str | Path | None = None,
    checkpoint: Mapping[str, Any] | None = None,
    traits: CheckpointTraits | None = None,
    others: tuple[type, ...] = (),
) -> ResolvedConfig:
    """Merge the layers, highest precedence first, and judge what comes out. Raises ConfigError.

    `flags` holds only what was typed. `checkpoint` is what a checkpoint says of settings and `traits` what it is;
    without them nothing is judged against one. `others` are dataclasses that declare settings beside the engine's.
    Raises CheckpointError for a value of the checkpoint's that is out of range.
    """
    chosen = [environment_layer(environment), file_layer(file)]
    if not others:
        chosen = [without(layer, SETTINGS_OF_A_SERVER) for layer in chosen]
    layers = ((FLAG, dict(flags or {})), *chosen, (CHECKPOINT, dict(checkpoint or {})))
    found = {setting.name: setting for setting in resolve_layers((EngineConfig, *others), layers)}
    found = settle_kv_cache(found)
    _judge(found, traits)
    settings = tuple(found.values())
    config = _made(EngineConfig, settings)
    if config.frame_manifest_root and not Path(config.frame_manifest_root).is_dir():
        raise ConfigError(
            f"frame_manifest_root is {config.frame_manifest_root!r}, which is no directory; name the directory of the "
            "frames, or leave it empty to turn manifests off"
        )
    return ResolvedConfig(config, settings)


def _judge(settings: Mapping[str, Setting], traits: CheckpointTraits | None = None) -> None:
    refuse_out_of_range(settings, _RANGES)
    refuse_other_words(settings, "dtype", _DTYPES)
    refuse_other_words(settings, "quantization", _QUANTIZATIONS)
    refuse_other_words(settings, "attention", _ATTENTIONS)
    refuse_contradictions(settings, traits)
    parse_lora(settings["lora"].value)
    if traits is not None:
        refuse_name_of_base(settings["lora"].value, traits.name)


def _made(declaration: type[_D], settings: tuple[Setting, ...]) -> _D:
    values = {setting.name: setting.value for setting in settings}
    names = [field.name for field in fields(declaration)]  # pyright: ignore[reportArgumentType]
    return declaration(**{name: values[name] for name in names})
