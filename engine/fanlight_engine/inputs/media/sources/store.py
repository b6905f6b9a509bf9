"""MediaStore: uploads of each principal under their digests, bounded by bytes, for a time after their last use.

One per front. What one principal sent is invisible to all others, down to the time that sending it again takes. Runs on
the event loop, where only the books are kept (`contents`); bytes are moved and hashed in threads.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import (
    DigestMismatchError,
    EngineStoppedError,
    InvalidRequestError,
    StoreFullError,
    UploadOffsetError,
    UploadTooLargeError,
)
from fanlight_engine.inputs.media.sources.background import Background
from fanlight_engine.inputs.media.sources.bodies import Body, BodyGoneError, Label, MemoryShelf, Recovered, Shelf
from fanlight_engine.inputs.media.sources.contents import Contents, HeldFile, Key, PartialUpload
from fanlight_engine.inputs.media.sources.facts import FileFacts
from fanlight_engine.inputs.media.sources.store_on_disk import DirectoryShelf
from fanlight_engine.inputs.media.sources.uploads import (
    DIGEST_PREFIX,
    HeldUpload,
    IncomingUpload,
    StoredObject,
    Upload,
    hash_body,
    stored_object,
    too_large,
)

MOST_SECONDS_BETWEEN_SWEEPS = 30.0
"""Files past their time are found by nobody at once; sweeps only free their room."""

_DIGEST = re.compile(DIGEST_PREFIX + r"[0-9a-fA-F]{64}")


class MediaNotHeldError(LookupError):
    """Nothing is held for this principal under this digest: never sent, dropped, damaged, or somebody else's."""


class MediaState(StrEnum):
    """Whether a digest is held."""

    HELD = "held"
    PARTIAL = "partial"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class ObjectStatus:
    """What is known of a digest; `object` is set when it is held.

    `size` of a partial upload is what was announced for it, `committed_bytes` how much of it is kept.
    """

    digest: str
    state: MediaState
    size: int | None = None
    committed_bytes: int | None = None
    object: StoredObject | None = None


def is_digest(text: str) -> bool:
    """Whether the text is "sha256:" and 64 hexadecimal digits."""
    return _DIGEST.fullmatch(text) is not None


