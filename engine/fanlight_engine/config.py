"""EngineConfig: every setting of the engine, resolved once and frozen, each value with the source it came from.

Precedence: flag > environment (FANLIGHT_...) > file (TOML) > checkpoint > default. Unknown names are errors. Knows
nothing of the model's code; what a checkpoint says reaches `resolve` as plain values.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fanlight_engine.errors import ConfigError

ENVIRONMENT_PREFIX = "FANLIGHT_"
_MEBIBYTE = 1 << 20
_TRUE_WORDS = ("1", "true", "yes", "on")
_FALSE_WORDS = ("0", "false", "no", "off")
_KINDS_IN_WORDS = {"int": "a whole number", "bool": "true or false", "str": "a text"}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine. Sizes in bytes, lengths in tokens unless the name says otherwise; 0 means "decide"."""

    device: str = "cpu"
    """Torch device of weights and KV cache."""
    dtype: str = "auto"
    """Number type of weights and KV cache: float32, bfloat16, float16, or auto (float32 on a CPU, else the model's)."""
    attention: str = "reference"
    """Attention backend; reference, which runs on every device, is the only one."""
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
    """Token budget of one step; decodes come first, prefill chunks take the rest."""
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

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{name} is {value}, it must be between {low} and {high}")
        if self.dtype not in _DTYPES:
            raise ConfigError(f"dtype is {self.dtype!r}, it must be one of {', '.join(_DTYPES)}")
        if self.default_video_frames > self.max_video_frames:
            raise ConfigError(
                f"default_video_frames ({self.default_video_frames}) is above max_video_frames "
                f"({self.max_video_frames}); lower the first or raise the second"
            )
        if self.allow_media_urls and not self.media_url_hosts:
            raise ConfigError(
                "allow_media_urls is on and media_url_hosts is empty, so that no URL could be fetched; name the hosts"
            )
        if self.max_step_tokens < self.max_running_requests:
            raise ConfigError(
                f"max_step_tokens ({self.max_step_tokens}) is below max_running_requests "
                f"({self.max_running_requests}): a step must hold one token of every running request; raise the "
                "first or lower the second"
            )


_DTYPES = ("auto", "float32", "bfloat16", "float16")
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
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One resolved value, where it came from, and what that overrode as (source, value) pairs."""

    name: str
    value: Any
    source: str
    overrode: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """The configuration and its table of sources."""

    config: EngineConfig
    settings: tuple[Setting, ...]


def resolve(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: str | Path | None = None,
    checkpoint: Mapping[str, Any] | None = None,
) -> ResolvedConfig:
    """Merge the layers, highest precedence first. `flags` holds only what was typed. Raises ConfigError."""
    layers = (
        ("flag", dict(flags or {})),
        ("environment", _from_environment(os.environ if environment is None else environment)),
        ("file", _from_file(Path(file)) if file is not None else {}),
        ("checkpoint", dict(checkpoint or {})),
        ("default", {field.name: field.default for field in fields(EngineConfig)}),
    )
    known = {field.name: field.type for field in fields(EngineConfig)}
    for source, values in layers:
        for name in values:
            if name not in known:
                raise ConfigError(_unknown_setting(name, source, known))
    settings = tuple(_resolve_one(name, str(kind), layers) for name, kind in known.items())
    config = EngineConfig(**{setting.name: setting.value for setting in settings})
    if config.frame_manifest_root and not Path(config.frame_manifest_root).is_dir():
        raise ConfigError(
            f"frame_manifest_root is {config.frame_manifest_root!r}, which is no directory; name the directory of the "
            "frames, or leave it empty to turn manifests off"
        )
    return ResolvedConfig(config, settings)


def _unknown_setting(name: str, source: str, known: Iterable[str]) -> str:
    """What to say of it, in the spelling of its source: the setting that may have been meant, else all there are."""

    def spelled(one: str) -> str:
        return ENVIRONMENT_PREFIX + one.upper() if source == "environment" else one

    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {spelled(close[0])}?" if close else f"known: {', '.join(map(spelled, sorted(known)))}"
    return f"unknown setting {spelled(name)!r} from {source}; {hint}"


def _resolve_one(name: str, kind: str, layers: tuple[tuple[str, dict[str, Any]], ...]) -> Setting:
    found = [(source, _convert(name, kind, values[name], source)) for source, values in layers if name in values]
    (source, value), *overrode = found
    return Setting(name, value, source, tuple((one, old) for one, old in overrode if old != value))


def _convert(name: str, kind: str, value: Any, source: str) -> Any:
    """Text (from flags and the environment) to the field's type; typed values must already have it."""
    if kind == "bool" and isinstance(value, str) and value.lower() in _TRUE_WORDS + _FALSE_WORDS:
        return value.lower() in _TRUE_WORDS
    if kind == "int" and isinstance(value, str):
        try:
            return int(value.replace("_", ""))
        except ValueError:
            pass
    if type(value).__name__ == kind:
        return value
    raise ConfigError(f"{name} from {source} is {value!r}, {_KINDS_IN_WORDS[kind]} is needed")


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """FANLIGHT_PAGE_SIZE -> page_size. A name that starts like ours and is none is an error, as everywhere."""
    variables = [variable for variable in environment if variable.startswith(ENVIRONMENT_PREFIX)]
    return {variable.removeprefix(ENVIRONMENT_PREFIX).lower(): environment[variable] for variable in variables}


def _from_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"configuration file {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {file} is not TOML: {error}") from error
