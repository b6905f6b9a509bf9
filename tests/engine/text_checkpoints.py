"""Random-weight checkpoints of text decoders, made as those in `checkpoints` are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

MODELS: dict[str, Callable[[Path], Path]] = {}
"""How to make each, given a place to make it in."""
