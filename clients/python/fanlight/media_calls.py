"""Streamed calls whose media were uploaded first: received like any call, begun again once if that came to nothing.

MediaCall is received like grpc's calls for threads, AsyncMediaCall like those for tasks. They do not know what is
uploaded or asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Self

import grpc

from fanlight.errors import error_from_call, media_are_gone


class MediaCall(Iterator[Any]):
    """A call for threads. Its media have been uploaded; `upload` does it again."""

    def __init__(self, start: Callable[[], Any], upload: Callable[[], None]) -> None:
        self._start = start
        self._upload = upload
        self._call = start()
        self._may_begin_again = True
        self._cancelled = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            response = next(self._call)
        except grpc.RpcError as error:
            if not self._may_begin_again or not media_are_gone(error_from_call(error)):
                raise
        else:
            self._may_begin_again = False
            return response
        self._may_begin_again = False
        self._upload()
        if self._cancelled:
            raise StopIteration
        self._call = self._start()
        return next(self._call)

    def cancel(self) -> None:
        """Cancels the call, as it is now."""
        self._cancelled = True
        self._call.cancel()


class AsyncMediaCall:
    """A call for tasks. `upload` uploads its media, from when this is made, and again where that is needed."""

    def __init__(
        self, start: Callable[[], Any], upload: Callable[[], Awaitable[None]], may_begin_again: bool = True
    ) -> None:
        self._start = start
        self._upload = upload
        self._call: Any = None
        self._may_begin_again = may_begin_again
        self._opening = asyncio.ensure_future(self._open())

    async def _open(self) -> None:
        await self._upload()
        self._call = self._start()

    async def read(self) -> Any:
        """The next message, or grpc.aio.EOF."""
        await self._opening
        try:
            response = await self._call.read()
        except grpc.RpcError as error:
            if not self._may_begin_again or not media_are_gone(error_from_call(error)):
                raise
        else:
            self._may_begin_again = False
            return response
        self._may_begin_again = False
        self._opening = asyncio.ensure_future(self._open())
        await self._opening
        return await self._call.read()

    def cancel(self) -> None:
        """Cancels the upload, or the call."""
        self._opening.cancel()
        if self._call is not None:
            self._call.cancel()
