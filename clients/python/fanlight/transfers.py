"""Uploads and downloads without the calls: what to ask and send next, and whether to go on after a break.

Whoever drives a transfer makes the calls, by thread or by task, and reports each error; media_store.py does both. A
transfer that broke off goes on at the byte that the other side has got to, a few times in a row without progress.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import grpc

from fanlight.errors import FanlightError, Internal, error_from_call, invalid_field
from fanlight.handles import MediaState, Upload, read_media
from fanlight.media_sources import BYTES, SavableImage, png_of
from fanlight.v1 import media_service_pb2

ProgressCallback: TypeAlias = Callable[[int, int], None]
"""Told how many bytes have been passed on, and how many there are in all."""
UploadSource: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | SavableImage
"""A file: its path, its bytes, or an image object, which becomes a PNG."""

CHUNK_BYTES = 1024 * 1024
DIGEST_PREFIX = "sha256:"
MOST_BREAKS = 5
"""How often in a row a transfer may break off without progress before its error is raised."""
FIRST_PAUSE_SECONDS = 0.1
BROKEN_CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
BROKEN_REASONS = (None, "DRAINING", "ENGINE_UNAVAILABLE")
COLLISION_REASONS = ("UPLOAD_OFFSET_WRONG", "UPLOAD_REPLACED")


class Deadline:
    """The time that several calls in a row may take together."""

    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout

    def left(self) -> float | None:
        """Seconds left, negative once it has passed; None for no limit."""
        return None if self._end is None else self._end - time.monotonic()


class Patience:
    """Decides whether a transfer that broke off goes on, and after which pause."""

    def __init__(self) -> None:
        self._breaks = 0

    def made_progress(self) -> None:
        """The other side has got further."""
        self._breaks = 0

    def pause_after(self, error: FanlightError) -> float:
        """Seconds to wait before going on. Raises the error where that is no use."""
        self._breaks += 1
        if self._breaks > MOST_BREAKS or not can_go_on_after(error):
            raise error
        return error.retry_after or FIRST_PAUSE_SECONDS * 2 ** (self._breaks - 1)


def can_go_on_after(error: FanlightError) -> bool:
    """Whether an error says that the connection, the server or another upload got in the way, not what is sent."""
    # grpc.aio sometimes tells INTERNAL in place of the status of a call that ended while it was sending. Going on then
    # ends with that status.
    return error.reason in COLLISION_REASONS or (error.code in BROKEN_CODES and error.reason in BROKEN_REASONS)


class ByteSource:
    """A file, by path or in memory, that may be read several times."""

    def __init__(self, source: UploadSource) -> None:
        self._source = Path(source) if isinstance(source, str | os.PathLike) else file_in_memory(source)
        self.size = self._source.stat().st_size if isinstance(self._source, Path) else len(self._source)
        if not self.size:
            raise invalid_field("data", "there is nothing to upload: the file is empty")
        self._digest: str | None = None

    def open(self) -> io.BufferedReader | io.BytesIO:
        """A file object at the beginning."""
        return self._source.open("rb") if isinstance(self._source, Path) else io.BytesIO(self._source)

    def digest(self) -> str:
        """The digest of the whole, as the contract writes it. Reads the file the first time."""
        if self._digest is None:
            with self.open() as file:
                self._digest = DIGEST_PREFIX + hashlib.file_digest(file, "sha256").hexdigest()
        return self._digest


def file_in_memory(source: bytes | bytearray | memoryview | SavableImage) -> bytes:
    """The file that bytes are, or that an image object becomes. Raises TypeError for anything else."""
    if isinstance(source, BYTES):
        return bytes(source)
    if isinstance(source, SavableImage):
        return png_of(source)
    raise TypeError(f"an upload is a path, bytes or an object with a save method, not a {type(source).__name__}")


class UploadTransfer:
    """One upload: asks what the server has, sends the rest, checks what it got, over again while breaks allow it."""

    def __init__(self, source: ByteSource, progress: ProgressCallback | None = None) -> None:
        self._source = source
        self._progress = progress
        self._patience = Patience()
        self._offset = 0
        self._furthest = 0
        self._told = -1
        self._failure: Exception | None = None

    def question(self) -> media_service_pb2.BatchGetMediaRequest:
        """Asks what the server has of the file."""
        return media_service_pb2.BatchGetMediaRequest(digests=[self._source.digest()])

    def take_answer(self, response: media_service_pb2.BatchGetMediaResponse) -> Upload | None:
        """The upload if the server has it all; None if `messages` are to be sent."""
        facts = read_media(response.media[0])
        if facts.state is MediaState.HELD:
            return self._finished(response.media[0])
        self._offset = facts.committed or 0
        if self._offset > self._furthest:
            self._furthest = self._offset
            self._patience.made_progress()
        return None

    def messages(self) -> Iterator[media_service_pb2.UploadMediaRequest]:
        """What the server lacks, in chunks. grpc hides what goes wrong in here: `pause_after` raises it."""
        try:
            yield from self._chunks()
        except Exception as error:  # of the file, or of the caller's progress function
            self._failure = error
            raise

    def _chunks(self) -> Iterator[media_service_pb2.UploadMediaRequest]:
        header: dict[str, Any] = {"digest": self._source.digest(), "total_bytes": self._source.size}
        position = header["offset"] = self._offset
        with self._source.open() as file:
            file.seek(position)
            while (data := file.read(CHUNK_BYTES)) or header:
                yield media_service_pb2.UploadMediaRequest(data=data, **header)
                header = {}
                position += len(data)
                self._tell(position)

    def take_response(self, response: media_service_pb2.UploadMediaResponse) -> Upload:
        """The upload, when the server says that it holds what was sent."""
        if response.media.digest != self._source.digest():
            raise Internal(
                f"the server answered the upload of {self._source.digest()} with {response.media.digest!r}",
                code=grpc.StatusCode.DATA_LOSS,
            )
        return self._finished(response.media)

    def pause_after(self, error: grpc.RpcError) -> float:
        """Seconds to wait before asking again. Raises what went wrong where that is no use."""
        self.raise_failure()
        return self._patience.pause_after(error_from_call(error))

    def raise_failure(self) -> None:
        """Raises what went wrong on this side, if anything did."""
        if self._failure:
            raise self._failure

    def _finished(self, media: media_service_pb2.Media) -> Upload:
        self._tell(self._source.size)
        return Upload(media.digest, self._source.size, media.content_type)

    def _tell(self, position: int) -> None:
        if self._progress and position > self._told:
            self._told = position
            self._progress(position, self._source.size)


class DownloadTransfer:
    """One download into a file object: hashes what comes, and goes on where it broke off."""

    def __init__(self, digest: str, sink: BinaryIO, progress: ProgressCallback | None = None) -> None:
        self._digest = digest
        self._sink = sink
        self._progress = progress
        self._patience = Patience()
        self._hash = hashlib.sha256()
        self._received = 0
        self._total = 0

    def request(self) -> media_service_pb2.DownloadMediaRequest:
        """Asks for what has not come yet."""
        return media_service_pb2.DownloadMediaRequest(digest=self._digest, offset=self._received)

    def take(self, response: media_service_pb2.DownloadMediaResponse) -> None:
        """Keeps the next bytes."""
        if response.data:
            self._patience.made_progress()
        self._sink.write(response.data)
        self._hash.update(response.data)
        self._received += len(response.data)
        self._total = response.total_bytes or self._total
        if self._progress:
            self._progress(self._received, max(self._total, self._received))

    def check(self) -> None:
        """Raises Internal unless the bytes are those that were asked for."""
        came = DIGEST_PREFIX + self._hash.hexdigest()
        if came != self._digest:
            raise Internal(
                f"the download of {self._digest} gave {self._received} bytes with the digest {came}; download it again",
                code=grpc.StatusCode.DATA_LOSS,
            )

    def pause_after(self, error: grpc.RpcError) -> float:
        """Seconds to wait before asking for the rest. Raises the error where that is no use."""
        return self._patience.pause_after(error_from_call(error))


@contextmanager
def sink_for(to: str | os.PathLike[str] | None) -> Iterator[tuple[BinaryIO, Callable[[], bytes | Path]]]:
    """A file object to write to, and what a download returns at its end: the bytes, or the path of the file.

    A file appears under its name only when all of it is there; until then it is written beside it.
    """
    if to is None:
        memory = io.BytesIO()
        yield memory, memory.getvalue
        return
    path = Path(to)
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            yield file, lambda: path
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
