"""Writes the messages of one stream: numbers them, lets one through at a time, and fills long silences.

Proxies cut streams that stay silent and do not count HTTP/2 pings, so a stream that is alive says so in messages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from google.protobuf.message import Message

from fanlight_server.status import StreamLostError

HEARTBEAT_SECONDS = 10.0
"""Comfortably below the 15 seconds that the contract promises."""


class PacedWriter:
    """`write` sends one message and returns when the transport took it; builders get the message's sequence number.

    Messages are handed over as bytes: one that lived until the transport took it would cost each stream memory of its
    own, where all of them can take turns with the same.
    """

    def __init__(
        self, write: Callable[[bytes], Awaitable[None]], sign_of_life: Callable[[int], Message], interval: float
    ) -> None:
        self._write = write
        self._sign_of_life = sign_of_life
        self._interval = interval
        self._one_at_a_time = asyncio.Lock()
        self._sequence = 0
        self._last_written = time.monotonic()

    async def send(self, build: Callable[..., Message], *arguments: Any) -> None:
        """Write what `build(sequence, *arguments)` makes. Raises StreamLostError when the client is gone."""
        await self._one_at_a_time.acquire()
        try:
            self._sequence += 1
            await self._write(build(self._sequence, *arguments).SerializeToString())
            self._last_written = time.monotonic()
        except grpc.aio.BaseError as error:
            raise StreamLostError from error
        finally:
            self._one_at_a_time.release()

    @asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """Inside, no silence is longer than the interval."""
        heart = asyncio.create_task(self._beat())
        try:
            yield
        finally:
            heart.cancel()
            await asyncio.gather(heart, return_exceptions=True)

    async def _beat(self) -> None:
        while True:
            silence = time.monotonic() - self._last_written
            if silence >= self._interval:
                await self.send(self._sign_of_life)
            else:
                await asyncio.sleep(self._interval - silence)
