"""Which request ids are running, which ended a while ago, and which were cancelled before they arrived.

Ids are scoped to a principal, so that nobody can cancel, or probe for, another's requests. Knows neither gRPC nor what
a request does: whoever runs one brings the function that stops it.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

from fanlight_server.status import ErrorReason, field_error

ANONYMOUS = ""
"""The one principal while nobody authenticates."""

REMEMBER_CANCEL_SECONDS = 10.0
REMEMBER_ENDED_SECONDS = 60.0
REMEMBERED_IDS = 10_000
MAX_REQUEST_ID_LENGTH = 128

_Key = tuple[str, str]


class CancelOutcome(Enum):
    """What a cancellation found; the names of the contract."""

    CANCELLED = "CANCELLED"
    FINISHED = "FINISHED"
    UNKNOWN = "UNKNOWN"


def new_request_id() -> str:
    """A short id that nobody can guess (96 bits)."""
    return secrets.token_urlsafe(12)


def checked_request_id(request_id: str) -> str:
    """The id that a client chose. Raises ServiceError naming the limit."""
    if not 1 <= len(request_id) <= MAX_REQUEST_ID_LENGTH:
        raise field_error(
            "request_id",
            f"has {len(request_id)} characters, 1 to {MAX_REQUEST_ID_LENGTH} are allowed; or leave it unset",
        )
    if not (request_id.isascii() and request_id.isprintable()):
        raise field_error("request_id", "holds characters other than printable ASCII; use letters, digits and dashes")
    return request_id


class ActiveRequests:
    """The requests of one server. `clock` returns seconds and only moves forward."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._running: dict[_Key, Callable[[], bool]] = {}
        self._ended = _FadingSet(REMEMBER_ENDED_SECONDS, clock)
        self._cancelled_early = _FadingSet(REMEMBER_CANCEL_SECONDS, clock)

    @contextmanager
    def running(self, principal: str, request_id: str, stop: Callable[[], bool]) -> Iterator[bool]:
        """Hold the id while its request runs. `stop` ends the request; it returns False when that has ended already.

        Gives False when the request was cancelled before it came, and must not start. Raises ServiceError when the id
        is running.
        """
        key = (principal, request_id)
        if key in self._running:
            raise field_error(
                "request_id", "a request with this id is running; choose another", ErrorReason.REQUEST_ID_IN_USE
            )
        self._running[key] = stop
        try:
            yield not self._cancelled_early.discard(key)
        finally:
            del self._running[key]
            self._ended.add(key)

    def cancel(self, principal: str, request_id: str) -> CancelOutcome:
        """Stop a request, or remember the wish for as long as it can be overtaking its request."""
        key = (principal, request_id)
        if stop := self._running.get(key):
            return CancelOutcome.CANCELLED if stop() else CancelOutcome.FINISHED
        if key in self._ended:
            return CancelOutcome.FINISHED
        self._cancelled_early.add(key)
        return CancelOutcome.UNKNOWN


class _FadingSet:
    """Keys that are forgotten after a time, and the oldest of them when there are too many."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._expiry: OrderedDict[_Key, float] = OrderedDict()

    def add(self, key: _Key) -> None:
        self._expiry.pop(key, None)
        self._expiry[key] = self._clock() + self._seconds
        while len(self._expiry) > REMEMBERED_IDS or next(iter(self._expiry.values())) <= self._clock():
            self._expiry.popitem(last=False)

    def discard(self, key: _Key) -> bool:
        """Remove the key; whether it was there and still counted."""
        return self._expiry.pop(key, 0.0) > self._clock()

    def __contains__(self, key: _Key) -> bool:
        return self._expiry.get(key, 0.0) > self._clock()
