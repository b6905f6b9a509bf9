"""Small values that several answers share, and how fields of messages become them. Knows no call and no request."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple, TypeVar

from fanlight.v1 import media_pb2

Member = TypeVar("Member", bound=enum.StrEnum)


class Size(NamedTuple):
    """Size of a picture, in pixels."""

    width: int
    height: int


class Grid(NamedTuple):
    """Counts of patches before a model merges any: steps in time (1 for an image), height, width."""

    t: int
    h: int
    w: int


class Modality(enum.StrEnum):
    """A kind of part in a prompt. UNKNOWN: newer than this client."""

    TEXT = "text"
    IMAGE = "image"
    VIDEO = "video"
    UNKNOWN = "unknown"


def optional(message: Any, field: str) -> Any:
    """The value of a field that knows whether it is set; None when it is not."""
    return getattr(message, field) if message.HasField(field) else None


def optional_seconds(message: Any, field: str) -> float | None:
    """The duration in `field` in seconds; None when it is not set."""
    return getattr(message, field).ToTimedelta().total_seconds() if message.HasField(field) else None


def optional_size(message: Any, field: str) -> Size | None:
    """The size in `field`; None when it is not set."""
    size = optional(message, field)
    return None if size is None else Size(size.width, size.height)


def optional_grid(message: Any, field: str) -> Grid | None:
    """The grid in `field`; None when it is not set."""
    grid = optional(message, field)
    return None if grid is None else Grid(grid.t, grid.h, grid.w)


def known_member(kind: type[Member], values: Any, prefix: str, value: int) -> Member:
    """The member for a value of one of the contract's enums; `kind`'s UNKNOWN for one that this client does not know.

    values   the generated enum
    prefix   what the names of its values begin with
    """
    named = values.DESCRIPTOR.values_by_number.get(value)
    name = named.name.removeprefix(prefix) if named else ""
    return kind.__members__.get(name, kind["UNKNOWN"])


def read_modality(value: int) -> Modality:
    """The modality for a value of the contract."""
    return known_member(Modality, media_pb2.Modality, "MODALITY_", value)
