"""Names for what a server holds: uploads, embeddings, and what it says about a digest. Knows no call.

Upload and EncodedImage stand for a picture or a clip wherever one is expected. They are plain values: they may be kept,
and made again from the digest or id alone. What they name leaves the server after a time without use.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from fanlight.v1 import media_service_pb2
from fanlight.values import Grid, Size, known_member, optional, optional_grid, optional_seconds, optional_size


@dataclass(frozen=True)
class Upload:
    """An uploaded file, as a source of images and videos.

    digest        "sha256:" and 64 hexadecimal digits
    size          length in bytes; None when it is not known
    content_type  what it is, from its first bytes, such as "image/jpeg"; empty when it is not known
    """

    digest: str
    size: int | None = None
    content_type: str = ""


@dataclass(frozen=True)
class EncodedImage:
    """The embeddings of one image, kept by the server, as a source of images.

    embeddings_id      names them: the digest of the safetensors file that they are kept in
    model_fingerprint  the model that they belong to
    grid               counts of patches before merging; None for models without a grid
    embeddings         how many embeddings the image takes in a prompt
    hidden_size        length of one embedding
    size               length of the file in bytes
    was_cached         whether the encoder did not have to run
    """

    embeddings_id: str
    model_fingerprint: str = ""
    grid: Grid | None = None
    embeddings: int = 0
    hidden_size: int = 0
    size: int = 0
    was_cached: bool = False


class MediaState(enum.StrEnum):
    """Whether a digest is held. UNKNOWN: newer than this client."""

    HELD = "held"
    PARTIAL = "partial"
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Media:
    """What a server says about a digest.

    digest        "sha256:" and 64 hexadecimal digits
    state         held, partial (an upload was broken off, or is under way) or absent
    size          length in bytes; None when it is not known
    committed     how many bytes of a partial upload were kept; None when there is none
    content_type  what it is, such as "image/jpeg"; empty when it is not known
    picture_size  of an image, as stored, before its EXIF orientation is applied; None for anything else
    time_to_live  seconds that it is kept if nobody uses it; None when it is not held
    """

    digest: str
    state: MediaState
    size: int | None = None
    committed: int | None = None
    content_type: str = ""
    picture_size: Size | None = None
    time_to_live: float | None = None


Handle: TypeAlias = Upload | EncodedImage | Media | str
"""Something held: a handle, or its digest or id itself."""


def digest_of(handle: Handle) -> str:
    """The digest or id that a handle stands for."""
    if isinstance(handle, str):
        return handle
    return handle.embeddings_id if isinstance(handle, EncodedImage) else handle.digest


def digests_of(handles: Handle | Iterable[Handle]) -> list[str]:
    """The digests and ids that one handle or several stand for."""
    several = [handles] if isinstance(handles, Handle) else handles
    return [digest_of(each) for each in several]


def read_media(message: media_service_pb2.Media) -> Media:
    """Reads the message of the same name."""
    return Media(
        digest=message.digest,
        state=known_member(MediaState, media_service_pb2.MediaState, "MEDIA_STATE_", message.state),
        size=optional(message, "size_bytes"),
        committed=optional(message, "committed_bytes"),
        content_type=message.content_type,
        picture_size=optional_size(message, "size"),
        time_to_live=optional_seconds(message, "time_to_live"),
    )


def read_encoded_image(message: media_service_pb2.EncodedImage) -> EncodedImage:
    """Reads the message of the same name."""
    return EncodedImage(
        embeddings_id=message.embeddings_id,
        model_fingerprint=message.model_fingerprint,
        grid=optional_grid(message, "grid"),
        embeddings=message.embeddings,
        hidden_size=message.hidden_size,
        size=message.size_bytes,
        was_cached=message.was_cached,
    )
