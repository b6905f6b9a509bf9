"""What the store does beside the event loop: blocking calls in threads of its own, and work that must not stop halfway.

Knows nothing of media. Threads of its own, because a slow disk or a large digest must not keep others' waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from fanlight_engine.errors import EngineStoppedError

THREADS = 2

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Background:
    """Threads and unfinished work of one store."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "fanlight-store")
        self._tasks: set[asyncio.Task[Any]] = set()

    async def in_thread(
        self, function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        """Run a call that blocks, or computes for more than a millisecond."""
        try:
            future = self._threads.submit(function, *args, **kwargs)
        except RuntimeError as error:  # the one thing submit raises: the pool was shut down
            raise EngineStoppedError("the server is stopping; nothing new is accepted") from error
        return await asyncio.wrap_future(future)

    async def to_the_end(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for work that goes on although its caller is cancelled: a chunk is written, or it is not."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def later(self, function: Callable[[], None]) -> None:
        """Run a call that blocks and never fails, some time; not at all once everything stops."""
        with suppress(RuntimeError):  # as above
            self._threads.submit(function)

    async def close(self) -> None:
        """Wait for everything that has begun. Idempotent."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.to_thread(self._threads.shutdown)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # told to whoever waited; where nobody did any more, it is nobody's
