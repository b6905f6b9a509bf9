"""Where the embedded model lies: beside the source in a checkout, inside the package in an installed wheel."""

from __future__ import annotations

from pathlib import Path

DEFAULT_MODEL = "fanlight-tiny"


def default_model_path() -> Path:
    """The directory of the embedded model. It may be missing where the package was built without it."""
    package = Path(__file__).resolve().parent
    repository = package.parents[1]
    candidates = (repository / "models" / DEFAULT_MODEL, package / "models" / DEFAULT_MODEL)
    return next((path for path in candidates if path.is_dir()), candidates[-1])
