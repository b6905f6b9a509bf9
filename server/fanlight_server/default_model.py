"""The embedded model: where it lies, and what it says of settings beyond its generation_config.json.

It is beside the source in a checkout, and inside the package in an installed wheel.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

DEFAULT_MODEL = "fanlight-tiny"
_SETTINGS = {"default_max_new_tokens": 256}
"""It is small, and asked about what it was not trained on it may go on to the end of its context."""


def default_model_path() -> Path:
    """The directory of the embedded model. It may be missing where the package was built without it."""
    package = Path(__file__).resolve().parent
    repository = package.parents[1]
    candidates = (repository / "models" / DEFAULT_MODEL, package / "models" / DEFAULT_MODEL)
    return next((path for path in candidates if path.is_dir()), candidates[-1])


def own_settings(directory: Path) -> Mapping[str, int]:
    """What the layer of the checkpoint in `directory` says in addition; nothing for any but the embedded one."""
    return _SETTINGS if directory.resolve() == default_model_path().resolve() else {}
