"""Small values that several converters share: presence, durations, kinds of media, and the largest message."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from fanlight.v1 import media_pb2
from fanlight_engine.request import Modality
from fanlight_server.status import ErrorReason, ServiceError

MAX_MESSAGE_BYTES = 3 << 20
"""Largest message that the server sends: default clients refuse those above 4 MiB."""

MODALITIES = {
    Modality.IMAGE: media_pb2.MODALITY_IMAGE,
    Modality.VIDEO: media_pb2.MODALITY_VIDEO,
}

M = TypeVar("M", bound=Message)


def optional(message: Any, field: str) -> Any:
    """The value of a field that knows whether it is set; None when it is not."""
    return getattr(message, field) if message.HasField(field) else None


def duration_of(seconds: float) -> Duration:
    """Seconds as a protobuf duration, to the microsecond."""
    duration = Duration()
    duration.FromTimedelta(timedelta(seconds=seconds))
    return duration


def size_of(size: tuple[int, int] | None) -> media_pb2.Size | None:
    """(width, height) in pixels; not set where it is not known."""
    return None if size is None else media_pb2.Size(width=size[0], height=size[1])


def grid_of(grid: tuple[int, int, int] | None) -> media_pb2.Grid | None:
    """(t, h, w) in patches before merging; not set where there is none."""
    return None if grid is None else media_pb2.Grid(t=grid[0], h=grid[1], w=grid[2])


def refuse_oversized(response: M, advice: str) -> M:
    """The response, if one message can hold it; raises ServiceError with the advice if not."""
    size = response.ByteSize()
    if size > MAX_MESSAGE_BYTES:
        raise ServiceError(
            ErrorReason.MESSAGE_TOO_LARGE,
            f"the answer takes {size} bytes, one message holds {MAX_MESSAGE_BYTES}: {advice}",
        )
    return response
