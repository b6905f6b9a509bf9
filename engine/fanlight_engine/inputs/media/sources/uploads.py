"""One upload as it comes in: chunks are written and hashed in order, and at the end digest and length must be right.

Several streams may say that they are the same upload: the newest writes on, the others are refused at their next chunk.
A chunk counts once it is written, or not at all, whatever happens to the stream meanwhile.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import (
    DigestMismatchError,
    InvalidRequestError,
    StoreFullError,
    UploadReplacedError,
    UploadTooLargeError,
)
from fanlight_engine.inputs.media.sources.background import Background
from fanlight_engine.inputs.media.sources.bodies import Body, BodyGoneError, Label
from fanlight_engine.inputs.media.sources.contents import Contents, HeldFile, Key, PartialState, PartialUpload
from fanlight_engine.inputs.media.sources.facts import FileFacts, facts_of

DIGEST_PREFIX = "sha256:"
INLINE_BYTES = 256 * 1024
"""More than that takes a thread: hashing runs at about a gigabyte a second, and the event loop has a millisecond."""

_NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A file that is held. `image_size` is (width, height) as stored, None for what is no picture."""

    digest: str
    size: int
    content_type: str
    image_size: tuple[int, int] | None
    seconds_left: float
    """How long it is kept if nobody uses it."""


def stored_object(held: HeldFile, seconds_left: float) -> StoredObject:
    """The file as it is told to callers."""
    return StoredObject(held.key.digest, held.size, held.facts.content_type, held.facts.image_size, seconds_left)


class Upload(Protocol):
    """One stream of an upload. Exactly one of `commit`, `suspend` and `drop` ends it; further ones do nothing."""

    @property
    def already_held(self) -> StoredObject | None:
        """Set where the file is held already, so that nothing needs to be sent; what is sent is not looked at."""
        ...

    async def write(self, chunk: bytes) -> None:
        """The next bytes; kept when this returns.

        Raises UploadTooLargeError, StoreFullError and DigestMismatchError (more than were announced), after which
        nothing of the upload is kept, and UploadReplacedError.
        """
        ...

    async def commit(self) -> StoredObject:
        """All bytes have come: the file is held from now on.

        Raises DigestMismatchError (wrong digest or length), InvalidRequestError (no bytes at all) and StoreFullError,
        after which nothing of the upload is kept, and UploadReplacedError.
        """
        ...

    def suspend(self) -> None:
        """The stream broke: what was committed is kept for a while where a digest was given, else nothing is."""
        ...

    def drop(self) -> None:
        """Nothing is kept, unless another stream goes on with it."""
        ...


@dataclass(frozen=True, slots=True)
class HeldUpload:
    """An upload of what is held already."""

    already_held: StoredObject

    async def write(self, chunk: bytes) -> None:
        """See Upload."""

    async def commit(self) -> StoredObject:
        """See Upload."""
        return self.already_held

    def suspend(self) -> None:
        """See Upload."""

    def drop(self) -> None:
        """See Upload."""


