"""Which data of a message goes by upload instead of inline, and how a digest takes its place. Sends nothing.

A message is complete when it is made: files are in it as bytes. Before it is sent, data above INLINE_BYTES is taken out
and named by its digest, and more of it, the largest first, where the message would still be too large for the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from google.protobuf.message import Message as ProtobufMessage

from fanlight.tensors import safetensors_file
from fanlight.v1 import media_pb2
from fanlight.v1.media_pb2 import Frame, Image, Tensor, Video

INLINE_BYTES = 4 * 1024 * 1024
"""Longest data that is sent within a message, where the server takes uploads."""
SMALLEST_UPLOAD_BYTES = 64 * 1024
"""Data below this is never worth an upload: the message has room for it, or is too large because of other things."""
TENSOR_NAME = "tensor"

Holder: TypeAlias = Image | Video | Frame | Tensor


@dataclass(frozen=True)
class LargeMedium:
    """Data that goes by upload: the message that holds it, and the file to upload, which outlives it there."""

    holder: Holder
    content: bytes

    def name_by(self, digest: str) -> None:
        """Puts the digest where the data was."""
        if isinstance(self.holder, Tensor):
            self.holder.Clear()
            self.holder.file.CopyFrom(media_pb2.TensorFile(digest=digest, name=TENSOR_NAME))
        else:
            self.holder.digest = digest


def may_hold_large_media(message: ProtobufMessage) -> bool:
    """Whether it is worth looking for large data in a message."""
    return message.ByteSize() > INLINE_BYTES


def find_large_media(message: ProtobufMessage, room: int) -> list[LargeMedium]:
    """The data of a message that is to be uploaded, so that all data is short and the message fits into `room` bytes.

    A message that has too many other bytes stays too large.
    """
    size = message.ByteSize()
    chosen: list[Holder] = []
    for length, holder in sorted(((len(each.data), each) for each in holders_of_data(message)), key=by_length):
        if length <= INLINE_BYTES and (size <= room or length < SMALLEST_UPLOAD_BYTES):
            break
        size -= length
        chosen.append(holder)
    return [LargeMedium(holder, content_of(holder)) for holder in chosen]


def by_length(entry: tuple[int, Holder]) -> int:
    """Sorts the longest data first."""
    return -entry[0]


def content_of(holder: Holder) -> bytes:
    """The file to upload for a message that holds data: the data itself, and for a tensor a safetensors file."""
    return safetensors_file(holder, TENSOR_NAME) if isinstance(holder, Tensor) else holder.data


def holders_of_data(message: ProtobufMessage) -> Iterator[Holder]:
    """The messages within a message that hold media as data."""
    if isinstance(message, Holder) and message.HasField("data"):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in [value] if isinstance(value, ProtobufMessage) else value:
                yield from holders_of_data(each)
