"""What the directory of a LoRA adapter holds, in peft's layout: read and judged before any weights are loaded.

    adapter_config.json          which modules it adds to, ranks and scaling
    adapter_model.safetensors    two thin matrices for each of them

Only what is added to linear modules is served; whatever else an adapter may ask for is refused with the reason. Knows
no model.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from fanlight_engine.checkpoints.json_files import JsonFileError, read_json_object
from fanlight_engine.errors import CheckpointError, ConfigError
from fanlight_engine.lora import ServedLora, parse_lora, refuse_name_of_base
from fanlight_engine.packages import require_package

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

_LOW_RANK_KEY = re.compile(r".*\.lora_[AB]\.weight")
_APPLIED = ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern")
_TARGETS = ("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern")
_WITHOUT_EFFECT = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "eva_config",
        "fan_in_fan_out",  # of modules that are not linear
        "inference_mode",
        "init_lora_weights",  # judged by itself
        "loftq_config",
        "lora_dropout",
        "lora_ga_config",
        "megatron_core",
        "peft_type",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "task_type",
    }
)
"""What was of interest while it was trained, or says where it comes from."""
_INITIALISATIONS = (True, None, False, "gaussian", "eva", "orthogonal")
"""Ways to begin training that leave the weights of the base as they were."""
_REASONS = {
    "use_dora": "DoRA scales the weights of the base itself",
    "modules_to_save": "whole modules were trained beside the thin matrices",
    "bias": "biases were trained beside the thin matrices",
    "lora_bias": "biases were trained beside the thin matrices",
    "trainable_token_indices": "embeddings of tokens were trained",
    "target_parameters": "it adds to parameters that are not those of linear modules",
    "layer_replication": "it has the base's layers run more than once",
    "alora_invocation_tokens": "it begins in the middle of a prompt",
}
_KEY_REASONS = (
    ("base_layer", "it is a copy of the base's own weights (peft's save_embedding_layers=False leaves them out)"),
    ("lora_magnitude_vector", _REASONS["use_dora"]),
    ("lora_embedding_", _REASONS["trainable_token_indices"]),
    ("lora_B.bias", _REASONS["lora_bias"]),
    ("embed", "embeddings were trained, or tokens added to them"),
)
_HASHED_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class LoraFiles:
    """One adapter on disk, judged fit. `settings` are those of its configuration that say what it adds, and where."""

    lora: ServedLora
    path: Path
    settings: dict[str, Any]
    numbers: int
    """Of all its matrices together."""

    @property
    def weights_file(self) -> Path:
        """The file of its matrices."""
        return self.path / WEIGHTS_FILE


def read_lora_files(setting: str, base: str) -> tuple[LoraFiles, ...]:
    """The adapters that the `lora` setting names, numbered from 1; `base` is the name of the model they are added to.

    Raises ConfigError for the setting, and CheckpointError naming the file, the reason and the fix.
    """
    refuse_name_of_base(setting, base)
    directories = parse_lora(setting).items()
    if directories:
        require_package("peft", f"lora={setting}", ConfigError)
    return tuple(_read(name, number, Path(path)) for number, (name, path) in enumerate(directories, start=1))


def _read(name: str, number: int, path: Path) -> LoraFiles:
    if not path.is_dir():
        raise CheckpointError(f"lora {name}: {path} is no directory; name that of an adapter which peft has saved")
    content = _config_of(path)
    _refuse_other_kinds(path, content)
    _refuse_what_is_not_applied(path, content)
    shapes = _usable_shapes(path, _ranks(path, content))
    settings = {one: content[one] for one in (*_APPLIED, *_TARGETS) if content.get(one) is not None}
    return LoraFiles(ServedLora(name, number, _digest(path)), path, settings, sum(map(math.prod, shapes.values())))


def _config_of(path: Path) -> dict[str, Any]:
    file = path / CONFIG_FILE
    if not file.is_file():
        raise CheckpointError(
            f"{path} has no {CONFIG_FILE}: give the directory of an adapter that peft has saved ({CONFIG_FILE}, "
            f"{WEIGHTS_FILE})"
        )
    try:
        return read_json_object(file)
    except JsonFileError as error:
        raise CheckpointError(f"{file} {error}; save the adapter again") from error


def _refuse_other_kinds(path: Path, content: dict[str, Any]) -> None:
    kind = content.get("peft_type")
    if kind != "LORA":
        raise CheckpointError(f"{path / CONFIG_FILE} has peft_type {kind!r}; only LORA is served")
    beginning = content.get("init_lora_weights", True)
    if beginning not in _INITIALISATIONS:
        raise CheckpointError(
            f"{path / CONFIG_FILE} has init_lora_weights {beginning!r}, which changed the weights of the base before "
            "training, so that it fits no other; convert it with peft's "
            "save_pretrained(..., path_initial_model_for_weight_conversion=...)"
        )


def _refuse_what_is_not_applied(path: Path, content: dict[str, Any]) -> None:
    """Also of settings that this release has never heard of, unless they are off."""
    for name, value in content.items():
        if name in _WITHOUT_EFFECT or name in _APPLIED or name in _TARGETS or not value or value == "none":
            continue
        reason = _REASONS.get(name, "what it asks for is not known here")
        raise CheckpointError(
            f"{path / CONFIG_FILE} has {name} {value!r}: {reason}, which is not served; train without it, or merge the "
            "adapter into a checkpoint of its own"
        )


def _ranks(path: Path, content: dict[str, Any]) -> tuple[int, ...]:
    """Every rank that the configuration names, the general one first."""
    pattern = content.get("rank_pattern") or {}
    ranks: list[int] = []
    for rank in (content.get("r"), *(pattern.values() if isinstance(pattern, dict) else (pattern,))):
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise CheckpointError(f"{path / CONFIG_FILE} has rank {rank!r} in r or rank_pattern; a rank is 1 or more")
        ranks.append(rank)
    return tuple(ranks)


def _usable_shapes(path: Path, ranks: tuple[int, ...]) -> dict[str, list[int]]:
    """The shapes of its matrices; refused where something else is among them."""
    file = path / WEIGHTS_FILE
    if not file.is_file():
        pickled = next(path.glob("*.bin"), None)
        found = f"has {pickled.name}, which may run code when it is read, and" if pickled else "has"
        raise CheckpointError(f"{path} {found} no {WEIGHTS_FILE}: save the adapter again with safe_serialization=True")
    try:
        shapes = dict(_shapes(file))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}; save or copy the adapter again") from error
    for key in shapes:
        if not _LOW_RANK_KEY.fullmatch(key):
            reason = next((why for part, why in _KEY_REASONS if part in key), _REASONS["modules_to_save"])
            raise CheckpointError(f"{file} holds {key}: {reason}, which is not served; train or save without it")
    largest = max((shape[0] for key, shape in shapes.items() if ".lora_A." in key and shape), default=0)
    if max(ranks) > largest:  # before anything of that size is allocated
        raise CheckpointError(
            f"{path / CONFIG_FILE} names rank {max(ranks)}, the matrices in {WEIGHTS_FILE} have rank {largest} at "
            "most; both files must come from the same adapter"
        )
    return shapes


def _shapes(file: Path) -> Iterator[tuple[str, list[int]]]:
    with safe_open(file, framework="pt") as weights:
        for key in weights.keys():  # noqa: SIM118 - no mapping
            yield key, weights.get_slice(key).get_shape()


def _digest(path: Path) -> bytes:
    """Over all bytes: equal digests share computed pages."""
    digest = hashlib.sha256()
    for file in (path / CONFIG_FILE, path / WEIGHTS_FILE):
        digest.update(file.stat().st_size.to_bytes(8, "little"))
        with file.open("rb") as stream:
            while part := stream.read(_HASHED_AT_ONCE):
                digest.update(part)
    return digest.digest()
