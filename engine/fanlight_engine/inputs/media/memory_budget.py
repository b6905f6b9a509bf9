"""How many bytes of media may be in memory at once on behalf of requests that are being prepared.

Uploads in the store, caches and messages have bounds of their own; this bounds what is read, fetched and copied out of
files for one request, and for all together. Runs on the event loop alone, so it needs no locks. Knows no media.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fanlight_engine.errors import InvalidRequestError, OverloadedError, Reason

_RETRY_AFTER = 1.0
"""Seconds; preparing a request takes about as long."""


class MemoryBudget:
    """Bytes in use over all requests, at most `capacity`; one request has at most `per_request`."""

    def __init__(self, capacity: int, per_request: int) -> None:
        self.used = 0
        self._capacity = capacity
        self._per_request = min(per_request, capacity)

    @contextmanager
    def account(self) -> Iterator[MemoryAccount]:
        """What one request takes; all of it is given back at the end."""
        account = MemoryAccount(self)
        try:
            yield account
        finally:
            self.used -= account.taken

    def take(self, account: MemoryAccount, count: int, field: str) -> None:
        """Count `count` more bytes. Raises InvalidRequestError, or OverloadedError where others hold them."""
        if account.taken + count > self._per_request:
            raise InvalidRequestError(
                field,
                f"with it the request's uploads and URLs have {account.taken + count} bytes, at most "
                f"{self._per_request} are read for one request; send smaller files, or fewer",
                Reason.MEDIA_TOO_LARGE,
            )
        if self.used + count > self._capacity:
            raise OverloadedError("the media of other requests take all the memory there is for them", _RETRY_AFTER)
        account.taken += count
        self.used += count


class MemoryAccount:
    """One request's share."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.taken = 0
        self._budget = budget

    def take(self, count: int, field: str) -> None:
        """Count bytes before they are read. Raises InvalidRequestError or OverloadedError."""
        self._budget.take(self, count, field)