class MediaStore:
    """Uploads. `clock` gives seconds and never goes back."""

    def __init__(self, config: EngineConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._background = Background()
        self._contents = Contents(
            config.media_store_bytes, config.media_time_to_live, config.upload_time_to_live, clock, self._discard
        )
        directory = config.media_store_directory
        self._shelf: Shelf = DirectoryShelf(Path(directory)) if directory else MemoryShelf()
        self._sweeper: asyncio.Task[None] | None = None
        self._is_stopped = False

    @property
    def max_object_bytes(self) -> int:
        """Length of the largest file that can be uploaded; 0 where nothing can."""
        return min(max(self._config.max_image_bytes, self._config.max_video_bytes), self._config.media_store_bytes)

    async def start(self) -> None:
        """Take the directory, where there is one, with what is in it. Idempotent. Raises ConfigError."""
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep_from_time_to_time())
            try:
                for recovered in await self._background.in_thread(lambda: list(self._shelf.open())):
                    self._take_in(recovered)
                self._contents.sweep()
            except BaseException:
                await self.stop()
                raise

    async def stop(self) -> None:
        """Finish what has begun, and leave the directory. Idempotent; the store cannot be started again."""
        self._is_stopped = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper
        await self._background.close()
        self._shelf.close()

    def status(self, principal: str, digest: str) -> ObjectStatus:
        """What is held for this principal. Asking does not count as use."""
        key = _key(principal, digest)
        held = self._contents.find(key)
        if held is not None:
            return ObjectStatus(digest, MediaState.HELD, held.size, object=self._stored(held))
        partial = self._contents.find_partial(key)
        if partial is not None:
            return ObjectStatus(digest, MediaState.PARTIAL, partial.total_bytes, partial.committed_bytes)
        return ObjectStatus(digest, MediaState.ABSENT)

    async def read(self, principal: str, digest: str) -> bytes:
        """The whole file. Raises MediaNotHeldError."""
        held = self._find(principal, digest)
        with self._contents.reading(held):
            await self._verify(held)
            return await self._read(held, 0, held.size)

    def read_pieces(self, principal: str, digest: str, offset: int, piece_bytes: int) -> AsyncGenerator[bytes, None]:
        """The file from `offset` on, in pieces of at most so many bytes; it stays while it is read.

        Raises MediaNotHeldError and InvalidRequestError (offset beyond the end) at once.
        """
        held = self._find(principal, digest)
        if offset > held.size:
            raise InvalidRequestError("offset", f"it is {offset}, the file has {held.size} bytes; begin inside it")
        return self._pieces(held, offset, piece_bytes)

    async def put(self, principal: str, data: bytes) -> StoredObject:
        """Hold these bytes. Raises UploadTooLargeError, StoreFullError."""
        upload = self.begin_upload(principal, None, 0, len(data))
        try:
            await upload.write(data)
            return await upload.commit()
        finally:
            upload.drop()

    async def delete(self, principal: str, digest: str) -> bool:
        """Let go of the file and of what has come of an upload; whether there was any. Readers are not disturbed."""
        key = _key(principal, digest)
        held, partial = self._contents.find(key), self._contents.find_partial(key)
        if held is not None:
            self._contents.remove(held)
        if partial is not None:
            self._contents.drop(partial)
        return held is not None or partial is not None

    def begin_upload(self, principal: str, digest: str | None, offset: int, total_bytes: int | None) -> Upload:
        """A stream of an upload, the newest of its digest; `offset` 0 begins anew.

        Raises InvalidRequestError (malformed digest), UploadTooLargeError, StoreFullError, DigestMismatchError (begins
        beyond its announced end), UploadOffsetError and, after `stop`, EngineStoppedError.
        """
        if self._is_stopped:
            raise EngineStoppedError("the server is stopping; nothing new is accepted")
        if digest is not None and not is_digest(digest):
            raise InvalidRequestError(
                "digest", f"it is {digest[:80]!r}; write {DIGEST_PREFIX} and 64 hexadecimal digits"
            )
        key = None if digest is None else _key(principal, digest)
        held = None if key is None else self._contents.find(key)
        if held is not None:
            self._touch(held)
            return HeldUpload(self._stored(held))
        self._check_announced(offset, total_bytes)
        partial = self._resumed(key, offset) if offset else self._begun(principal, key, total_bytes)
        partial.total_bytes = total_bytes if total_bytes is not None else partial.total_bytes
        upload = IncomingUpload(self._config, self._contents, self._background, partial, self.max_object_bytes)
        upload.check_room()
        return upload

    def check_integrity(self) -> None:
        """For tests, when nothing is read or written: the books are right."""
        self._contents.check_integrity()

    def _check_announced(self, offset: int, total_bytes: int | None) -> None:
        limit = self.max_object_bytes
        if not limit:
            raise UploadTooLargeError(
                "this server keeps no uploads (media_store_bytes is 0); send the bytes themselves"
            )
        if total_bytes is None:
            return
        if total_bytes > limit:
            raise UploadTooLargeError(too_large(total_bytes, limit))
        if offset > total_bytes:
            raise DigestMismatchError(f"the upload begins at {offset}, and {total_bytes} bytes were announced in all")

    def _begun(self, principal: str, key: Key | None, total_bytes: int | None) -> PartialUpload:
        owner, digest = _owner(principal), None if key is None else key.digest
        body = self._shelf.new_body(Label(owner, digest, total_bytes))
        partial = PartialUpload(owner, digest, body, self._clock(), hasher=hashlib.sha256())
        self._contents.add_partial(partial)
        return partial

    def _resumed(self, key: Key | None, offset: int) -> PartialUpload:
        partial = None if key is None else self._contents.find_partial(key)
        committed = 0 if partial is None else partial.committed_bytes
        if partial is None or offset != committed:
            raise UploadOffsetError(
                f"the upload begins at {offset}, and {committed} bytes of it are kept; go on there, with its digest",
                committed,
            )
        return partial

    def _find(self, principal: str, digest: str) -> HeldFile:
        held = self._contents.find(_key(principal, digest))
        if held is None:
            raise MediaNotHeldError(digest)
        return held

    def _touch(self, held: HeldFile) -> None:
        self._contents.touch(held)
        if held.body.blocks:
            self._background.later(held.body.touch)

    def _stored(self, held: HeldFile) -> StoredObject:
        return stored_object(held, self._contents.seconds_left(held))

    async def _pieces(self, held: HeldFile, offset: int, piece_bytes: int) -> AsyncGenerator[bytes, None]:
        if held.is_removed:  # between the call and the first piece
            raise MediaNotHeldError(held.key.digest)
        with self._contents.reading(held):
            await self._verify(held)
            for begin in range(offset, held.size, piece_bytes):
                yield await self._read(held, begin, min(piece_bytes, held.size - begin))

    async def _verify(self, held: HeldFile) -> None:
        """After a restart: are the bytes still those of the digest? Damaged files go. Raises MediaNotHeldError."""
        if held.is_verified:
            return
        try:
            hasher = await self._background.in_thread(hash_body, held.body, held.size)
        except (OSError, BodyGoneError):
            hasher = None
        if hasher is None or DIGEST_PREFIX + hasher.hexdigest() != held.key.digest:
            self._contents.remove(held)
            raise MediaNotHeldError(held.key.digest)
        held.is_verified = True

    async def _read(self, held: HeldFile, offset: int, size: int) -> bytes:
        if not held.body.blocks:
            return held.body.read(offset, size)
        try:
            data = await self._background.in_thread(_touch_and_read, held.body, offset, size)
        except (OSError, BodyGoneError):
            data = b""
        if len(data) != size:
            self._contents.remove(held)
            raise MediaNotHeldError(held.key.digest)
        return data

    def _take_in(self, recovered: Recovered) -> None:
        """Something of an earlier process: kept if there is room for it. Comes least recently used first."""
        label, contents = recovered.label, self._contents
        try:
            if label.digest is None or not is_digest(label.digest) or recovered.size > self.max_object_bytes:
                raise StoreFullError("limits were lowered since")
            contents.reserve(recovered.size)
        except StoreFullError:
            self._discard(recovered.body)
            return
        moment = self._clock() - recovered.age
        if recovered.is_sealed:
            key, facts = Key(label.owner, label.digest), FileFacts(label.content_type, label.image_size)
            contents.add(HeldFile(key, recovered.size, facts, recovered.body, moment, is_verified=False))
        else:
            contents.add_partial(
                PartialUpload(
                    label.owner, label.digest, recovered.body, moment, label.total_bytes, recovered.size, hasher=None
                )
            )

    def _discard(self, body: Body) -> None:
        if body.blocks:
            self._background.later(body.discard)
        else:
            body.discard()

    async def _sweep_from_time_to_time(self) -> None:
        shortest = min(self._config.media_time_to_live, self._config.upload_time_to_live)
        while True:
            await asyncio.sleep(min(shortest / 4, MOST_SECONDS_BETWEEN_SWEEPS))
            self._contents.sweep()


def _owner(principal: str) -> str:
    return hashlib.sha256(principal.encode("utf-8", "surrogatepass")).hexdigest()


def _key(principal: str, digest: str) -> Key:
    return Key(_owner(principal), digest.lower())


def _touch_and_read(body: Body, offset: int, size: int) -> bytes:
    body.touch()
    return body.read(offset, size)
