"""From what a caller names to a checkpoint and resolved settings, as `fanlight serve` does it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fanlight_engine.config import ResolvedConfig, resolve
from fanlight_engine.errors import CheckpointError
from fanlight_engine.model.checkpoint import Checkpoint, read_checkpoint


def open_model(
    model: str | Path, name: str | None, config_file: str | Path | None, settings: Mapping[str, Any]
) -> tuple[Checkpoint, ResolvedConfig]:
    """Raises ConfigError for the settings, which are judged first, and CheckpointError for the model."""
    resolve(settings, file=config_file)
    path = Path(model)
    if not path.is_dir():
        raise CheckpointError(f"{path} is no directory: give the directory of a Hugging Face checkpoint")
    checkpoint = read_checkpoint(path, name)
    return checkpoint, resolve(settings, file=config_file, checkpoint={"context_length": checkpoint.context_length})
