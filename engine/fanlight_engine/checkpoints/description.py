"""What a checkpoint is, in words for whoever is about to serve it.

Reads tokenizer_config.json and looks for the chat template; the rest is known of the Checkpoint. No weights are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.checkpoints.json_files import JsonFileError, read_json_object

TEXT, VISION_AND_TEXT = "text", "vision and text"
_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True, slots=True)
class CheckpointDescription:
    """Facts of one checkpoint. Lengths are tokens; a text is empty where the checkpoint does not say.

    `decoder` and `tower` are model_types, the tower's empty without one. `unapplied_settings` are what
    generation_config.json asks of `generate` and the engine does not do, as name=value.
    """

    name: str
    path: str
    kind: str
    family: str
    decoder: str
    tower: str
    modalities: tuple[str, ...]
    context_length: int
    vocabulary_size: int
    dtype: str
    quantization: str
    fingerprint: str
    has_chat_template: bool
    tokenizer_class: str
    unapplied_settings: tuple[str, ...]


def describe(checkpoint: Checkpoint) -> CheckpointDescription:
    """Everything that is told of a checkpoint."""
    tokenizer = _tokenizer_config(checkpoint.path)
    takes = {"text": True, "image": checkpoint.takes_images, "video": checkpoint.takes_videos}
    return CheckpointDescription(
        name=checkpoint.name,
        path=str(checkpoint.path),
        kind=VISION_AND_TEXT if checkpoint.takes_images else TEXT,
        family=checkpoint.family.model_type,
        decoder=checkpoint.config.get_text_config().model_type,
        tower=checkpoint.config.vision_config.model_type if checkpoint.takes_images else "",
        modalities=tuple(kind for kind, is_taken in takes.items() if is_taken),
        context_length=checkpoint.context_length,
        vocabulary_size=checkpoint.vocab_size,
        dtype=checkpoint.dtype,
        quantization=checkpoint.quantization,
        fingerprint=f"sha256:{checkpoint.fingerprint}",
        has_chat_template=_has_chat_template(checkpoint.path, tokenizer),
        tokenizer_class=str(tokenizer.get("tokenizer_class") or ""),
        unapplied_settings=_unapplied(checkpoint),
    )


def _unapplied(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Its length too: whoever misses it finds here that default_max_new_tokens is there for that."""
    length = checkpoint.suggested_length
    return (*checkpoint.unapplied_settings, *(() if length is None else (f"max_new_tokens={length}",)))


def _has_chat_template(directory: Path, tokenizer: dict[str, Any]) -> bool:
    return bool(tokenizer.get("chat_template")) or any((directory / name).is_file() for name in _TEMPLATE_FILES)


def _tokenizer_config(directory: Path) -> dict[str, Any]:
    """Its content; nothing where it cannot be read, which whoever loads the tokenizer will say better."""
    try:
        return read_json_object(directory / "tokenizer_config.json")
    except JsonFileError:
        return {}
