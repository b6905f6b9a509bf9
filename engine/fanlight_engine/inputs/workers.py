"""The threads that keep work off the event loop: a pool for media, and one for what must not wait behind a large image.

Knows nothing of what is run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import torch
from threadpoolctl import threadpool_limits

from fanlight_engine.errors import EngineStoppedError
from fanlight_engine.inputs.media.images import make_decompression_bombs_errors

LIGHT_WORKERS = 2

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Workers:
    """Two thread pools. `close` waits for work that has begun and drops the rest."""

    def __init__(self, media_workers: int) -> None:
        self._media = ThreadPoolExecutor(media_workers, "fanlight-media", initializer=_initialize_media_worker)
        self._light = ThreadPoolExecutor(LIGHT_WORKERS, "fanlight-light", initializer=make_decompression_bombs_errors)

    async def run_media(
        self, function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        """Run in the media pool: decoding and preprocessing, tenths of a second each."""
        return await _submit(self._media, function, *args, **kwargs)

    async def run_light(
        self, function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        """Run in the light pool: headers, digests, rendering and tokenisation, milliseconds each."""
        return await _submit(self._light, function, *args, **kwargs)

    def close(self) -> None:
        """Stop both pools. Idempotent."""
        for pool in (self._media, self._light):
            pool.shutdown(wait=True, cancel_futures=True)


async def _submit(
    pool: ThreadPoolExecutor,
    function: Callable[Parameters, Result],
    *args: Parameters.args,
    **kwargs: Parameters.kwargs,
) -> Result:
    try:
        future = pool.submit(function, *args, **kwargs)
    except RuntimeError as error:  # the one thing submit raises: the pool was shut down
        raise EngineStoppedError("the engine is stopping; nothing new is accepted") from error
    return await asyncio.wrap_future(future)


def _initialize_media_worker() -> None:
    """One thread per image: workers run side by side, and the step loop needs its share of the cores.

    torch.set_num_threads would be wrong: it also sets MKL's count for the whole process, the step loop's included.
    OpenMP keeps its count per thread; torch sets it once per thread, on first use, so that must have happened before.
    """
    torch.get_num_threads()
    threadpool_limits(limits=1, user_api="openmp")
    make_decompression_bombs_errors()
