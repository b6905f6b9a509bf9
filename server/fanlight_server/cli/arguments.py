"""What `fanlight serve` and `fanlight config` understand alike: their arguments, and how they read a checkpoint.

Imports nothing heavy; the checkpoint's reader is imported when there is one to read.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from fanlight_engine.checkpoints.sources import resolve_model
from fanlight_engine.errors import CheckpointError, ConfigError, StartupError
from fanlight_server.cli.settings import closest_flags
from fanlight_server.default_model import default_model_path

if TYPE_CHECKING:
    from fanlight_engine.checkpoints.checkpoint import Checkpoint
    from fanlight_engine.config import EngineConfig
    from fanlight_server.server_config import ServerConfig

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CHECKPOINT = 4


def parsed(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """The arguments; an unknown one is told with the one that may have been meant."""
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        close = closest_flags(parser, unknown)
        parser.error(f"unrecognized arguments: {' '.join(unknown)}" + (f"; did you mean {close}?" if close else ""))
    return arguments


def checkpoint_of(server: ServerConfig, engine: EngineConfig) -> Checkpoint:
    """What the settings name, read from its small files; a GGUF is converted first. Raises CheckpointError."""
    source = resolve_model(server.model or default_model_path(), engine.cache_dir, tell)
    from fanlight_engine.checkpoints.checkpoint import read_checkpoint

    return read_checkpoint(source.directory, server.name or source.name)


def tell(text: str) -> None:
    """A line to standard error."""
    print(text, file=sys.stderr, flush=True)


def failed(command: str, error: StartupError) -> int:
    """Say why the command failed; returns its exit status."""
    tell(f"{command}: {error}")
    if isinstance(error, CheckpointError):
        return EXIT_CHECKPOINT
    return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