class IncomingUpload:
    """An upload whose bytes are needed."""

    def __init__(
        self, config: EngineConfig, contents: Contents, background: Background, partial: PartialUpload, max_bytes: int
    ) -> None:
        self.already_held = None
        self._config = config
        self._contents = contents
        self._background = background
        self._partial = partial
        self._max_bytes = max_bytes
        partial.writer = self

    def check_room(self) -> None:
        """Raises StoreFullError, and keeps nothing, where the rest of what was announced cannot come."""
        if self._partial.total_bytes is not None:
            try:
                self._contents.check_room(self._partial.total_bytes - self._partial.committed_bytes)
            except StoreFullError:
                self.drop()
                raise

    async def write(self, chunk: bytes) -> None:
        """See Upload."""
        partial = self._partial
        if len(chunk) <= INLINE_BYTES and not partial.body.blocks and partial.hasher is not None:
            await self._append(chunk, self._inline)
        else:
            await self._background.to_the_end(self._append(chunk, self._background.in_thread))

    async def commit(self) -> StoredObject:
        """See Upload."""
        return await self._background.to_the_end(self._commit())

    def suspend(self) -> None:
        """See Upload."""
        partial = self._partial
        if partial.digest is None or not (partial.committed_bytes or partial.lock.locked()):
            self.drop()

    def drop(self) -> None:
        """See Upload."""
        if self._is_current:
            self._contents.drop(self._partial)

    @property
    def _is_current(self) -> bool:
        return self._partial.state is PartialState.OPEN and self._partial.writer is self

    async def _append(self, chunk: bytes, run: Callable[..., Any]) -> None:
        partial = self._partial
        async with partial.lock:
            self._check_current()
            self._check_length(partial.committed_bytes + len(chunk))
            self._reserve(len(chunk))
            try:
                hasher = await run(_write_and_hash, partial.body, partial.committed_bytes, partial.hasher, chunk)
                self._check_current()
            except BaseException as error:
                self._contents.give_back(len(chunk))
                self._raise_as_refusal(error)
            partial.hasher = hasher
            self._contents.written(partial, len(chunk))

    async def _commit(self) -> StoredObject:
        partial = self._partial
        async with partial.lock:
            self._check_current()
            digest = await self._checked_digest()
            key = Key(partial.owner, digest)
            held = self._contents.find(key)
            if held is None:
                held = await self._seal(key)
            else:
                self._contents.drop(partial)
                self._contents.touch(held)
            return stored_object(held, self._contents.seconds_left(held))

    async def _checked_digest(self) -> str:
        partial = self._partial
        if not partial.committed_bytes:
            self._contents.drop(partial)
            raise InvalidRequestError("data", "the upload has no bytes; send at least one")
        hasher = await self._hash_again() if partial.hasher is None else partial.hasher
        digest = DIGEST_PREFIX + hasher.hexdigest()
        got, announced = partial.committed_bytes, partial.total_bytes
        if announced is not None and got != announced:
            self._refuse(f"{got} bytes came and {announced} were announced; upload it again, from the beginning")
        if partial.digest is not None and digest != partial.digest:
            self._refuse(f"the bytes have the digest {digest}, {partial.digest} was announced; upload them again")
        return digest

    async def _hash_again(self) -> Any:
        """After a restart, where nothing more needed to come."""
        try:
            hasher = await self._background.in_thread(hash_body, self._partial.body, self._partial.committed_bytes)
        except Exception as error:
            self._raise_as_refusal(error)
        self._check_current()
        return hasher

    async def _seal(self, key: Key) -> HeldFile:
        """The partial upload becomes a file. Nobody else can touch it from here on."""
        partial, contents = self._partial, self._contents
        size = partial.committed_bytes
        contents.finish(partial)
        try:
            facts = await self._background.in_thread(_seal_body, partial.body, key, size, self._config)
        except BaseException as error:
            contents.discard_reserved(partial.body, size)
            self._raise_as_refusal(error)
        held = contents.find(key)
        if held is not None:  # the same bytes came another way meanwhile
            contents.discard_reserved(partial.body, size)
            contents.touch(held)
            return held
        held = HeldFile(key, size, facts, partial.body, contents.now())
        contents.add(held)
        return held

    def _check_current(self) -> None:
        if not self._is_current:
            raise UploadReplacedError(
                "another upload of this digest took over, or this one was deleted or lay still for too long; ask how "
                "much of it is held and go on there"
            )

    def _check_length(self, size: int) -> None:
        announced = self._partial.total_bytes
        if size > self._max_bytes:
            self.drop()
            raise UploadTooLargeError(too_large(size, self._max_bytes))
        if announced is not None and size > announced:
            self._refuse(f"{size} bytes have come and {announced} were announced; upload it again")

    def _reserve(self, size: int) -> None:
        try:
            self._contents.reserve(size)
        except StoreFullError:
            self.drop()
            raise

    def _refuse(self, description: str) -> None:
        self.drop()
        raise DigestMismatchError(description)

    def _raise_as_refusal(self, error: BaseException) -> NoReturn:
        """What went wrong with a body, in the caller's terms."""
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            self.drop()
            raise StoreFullError(
                "the disk of the store is full; try again later; its operator can free some of it, or lower "
                "media_store_bytes"
            ) from error
        if isinstance(error, BodyGoneError):
            self.drop()
            self._check_current()
        if isinstance(error, OSError):
            self.drop()
        raise error

    async def _inline(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


def too_large(size: int, limit: int) -> str:
    """The text of an UploadTooLargeError."""
    return f"the upload has at least {size} bytes, {limit} are allowed; send a smaller file"


def hash_body(body: Body, size: int) -> Any:
    """SHA-256 of the first `size` bytes, read piece by piece. Blocks. Raises OSError, BodyGoneError."""
    hasher = hashlib.sha256()
    piece_bytes = 4 << 20
    for offset in range(0, size, piece_bytes):
        hasher.update(body.read(offset, min(piece_bytes, size - offset)))
    return hasher


def _write_and_hash(body: Body, offset: int, hasher: Any, chunk: bytes) -> Any:
    """A new hasher: the old one still belongs to the committed bytes, should this chunk not count in the end."""
    hasher = hash_body(body, offset) if hasher is None else hasher.copy()
    body.write(offset, chunk)
    hasher.update(chunk)
    return hasher


def _seal_body(body: Body, key: Key, size: int, config: EngineConfig) -> FileFacts:
    facts = facts_of(body, size, config)
    body.seal(Label(key.owner, key.digest, size, facts.content_type, facts.image_size))
    return facts
