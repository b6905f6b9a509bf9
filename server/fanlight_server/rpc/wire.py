"""Bytes -> messages: malformed ones and fields that this server does not know are refused, not dropped.

Works on any protobuf message through reflection, knows no particular one, and never copies a bytes field.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from functools import lru_cache
from itertools import islice

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from fanlight_engine.errors import Violation
from fanlight_server.status import ErrorReason, ServiceError

MAX_VIOLATIONS = 10

Deserializer = Callable[[bytes], Message]


class UnknownFieldsError(ServiceError):
    """A message has fields that this server does not know. `request` is the message without them."""

    def __init__(self, request: Message, violations: tuple[Violation, ...]) -> None:
        places = "; ".join(f"{violation.field}: {violation.description}" for violation in violations)
        super().__init__(ErrorReason.UNKNOWN_FIELD, places, violations)
        self.request = request


def parse(deserialize: Deserializer, raw: bytes) -> Message:
    """The message. Raises ServiceError; its text names no types."""
    try:
        message = deserialize(raw)
    except DecodeError:
        raise ServiceError(
            ErrorReason.MALFORMED_MESSAGE,
            f"the {len(raw)} bytes are no valid message of this method: broken or cut off, nested too deeply, or with "
            "a string that is not UTF-8",
        ) from None
    violations = tuple(islice(unknown_fields(message), MAX_VIOLATIONS))
    if violations:
        raise UnknownFieldsError(message, violations)
    return message


class MessageStream:
    """The messages of a client's stream. After UnknownFieldsError the next message can still be read.

    The stream is opened when it is first read: gRPC's iterator complains if it is made and never used.
    """

    def __init__(self, raw_messages: AsyncIterable[bytes], deserialize: Deserializer) -> None:
        self._raw_messages = raw_messages
        self._deserialize = deserialize
        self._opened: AsyncIterator[bytes] | None = None

    def __aiter__(self) -> MessageStream:
        return self

    async def __anext__(self) -> Message:
        if self._opened is None:
            self._opened = aiter(self._raw_messages)
        return parse(self._deserialize, await anext(self._opened))


def unknown_fields(message: Message, path: str = "") -> Iterator[Violation]:
    """Each field of the message, or of a message in it, that has a number this server does not know."""
    for unknown in UnknownFieldSet(message):
        place = path or "the request message"
        yield Violation(place, f"has field number {unknown.field_number}, which this server does not know; it is older")
    for field in _message_fields(message.DESCRIPTOR):
        below = f"{path}.{field.name}" if path else field.name
        if not field.is_repeated:
            if message.HasField(field.name):
                yield from unknown_fields(getattr(message, field.name), below)
        else:
            for index, element in enumerate(getattr(message, field.name)):
                yield from unknown_fields(element, f"{below}[{index}]")


@lru_cache(maxsize=256)
def _message_fields(descriptor: Descriptor) -> tuple[FieldDescriptor, ...]:
    """Fields to descend into. Maps are left out: the contract has none."""
    return tuple(
        field
        for field in descriptor.fields
        if field.message_type is not None and not field.message_type.GetOptions().map_entry
    )
