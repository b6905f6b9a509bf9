"""A shelf in a directory: uploads outlive the process, and a crash at any moment.

    DIRECTORY/lock                  held while a server uses the directory
    DIRECTORY/partial/<32 hex>      a label of LABEL_BYTES, then the bytes that have come
    DIRECTORY/objects/<32 hex>      the same, complete: moved here in one step, so that nothing is ever half there

Names are random, so that nothing of a client reaches a path. The labels are the index; no other file could disagree
with them. Writes are not forced to the device: what a power failure tears is found out by its digest, by whoever reads
it. Every method blocks.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fanlight_engine.errors import ConfigError
from fanlight_engine.inputs.media.sources.bodies import Body, BodyGoneError, Label, Recovered

LABEL_BYTES = 512
_FORMAT = 1
_NAME = re.compile(r"[0-9a-f]{32}")


class DirectoryShelf:
    """The directory. Raises ConfigError where it cannot be used, or is used by another server."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._objects = directory / "objects"
        self._partial = directory / "partial"
        self._lock: int | None = None

    def open(self) -> list[Recovered]:
        """Lock the directory, remove what is of no use any more, and list the rest, the least recently used first."""
        try:
            for folder in (self._directory, self._objects, self._partial):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"media_store_directory {str(self._directory)!r} cannot be used: {error.strerror}; name a directory "
                "that the server may write"
            ) from error
        self._take_lock(self._lock)
        found = [*self._recover(self._objects, True), *self._recover(self._partial, False)]
        return sorted(found, key=lambda one: -one.age)

    def close(self) -> None:
        """Give the directory to the next server. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def new_body(self, label: Label) -> Body:
        """A body without a file, until something is written."""
        assert self._lock is not None, "the store was not started"
        return DiskBody(self._partial / secrets.token_hex(16), self._objects, label)

    def _take_lock(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise ConfigError(
                f"media_store_directory {str(self._directory)!r} is used by another server; give each a directory of "
                "its own"
            ) from error

    def _recover(self, folder: Path, is_sealed: bool) -> Iterator[Recovered]:
        for entry in list(os.scandir(folder)):
            if not _NAME.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            path = Path(entry.path)
            found = entry.stat()
            size = found.st_size - LABEL_BYTES
            label = _read_label(path)
            # A file that is held has its length in its label; a shorter one was torn. Without a digest, nobody resumes.
            if label is None or label.digest is None or size < 1 or (is_sealed and size != label.total_bytes):
                path.unlink(missing_ok=True)
                continue
            age = max(0.0, time.time() - found.st_mtime)
            yield Recovered(label, DiskBody(path, self._objects, label, exists=True), size, age, is_sealed)


class DiskBody:
    """One file. It is opened anew for each call: thousands of them may lie around, and open files are scarce."""

    blocks = True

    def __init__(self, path: Path, objects: Path, label: Label, exists: bool = False) -> None:
        self._path = path
        self._objects = objects
        self._label = label
        self._exists = exists
        self._is_gone = False
        self._lock = threading.Lock()

    def write(self, offset: int, chunk: bytes) -> None:
        """See Body."""
        with self._lock, self._opened_for_writing() as file:
            os.ftruncate(file, LABEL_BYTES + offset)
            _write_all(file, chunk, LABEL_BYTES + offset)

    def read(self, offset: int, size: int) -> bytes:
        """See Body."""
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise BodyGoneError from error
        try:
            pieces = []
            while size > 0 and (piece := os.pread(file, size, LABEL_BYTES + offset)):
                pieces.append(piece)
                offset += len(piece)
                size -= len(piece)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        finally:
            os.close(file)

    def seal(self, label: Label) -> None:
        """See Body."""
        with self._lock, self._opened_for_writing() as file:
            assert label.total_bytes is not None
            os.ftruncate(file, LABEL_BYTES + label.total_bytes)
            _write_all(file, _as_bytes(label), 0)
            self._path = self._path.rename(self._objects / self._path.name)

    def touch(self) -> None:
        """See Body."""
        with suppress(OSError):
            os.utime(self._path)

    def discard(self) -> None:
        """See Body."""
        with self._lock, suppress(OSError):
            self._is_gone = True
            self._path.unlink(missing_ok=True)

    @contextmanager
    def _opened_for_writing(self) -> Iterator[int]:
        if self._is_gone:
            raise BodyGoneError
        flags = os.O_WRONLY | os.O_CLOEXEC | (0 if self._exists else os.O_CREAT | os.O_EXCL)
        try:
            file = os.open(self._path, flags, 0o600)
        except FileNotFoundError as error:
            raise BodyGoneError from error
        try:
            if not self._exists:
                self._exists = True
                _write_all(file, _as_bytes(self._label), 0)
            yield file
        finally:
            os.close(file)


def _write_all(file: int, data: bytes, offset: int) -> None:
    """The system may take less than all at once, above 2 GiB and on a disk that fills up."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(file, rest, offset)
        offset += written
        rest = rest[written:]


def _as_bytes(label: Label) -> bytes:
    fields = {
        "fanlight_media": _FORMAT,
        "owner": label.owner,
        "digest": label.digest,
        "total_bytes": label.total_bytes,
        "content_type": label.content_type,
        "image_size": label.image_size,
    }
    text = json.dumps(fields).encode()
    assert len(text) < LABEL_BYTES
    return text.ljust(LABEL_BYTES - 1) + b"\n"


def _read_label(path: Path) -> Label | None:
    """None for a file that is damaged, or of another version."""
    try:
        with path.open("rb") as file:
            fields: Any = json.loads(file.read(LABEL_BYTES))
        if fields["fanlight_media"] != _FORMAT:
            return None
        digest, total, size = fields["digest"], fields["total_bytes"], fields["image_size"]
        return Label(
            owner=str(fields["owner"]),
            digest=None if digest is None else str(digest),
            total_bytes=None if total is None else int(total),
            content_type=str(fields["content_type"]),
            image_size=None if size is None else (int(size[0]), int(size[1])),
        )
    except (OSError, ValueError, TypeError, LookupError):
        return None
