"""Reads the JSON files of a checkpoint or an adapter, which somebody else wrote. Knows none of their keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fanlight_engine.errors import in_one_line

LARGEST_BYTES = 64 << 20
"""Of one file; the index of a model of a trillion weights has a fourth of it."""


class JsonFileError(Exception):
    """The file gives no object; the text goes on from its name, for example "is not JSON: ..."."""


def read_json_object(file: Path) -> dict[str, Any]:
    """The object in the file. Raises JsonFileError, for objects that are nested too deeply as well."""
    try:
        size = file.stat().st_size
        if size > LARGEST_BYTES:
            raise JsonFileError(f"has {size} bytes, at most {LARGEST_BYTES} are read")
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise JsonFileError(f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise JsonFileError(f"is not JSON: {in_one_line(error)}") from error
    if not isinstance(content, dict):
        raise JsonFileError(f"holds {type(content).__name__}, a JSON object is needed")
    return content
