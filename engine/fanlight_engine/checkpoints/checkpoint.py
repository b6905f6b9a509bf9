"""What a checkpoint directory is, read from its small files: family, limits, end ids, settings, fingerprint.

Reads config.json and generation_config.json only; knows nothing of weights, tokenizers or requests. Both halves of the
engine use it, so it stays cheap.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from fanlight_engine.checkpoints import generation_config
from fanlight_engine.checkpoints.families import DECODERS, Bidirectional, Family, families_of, served_model_types
from fanlight_engine.checkpoints.json_files import JsonFileError, read_json_object
from fanlight_engine.checkpoints.quiet import without_notices
from fanlight_engine.checkpoints.rope_parameters import longest_context
from fanlight_engine.checkpoints.unsupported import classes_without_text, code_of_its_own, why_unsupported
from fanlight_engine.config import EngineConfig
from fanlight_engine.contradictions import CheckpointTraits
from fanlight_engine.errors import CheckpointError, in_one_line

_FINGERPRINTED_SUFFIXES = (".json", ".safetensors", ".jinja", ".txt", ".model")
_COUNTS = ("num_hidden_layers", "num_layers", "depth", "num_experts", "num_local_experts", "n_routed_experts")
"""What config.json calls numbers of layers and experts, of decoders and of towers."""
_MOST_OF_A_KIND = 4096
_FETCH = "fetch it again"
_FIX = "take config.json from where the weights are from"
_WHOLE_FILE_BYTES = 64 << 20
_SAMPLES = 256
_SAMPLE_BYTES = 64 << 10
_DEFAULTS = EngineConfig()
_KEPT_ROWS = 4096
"""Embeddings that the vision cache holds at least, unless it is told otherwise: those of a picture of 4 megapixels."""
_LARGEST_NUMBER_BYTES = 4


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Facts of one checkpoint directory. Lengths are tokens."""

    path: Path
    name: str
    config: PretrainedConfig
    family: Family
    context_length: int
    vocab_size: int
    hidden_size: int
    end_ids: tuple[int, ...]
    sampling_settings: Mapping[str, float | int]
    """What generation_config.json says of the settings default_temperature and so on."""
    unapplied_settings: tuple[str, ...]
    """What generation_config.json asks of `generate` and this engine does not do, as name=value."""
    suggested_length: int | None
    """The max_new_tokens of generation_config.json; it applies where the setting default_max_new_tokens says so."""
    fingerprint: str
    """SHA-256 hex over names, sizes and contents; of files above 64 MiB, over 256 samples spread evenly."""

    @property
    def settings(self) -> dict[str, Any]:
        """Its layer of the settings: what is not chosen otherwise."""
        return {"context_length": self.context_length, **self._settings_of_pictures, **self.sampling_settings}

    @property
    def traits(self) -> CheckpointTraits:
        """What settings are judged against."""
        return CheckpointTraits(
            name=self.name,
            takes_images=self.takes_images,
            takes_videos=self.takes_videos,
            embedding_width=self.embedding_width if self.takes_images else 0,
            smallest_span=self.smallest_span,
            quantization=self.quantization,
        )

    @property
    def quantization(self) -> str:
        """The method that config.json says the weights are stored with; empty where they are plain numbers."""
        stored: Any = getattr(self.config, "quantization_config", None)
        if not stored:
            return ""
        values = stored if isinstance(stored, dict) else stored.to_dict()
        is_bitsandbytes = values.get("load_in_8bit") or values.get("load_in_4bit")
        method = values.get("quant_method") or ("bitsandbytes" if is_bitsandbytes else "unknown")
        return str(getattr(method, "value", method))

    @property
    def dtype(self) -> str:
        """Number type of the weights by config.json, its top level first; empty where it does not say."""
        named = getattr(self.config, "dtype", None) or getattr(self.config.get_text_config(), "dtype", None)
        return "" if named is None else str(named).removeprefix("torch.")

    @property
    def takes_images(self) -> bool:
        """Whether prompts may hold images."""
        return self.family.takes_images

    @property
    def takes_videos(self) -> bool:
        """Whether prompts may hold clips; those that take the way of pictures have the rows of pictures."""
        return self.family.takes_videos and (self.video_token_id is not None or self.family.clips_are_pictures)

    @property
    def embedding_width(self) -> int:
        """Numbers of one embedding row: a hidden state, and one more for each layer that gets features of its own."""
        if not self.family.adds_features_to_layers:
            return self.hidden_size
        return self.hidden_size * (1 + len(self.config.vision_config.deepstack_visual_indexes))

    @property
    def image_token_id(self) -> int | None:
        """The id at the prompt positions that take a row of an image; None for text checkpoints."""
        return self._token_id("image") if self.takes_images else None

    @property
    def video_token_id(self) -> int | None:
        """The id at the prompt positions that take a row of a clip; None where the family has no id for them."""
        return self._token_id("video") if self.family.takes_videos else None

    @property
    def smallest_span(self) -> int:
        """Positions that every picture takes in a row and that see each other; 0 where none do, or config.json does not
        say how many."""
        if self.family.bidirectional is Bidirectional.NONE:
            return 0
        of_a_tile = getattr(self.config, "mm_tokens_per_image", None)
        return int(of_a_tile or getattr(self.config.get_text_config(), "num_image_tokens", None) or 0)

    @property
    def _settings_of_pictures(self) -> dict[str, int]:
        """What its pictures need beyond the defaults."""
        needed: dict[str, int] = {}
        budget = _DEFAULTS.max_step_tokens
        if self.smallest_span + _DEFAULTS.max_running_requests > budget:
            needed["max_step_tokens"] = self.smallest_span + budget  # text and other requests keep what they had
        kept_bytes = _KEPT_ROWS * self.embedding_width * _LARGEST_NUMBER_BYTES
        if self.takes_images and kept_bytes > _DEFAULTS.vision_cache_bytes:
            needed["vision_cache_bytes"] = kept_bytes
        return needed

    def _token_id(self, medium: str) -> int | None:
        for attribute in (f"{medium}_token_id", f"{medium}_token_index"):
            value = getattr(self.config, attribute, None)
            if value is not None:
                return int(value)
        return None


