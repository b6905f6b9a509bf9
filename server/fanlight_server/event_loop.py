"""Which event loop a server runs on: uvloop where it is installed, else asyncio's own. Nothing else depends on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run: what `main` returns or raises, and SIGINT cancels it."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the loop; None for asyncio's own. uvloop is not made for every system and interpreter."""
    if find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop
