"""Checkpoints to serve, by name: the embedded one, and random-weight ones that are made once per process."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from fanlight_server.default_model import default_model_path
from tests.engine.checkpoints import make_llava, make_qwen2_5_vl
from tests.engine.native_checkpoints import make_native_llava, make_native_llava_next, make_native_qwen2_5_vl
from tests.engine.vision_checkpoints import make_llava_next, make_qwen2_vl

EMBEDDED = "fanlight-tiny"

MAKERS: dict[str, Callable[[Path], Path]] = {
    "qwen2_vl": make_qwen2_vl,
    "qwen2_5_vl": make_qwen2_5_vl,
    "llava": make_llava,
    "llava_next": make_llava_next,
    "native qwen2_5_vl": make_native_qwen2_5_vl,
    "native llava": make_native_llava,
    "native llava_next": make_native_llava_next,
}
"""How each random-weight checkpoint is written; native ones have a description instead of a processor."""


@cache
def model_path(name: str) -> Path:
    """The directory of a checkpoint; a made one is removed when the process ends."""
    return default_model_path() if name == EMBEDDED else MAKERS[name](_directory() / name)


@cache
def _directory() -> Path:
    directory = tempfile.TemporaryDirectory(prefix="fanlight-models-")
    atexit.register(directory.cleanup)
    return Path(directory.name)