def read_checkpoint(path: str | Path, name: str | None = None) -> Checkpoint:
    """Read the facts of the checkpoint at `path`. Raises CheckpointError naming the file and the fix."""
    directory = Path(path)
    raw_config = _read_json(directory / "config.json", required=True)
    model_type = _model_type_of(directory, raw_config)
    _refuse_endless_models(directory, raw_config)
    try:
        with without_notices():
            config = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # each configuration class has its own idea of what to raise
        raise CheckpointError(f"{directory.name}/config.json cannot be read: {in_one_line(error)}; {_FIX}") from error
    config._attn_implementation = None  # published ones ask for packages that are not here; attention is ours
    family = _family_of(directory, model_type, config)
    text_config = config.get_text_config()
    _refuse_other_decoders(directory, text_config)
    _refuse_sight_of_what_follows(directory, family, text_config)
    generation = _read_json(directory / "generation_config.json", required=False)
    eos_token_ids = (raw_config.get("eos_token_id"), getattr(text_config, "eos_token_id", None))
    try:
        end_ids = generation_config.end_ids(generation, *eos_token_ids)
        sampling_settings = generation_config.sampling_settings(generation)
    except (ValueError, TypeError, OverflowError) as error:
        raise CheckpointError(
            f"{directory.name}/generation_config.json has a value that is no number where one is needed: {error}"
        ) from error
    return Checkpoint(
        path=directory,
        name=name or directory.resolve().name,
        config=config,
        family=family,
        context_length=_context_length(directory, text_config),
        vocab_size=int(text_config.vocab_size),
        hidden_size=int(text_config.hidden_size),
        end_ids=end_ids,
        sampling_settings=sampling_settings,
        unapplied_settings=generation_config.unapplied_settings(generation),
        suggested_length=generation_config.suggested_length(generation),
        fingerprint=_fingerprint(directory),
    )


def _read_json(file: Path, required: bool) -> dict[str, Any]:
    if not file.is_file():
        if required:
            raise CheckpointError(
                f"{file.parent} has no {file.name}: give the directory of a Hugging Face checkpoint (config.json, "
                "model.safetensors, tokenizer.json)"
            )
        return {}
    try:
        return read_json_object(file)
    except JsonFileError as error:
        raise CheckpointError(f"{file.parent.name}/{file.name} {error}; {_FETCH}") from error


