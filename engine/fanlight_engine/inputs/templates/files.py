"""Which file of a checkpoint a chat template came from, for whoever must repair it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fanlight_engine.checkpoints.json_files import JsonFileError, read_json_object

_PLAIN_FILE = "chat_template.jinja"
_JSON_FILES = ("chat_template.json", "processor_config.json", "tokenizer_config.json")


def file_of_template(directory: Path, source: str) -> str:
    """The file's name behind that of the directory; the directory's alone where no file has just this text."""
    plain = directory / _PLAIN_FILE
    if plain.is_file() and _same(plain.read_text(encoding="utf-8", errors="replace"), source):
        return f"{directory.name}/{_PLAIN_FILE}"
    for name in _JSON_FILES:
        if any(_same(found, source) for found in _templates_in(directory / name)):
            return f"{directory.name}/{name}"
    return directory.name


def _templates_in(file: Path) -> list[Any]:
    try:
        found = read_json_object(file)["chat_template"]
    except (JsonFileError, KeyError):
        return []
    return [one.get("template") for one in found if isinstance(one, dict)] if isinstance(found, list) else [found]


def _same(found: Any, source: str) -> bool:
    return isinstance(found, str) and found.strip() == source.strip()
