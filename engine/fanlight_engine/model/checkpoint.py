"""What a checkpoint directory is, read from its small files: family, limits, end ids, sampling defaults, fingerprint.

Reads config.json and generation_config.json only; knows nothing of weights, tokenizers or requests. Both halves of the
engine use it, so it stays cheap.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from fanlight_engine.errors import CheckpointError
from fanlight_engine.model.families import DECODERS, Family, families_of, served_model_types

_FINGERPRINTED_SUFFIXES = (".json", ".safetensors", ".jinja", ".txt", ".model")
_NEUTRAL_VALUES = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "num_beams": 1,
    "sequence_bias": None,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
}
"""Settings of `generate` that change which token is chosen, and the value at which they do not."""
_WHOLE_FILE_BYTES = 64 << 20
_SAMPLES = 256
_SAMPLE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What an unset sampling option means for this checkpoint: what transformers' `generate` would do with it.

    But for `Checkpoint.unapplied_settings`, and for lengths: an answer may take the rest of the context unless asked.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0


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
    sampling_defaults: SamplingDefaults
    unapplied_settings: tuple[str, ...]
    """What generation_config.json asks of `generate` and this engine does not do, as name=value."""
    fingerprint: str
    """SHA-256 hex over names, sizes and contents; of files above 64 MiB, over 256 samples spread evenly."""

    @property
    def takes_images(self) -> bool:
        """Whether prompts may hold images."""
        return self.family.takes_images

    @property
    def takes_videos(self) -> bool:
        """Whether prompts may hold clips that go through the tower's own way for them."""
        return self.family.takes_videos and self.video_token_id is not None

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
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # each configuration class has its own idea of what to raise
        raise CheckpointError(f"{directory.name}/config.json cannot be read: {error}") from error
    family = _family_of(directory, model_type, config)
    text_config = config.get_text_config()
    _refuse_other_decoders(directory, text_config)
    generation = _read_json(directory / "generation_config.json", required=False)
    try:
        end_ids, sampling_defaults = _end_ids(generation, raw_config, config), _sampling_defaults(generation)
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"{directory.name}/generation_config.json has a value that is no number where one is needed: {error}"
        ) from error
    return Checkpoint(
        path=directory,
        name=name or directory.resolve().name,
        config=config,
        family=family,
        context_length=int(text_config.max_position_embeddings),
        vocab_size=int(text_config.vocab_size),
        hidden_size=int(text_config.hidden_size),
        end_ids=end_ids,
        sampling_defaults=sampling_defaults,
        unapplied_settings=_unapplied_settings(generation),
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
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file.parent.name}/{file.name} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file.parent.name}/{file.name} holds {type(content).__name__}, a JSON object is needed")
    return content


def _model_type_of(directory: Path, raw_config: dict[str, Any]) -> str:
    if "auto_map" in raw_config:
        raise CheckpointError(
            f"{directory.name}/config.json names code of its own (auto_map), which is never run: use a checkpoint "
            "whose model_type is part of transformers"
        )
    model_type = raw_config.get("model_type")
    if not isinstance(model_type, str) or not families_of(model_type):
        raise CheckpointError(
            f"{directory.name}/config.json has model_type {model_type!r}, which is not supported; supported: "
            + ", ".join(served_model_types())
        )
    return model_type


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
            f"supported; supported: {', '.join(sorted(DECODERS))}"
        )


def _end_ids(generation: dict[str, Any], raw_config: dict[str, Any], config: PretrainedConfig) -> tuple[int, ...]:
    """generation_config.json wins over config.json, as in transformers' `generate`."""
    for value in (
        generation.get("eos_token_id"),
        raw_config.get("eos_token_id"),
        getattr(config.get_text_config(), "eos_token_id", None),
    ):
        if isinstance(value, int):
            return (value,)
        if isinstance(value, list) and value:
            return tuple(int(one) for one in value)
    return ()


def _sampling_defaults(generation: dict[str, Any]) -> SamplingDefaults:
    if not generation.get("do_sample", False):
        return SamplingDefaults()
    return SamplingDefaults(
        temperature=float(generation.get("temperature") or 1.0),
        top_p=float(generation.get("top_p") or 1.0),
        top_k=int(generation.get("top_k", 50) or 0),  # transformers' own default is 50
        min_p=float(generation.get("min_p") or 0.0),
    )


def _unapplied_settings(generation: dict[str, Any]) -> tuple[str, ...]:
    return tuple(
        f"{name}={generation[name]}"
        for name, neutral in _NEUTRAL_VALUES.items()
        if generation.get(name) not in (None, neutral)
    )


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