def _model_type_of(directory: Path, raw_config: dict[str, Any]) -> str:
    model_type = raw_config.get("model_type")
    if not isinstance(model_type, str) or not families_of(model_type):
        has = "names no model_type"
        if model_type is not None:
            has = f"has model_type {model_type!r}, which is not supported"
        raise CheckpointError(
            f"{directory.name}/config.json {has}: {why_unsupported(raw_config)}; "
            f"supported: {', '.join(served_model_types())}"
        )
    code = code_of_its_own(raw_config)
    if code is not None:
        raise CheckpointError(
            f"{directory.name}/config.json asks for code of its own ({code} in auto_map), which is never run: use a "
            f"checkpoint that transformers loads with its own classes for {model_type}"
        )
    classes = classes_without_text(raw_config)
    if classes:
        raise CheckpointError(
            f"{directory.name}/config.json has architectures {', '.join(classes)}, which generate no text (they embed "
            f"or classify it, say): give a checkpoint of {model_type} that has a language-model head"
        )
    return model_type


def _refuse_endless_models(directory: Path, raw_config: dict[str, Any]) -> None:
    """Every layer and expert is an object, or an entry of a list, long before anybody looks at what they weigh."""
    parts = (raw_config, *(value for value in raw_config.values() if isinstance(value, dict)))
    for part, name in ((part, name) for part in parts for name in _COUNTS if isinstance(part.get(name), int)):
        if part[name] > _MOST_OF_A_KIND:
            raise CheckpointError(
                f"{directory.name}/config.json has {name} {part[name]}, at most {_MOST_OF_A_KIND} are served; {_FIX}"
            )


def _family_of(directory: Path, model_type: str, config: PretrainedConfig) -> Family:
    """The row for this tower: one that wants other tensors would load, and then fail at every image."""
    rows = families_of(model_type)
    if not rows[0].takes_images:
        return rows[0]
    tower = config.vision_config.model_type
    for row in rows:
        if tower in row.vision_model_types:
            return row
    raise CheckpointError(
        f"{directory.name}/config.json has a vision tower of model_type {tower!r}, which is not supported in "
        f"{model_type}; supported: {', '.join(one for row in rows for one in row.vision_model_types)}"
    )


def _refuse_other_decoders(directory: Path, text_config: PretrainedConfig) -> None:
    if text_config.model_type not in DECODERS:
        raise CheckpointError(
            f"{directory.name}/config.json has a decoder of model_type {text_config.model_type!r}, which is not "
            f"supported: {why_unsupported(text_config.to_dict())}; supported: {', '.join(sorted(DECODERS))}"
        )


def _refuse_sight_of_what_follows(directory: Path, family: Family, text_config: PretrainedConfig) -> None:
    """Encoders of embedding models have a decoder's model_type, and what they generate would mean nothing."""
    if getattr(text_config, "use_bidirectional_attention", None) and family.bidirectional is not Bidirectional.PROMPT:
        raise CheckpointError(
            f"{directory.name}/config.json has use_bidirectional_attention, with which every token sees what follows: "
            f"such a checkpoint embeds text and generates none; give one of {family.model_type} without it"
        )


def _context_length(directory: Path, text_config: PretrainedConfig) -> int:
    try:
        return longest_context(text_config)
    except (ValueError, TypeError, OverflowError) as error:
        raise CheckpointError(
            f"{directory.name}/config.json has rotary parameters that are no numbers: {in_one_line(error)}; {_FIX}"
        ) from error


def _fingerprint(directory: Path) -> str:
    """Large files are sampled, so that a start does not read gigabytes twice; training changes weights everywhere."""
    digest = hashlib.sha256()
    for file in sorted(directory.iterdir()):
        if not file.is_file() or file.suffix not in _FINGERPRINTED_SUFFIXES:
            continue
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as stream:
            if size <= _WHOLE_FILE_BYTES:
                digest.update(stream.read())
                continue
            for sample in range(_SAMPLES):
                stream.seek(sample * (size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()
