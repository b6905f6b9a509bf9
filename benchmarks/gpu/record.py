"""The results file: one JSON object, written anew at every figure. Whoever is stopped loses only what it measured.

One process writes at a time: the section that runs, or the loop between two sections. Knows nothing of what is in it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Results:
    """What is known so far. Every change is on disk when the call returns."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def read(self) -> dict[str, Any]:
        """The whole content; empty where nothing was written yet."""
        if not self.file.is_file():
            return {}
        return json.loads(self.file.read_text(encoding="utf-8"))

    def set(self, **facts: Any) -> None:
        """Facts of the whole run."""
        self._write(self.read() | facts)

    def set_section(self, name: str, **facts: Any) -> None:
        """Facts of one section, beside those that it has."""
        content = self.read()
        sections: dict[str, Any] = content.setdefault("sections", {})
        sections[name] = sections.get(name, {}) | facts
        self._write(content)

    def section(self, name: str) -> dict[str, Any]:
        """What is known of one section."""
        return self.read().get("sections", {}).get(name, {})

    def _write(self, content: dict[str, Any]) -> None:
        """A reader sees the old content or the new one, never a part."""
        beside = self.file.with_suffix(".part")
        beside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        os.replace(beside, self.file)
