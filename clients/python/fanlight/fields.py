"""Puts what callers pass into fields of messages; a value that a field cannot hold is refused with the field's path.

What a server takes of the values that fit is not checked here, but a refusal says which fields are 1 and above.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as ProtobufMessage

from fanlight.errors import InvalidRequest, invalid_field

UNFIT = (TypeError, ValueError, OverflowError)
FROM_ONE = frozenset({"min_pixels", "max_pixels", "max_tokens", "num_frames", "max_new_tokens"})
"""Whole numbers for which 0 is no value."""
LARGEST_WHOLE = {
    FieldDescriptor.CPPTYPE_INT32: 2**31 - 1,
    FieldDescriptor.CPPTYPE_UINT32: 2**32 - 1,
    FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1,
}
KINDS = {
    FieldDescriptor.CPPTYPE_BOOL: "True or False",
    FieldDescriptor.CPPTYPE_FLOAT: "a number",
    FieldDescriptor.CPPTYPE_STRING: "a string that UTF-8 can write",
}


def set_field(message: ProtobufMessage, name: str, value: Any, path: str) -> None:
    """Sets the field `name` of a message. Raises InvalidRequest, for `path`, where it does not hold the value."""
    try:
        setattr(message, name, value)
    except UNFIT as error:
        raise unfit_value(message, name, value, path) from error


def extend_field(message: ProtobufMessage, name: str, values: Iterable[Any], path: str) -> None:
    """Adds to the list `name` of a message. Raises InvalidRequest, for `path`, for the first value it does not hold."""
    value: Any = values
    held = getattr(message, name)
    try:
        for value in values:
            held.append(value)
    except UNFIT as error:
        raise unfit_value(message, name, value, path) from error


def unfit_value(message: ProtobufMessage, name: str, value: Any, path: str) -> InvalidRequest:
    """The error for a value that the field `name` of a message does not hold: what was got, and what it holds."""
    kind = message.DESCRIPTOR.fields_by_name[name].cpp_type
    largest = LARGEST_WHOLE.get(kind)
    if largest is None:
        return invalid_field(path, f"got {value!r}; takes {KINDS[kind]}")
    least = 1 if name in FROM_ONE else 0
    is_above = isinstance(value, int) and value > largest
    reach = f"to {largest}" if is_above else "and above"
    return invalid_field(path, f"got {value!r}; takes whole numbers, {least} {reach}")
