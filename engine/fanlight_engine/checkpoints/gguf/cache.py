"""Where converted checkpoints are kept: a directory each, whole or not there at all.

A checkpoint is written beside its place and renamed into it, so a crash, or two processes at once, leave no half one.
Knows files; knows neither GGUF nor weights.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fanlight_engine.core.memory_use import readable_bytes
from fanlight_engine.errors import CheckpointError

CACHE_VARIABLE = "FANLIGHT_CACHE_DIR"
_MANIFEST = "fanlight-conversion.json"
_UNFINISHED_PREFIX = ".unfinished-"
_SECONDS_UNTIL_ABANDONED = 24 * 3600


def default_cache_directory() -> Path:
    """$FANLIGHT_CACHE_DIR, else `fanlight` below $XDG_CACHE_HOME, which is ~/.cache unless it is set."""
    own = os.environ.get(CACHE_VARIABLE)
    if own:
        return Path(own).expanduser()
    users = os.environ.get("XDG_CACHE_HOME")
    return (Path(users) if users else Path.home() / ".cache") / "fanlight"


class ConvertedCheckpoints:
    """The converted checkpoints below one directory, by key."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, key: str) -> Path | None:
        """The checkpoint's directory if it is whole: all files that its manifest names, each of the size it had."""
        place = self._place(key)
        try:
            sizes = json.loads((place / _MANIFEST).read_text(encoding="utf-8"))["sizes"]
            whole = sizes == _sizes(place)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return place if whole else None

    def store(self, key: str, write: Callable[[Path], None], expected_bytes: int) -> Path:
        """Let `write` fill a new directory and put it in place. Raises CheckpointError when it cannot be kept."""
        place = self._place(key)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._remove_abandoned()
            self._check_room(expected_bytes)
            unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED_PREFIX, dir=self._directory))
            try:
                write(unfinished)
                (unfinished / _MANIFEST).write_text(json.dumps({"sizes": _sizes(unfinished)}), encoding="utf-8")
                return self._put_in_place(key, unfinished, place)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
        except OSError as error:
            raise CheckpointError(
                f"converted checkpoints cannot be kept in {self._directory}: {error.strerror or error}; name another "
                f"directory in {CACHE_VARIABLE}"
            ) from error

    def _place(self, key: str) -> Path:
        return self._directory / re.sub(r"[^A-Za-z0-9._-]", "_", key)

    def _put_in_place(self, key: str, unfinished: Path, place: Path) -> Path:
        """Rename, unless another process was faster; what lies there torn is taken away first."""
        if place.exists() and self.find(key) is None:
            self._take_away(place)
        try:
            unfinished.rename(place)
        except OSError:
            if self.find(key) is None:
                raise
        return place

    def _take_away(self, torn: Path) -> None:
        """By a rename, so that nobody ever finds it half removed."""
        aside = Path(tempfile.mkdtemp(prefix=_UNFINISHED_PREFIX, dir=self._directory))
        with contextlib.suppress(FileNotFoundError):  # another process may just have done the same
            torn.rename(aside / "torn")
        shutil.rmtree(aside, ignore_errors=True)

    def _check_room(self, expected_bytes: int) -> None:
        free = shutil.disk_usage(self._directory).free
        if free < expected_bytes:
            raise CheckpointError(
                f"the converted checkpoint needs {readable_bytes(expected_bytes)} and {self._directory} has room for "
                f"{readable_bytes(free)}; make room, or name another directory in {CACHE_VARIABLE}"
            )

    def _remove_abandoned(self) -> None:
        """What crashed conversions and replaced ones left; one that is still running is younger than that."""
        for leftover in self._directory.glob(f"{_UNFINISHED_PREFIX}*"):
            with contextlib.suppress(OSError):
                if time.time() - leftover.stat().st_mtime > _SECONDS_UNTIL_ABANDONED:
                    shutil.rmtree(leftover, ignore_errors=True)


def _sizes(directory: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in sorted(directory.iterdir()) if file.name != _MANIFEST}
