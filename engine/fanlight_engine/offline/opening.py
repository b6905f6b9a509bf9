"""From what a caller names to a checkpoint and resolved settings, as `fanlight serve` does it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.checkpoints.sources import resolve_model
from fanlight_engine.config import ResolvedConfig, resolve
from fanlight_engine.settings import CONFIG_VARIABLE


def open_model(
    model: str | Path,
    name: str | None,
    config_file: str | Path | None,
    settings: Mapping[str, Any],
    report: Callable[[str], None],
) -> tuple[Checkpoint, ResolvedConfig]:
    """`config_file` None takes the one that the environment names, if any.

    Raises ConfigError for the settings, which are judged first, and CheckpointError for the model.
    """
    config_file = config_file or os.environ.get(CONFIG_VARIABLE) or None
    cache_dir = resolve(settings, file=config_file).config.cache_dir
    source = resolve_model(model, cache_dir, report)
    checkpoint = read_checkpoint(source.directory, name or source.name)
    return checkpoint, resolve(settings, file=config_file, checkpoint=checkpoint.settings, traits=checkpoint.traits)
