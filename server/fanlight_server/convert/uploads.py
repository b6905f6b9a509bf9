"""MediaService's messages in both directions: what is uploaded, what is held, and embeddings made on request.

Only the first message of an upload says what it is; later ones that do are refused here, with the field named.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fanlight.v1 import media_pb2, media_service_pb2
from fanlight_engine.inputs.media.sources.store import MediaState
from fanlight_engine.request import Embeddings, ImagePart, StoredEmbeddings
from fanlight_server.convert.media import digest_of, image_of
from fanlight_server.convert.values import duration_of, grid_of, optional, size_of
from fanlight_server.status import field_error, missing_field

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fanlight_engine.dry_run import EncodedMedia
    from fanlight_engine.inputs.media.sources.store import ObjectStatus
    from fanlight_engine.inputs.media.sources.uploads import StoredObject

MAX_DIGESTS = 1000
"""Digests of one BatchGetMedia."""
PIECE_BYTES = 1 << 20
"""Bytes of one message of DownloadMedia, well below the largest."""

_STATES = {
    MediaState.HELD: media_service_pb2.MEDIA_STATE_HELD,
    MediaState.PARTIAL: media_service_pb2.MEDIA_STATE_PARTIAL,
    MediaState.ABSENT: media_service_pb2.MEDIA_STATE_ABSENT,
}


@dataclass(frozen=True, slots=True)
class UploadStart:
    """What an upload says of itself. `digest` and `total_bytes` are None where they were not announced."""

    digest: str | None
    offset: int
    total_bytes: int | None


def upload_start_of(message: media_service_pb2.UploadMediaRequest | None) -> UploadStart:
    """What the first message announces; None is a stream without messages. Raises ServiceError naming the field."""
    if message is None:
        raise missing_field("data", "never came: the stream ended without a message; send the file in chunks")
    digest = digest_of(message.digest, "digest") if message.HasField("digest") else None
    if digest is None and message.offset:
        raise missing_field("digest", "is not set; an upload is resumed by the digest of its whole file")
    total_bytes = optional(message, "total_bytes")
    if total_bytes == 0:
        raise field_error("total_bytes", "is 0; a file has at least one byte")
    return UploadStart(digest, message.offset, total_bytes)


def later_chunk_of(message: media_service_pb2.UploadMediaRequest) -> bytes:
    """The data of a message after the first. Raises ServiceError when it says more."""
    for field in ("digest", "offset", "total_bytes"):
        if message.HasField(field):
            raise field_error(field, "is set in a later message; only the first message of an upload may set it")
    return message.data


def upload_response(held: StoredObject, was_held: bool) -> media_service_pb2.UploadMediaResponse:
    """The file that is held now."""
    return media_service_pb2.UploadMediaResponse(media=_held(held), was_held=was_held)


def asked_digests(message: media_service_pb2.BatchGetMediaRequest) -> list[str]:
    """The digests to look up. Raises ServiceError naming the one that is wrong."""
    if not message.digests:
        raise missing_field("digests", "is empty; name the digests to look up")
    if len(message.digests) > MAX_DIGESTS:
        raise field_error("digests", f"has {len(message.digests)} digests, at most {MAX_DIGESTS} are allowed")
    return [digest_of(digest, f"digests[{i}]") for i, digest in enumerate(message.digests)]


def batch_get_response(found: Iterable[ObjectStatus]) -> media_service_pb2.BatchGetMediaResponse:
    """What is held of each digest."""
    return media_service_pb2.BatchGetMediaResponse(media=[_media(status) for status in found])


def delete_response() -> media_service_pb2.DeleteMediaResponse:
    """It is gone."""
    return media_service_pb2.DeleteMediaResponse()


def named_digest(message: media_service_pb2.DeleteMediaRequest | media_service_pb2.DownloadMediaRequest) -> str:
    """The one digest that a request is about. Raises ServiceError when it is malformed."""
    return digest_of(message.digest, "digest")


def download_response(data: bytes, total_bytes: int | None = None) -> media_service_pb2.DownloadMediaResponse:
    """The next bytes; the first message also says how many there are in all."""
    return media_service_pb2.DownloadMediaResponse(data=data, total_bytes=total_bytes)


def images_to_encode(message: media_service_pb2.EncodeImagesRequest) -> list[ImagePart]:
    """The images. Raises ServiceError naming the field; embeddings are refused, because they are encoded already."""
    if not message.images:
        raise missing_field("images", "is empty; send at least one image")
    return [_image_to_encode(image, f"images[{i}]") for i, image in enumerate(message.images)]


def encode_images_response(encoded: Iterable[EncodedMedia]) -> media_service_pb2.EncodeImagesResponse:
    """The embeddings that are held now."""
    return media_service_pb2.EncodeImagesResponse(images=[_encoded_image(one) for one in encoded])


def _held(held: StoredObject) -> media_service_pb2.Media:
    return media_service_pb2.Media(
        digest=held.digest,
        state=media_service_pb2.MEDIA_STATE_HELD,
        size_bytes=held.size,
        content_type=held.content_type,
        size=size_of(held.image_size),
        time_to_live=duration_of(math.ceil(held.seconds_left)),
    )


def _media(status: ObjectStatus) -> media_service_pb2.Media:
    if status.object is not None:
        return _held(status.object)
    return media_service_pb2.Media(
        digest=status.digest,
        state=_STATES[status.state],
        size_bytes=status.size,
        committed_bytes=status.committed_bytes,
    )


def _image_to_encode(image: media_pb2.Image, path: str) -> ImagePart:
    part = image_of(image, path)
    if isinstance(part.source, Embeddings | StoredEmbeddings):
        raise field_error(
            f"{path}.{image.WhichOneof('source')}", "is encoded already; use it as the source of an image in a prompt"
        )
    return part


def _encoded_image(one: EncodedMedia) -> media_service_pb2.EncodedImage:
    return media_service_pb2.EncodedImage(
        embeddings_id=one.id,
        model_fingerprint=one.model_fingerprint,
        grid=grid_of(one.grid),
        embeddings=one.embeddings,
        hidden_size=one.hidden_size,
        size_bytes=one.stored_bytes,
        was_cached=one.was_cached,
    )
