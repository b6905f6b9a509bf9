"""Real servers for the end-to-end promises: one in this process, whose books can be read, and one in its own process.

The first shares the caller's event loop; it is for promises about what the engine counted. The second is what a user
starts; it is for promises about signals, commands and undisturbed timing. Knows no promise itself.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import grpc.aio

from fanlight import AsyncClient
from fanlight.channel import channel_options
from fanlight_engine.checkpoints.checkpoint import read_checkpoint
from fanlight_engine.client import CoreStatistics
from fanlight_engine.client_in_process import InProcessClient
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.build import build_engine
from fanlight_engine.core.engine import Engine
from fanlight_engine.front import Front
from fanlight_engine.inputs.media.sources.fetch import UrlFetcher
from fanlight_server.default_model import default_model_path
from fanlight_server.server import FanlightServer, ServerSettings

PATIENCE_SECONDS = 60.0
"""How long anything may take that needs a moment on an idle machine; only a hang takes longer, on a busy one too."""


@dataclass(frozen=True, slots=True)
class Books:
    """What is held at one moment. With nothing running, it must be what it was when nothing had run."""

    free_pages: int
    pinned_embeddings: int
    requests_in_core: int
    generations: int
    open_calls: int
    tasks: int
    """Tasks of the event loop beyond those that an idle server has."""

    def differences(self, later: Books) -> list[str]:
        """What changed from these books to later ones, in words."""
        pairs = [(one.name, getattr(self, one.name), getattr(later, one.name)) for one in fields(self)]
        return [f"{name} {before} -> {after}" for name, before, after in pairs if before != after]


@dataclass(frozen=True, slots=True)
class Served:
    """A loaded server in this process, and a client of it."""

    server: FanlightServer
    front: Front
    client: AsyncClient
    channel: grpc.aio.Channel
    own_tasks: int
    """How many tasks the event loop has when the server is idle; gRPC replaces its own with every call."""

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.server.address

    async def statistics(self) -> CoreStatistics:
        """The core's counters and gauges."""
        return await self.front.client.statistics()

    async def books(self) -> Books:
        """Wait until no call is open, check the core's integrity, and count what is held all the same."""
        await asyncio.wait_for(self.server.lifecycle.wait_until_idle(), PATIENCE_SECONDS)
        await self.front.client.check_integrity()
        tasks = await self._tasks_beyond_own()
        held = await self.statistics()
        return Books(
            free_pages=held.free_pages,
            pinned_embeddings=held.pinned_embeddings,
            requests_in_core=held.running_requests + held.waiting_requests,
            generations=len(self.front.running_ids),
            open_calls=self.server.lifecycle.work_count,
            tasks=tasks,
        )

    async def _tasks_beyond_own(self) -> int:
        """How many tasks remain when those that are about to end have ended."""
        deadline = time.monotonic() + 5.0
        while (count := len(asyncio.all_tasks()) - self.own_tasks) > 0 and time.monotonic() < deadline:
            await asyncio.wait(asyncio.all_tasks() - {_this_task()}, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
        return max(0, count)


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


@asynccontextmanager
async def serving(
    model: Path | None = None,
    *,
    fetcher: Callable[[EngineConfig], UrlFetcher] | None = None,
    build: Callable[..., Engine] = build_engine,
    **settings: Any,
) -> AsyncIterator[Served]:
    """A server on a free port with `settings` of EngineConfig; stopped, and its books checked, at the end.

    `fetcher` makes one that reaches a local server; `build` makes a core that somebody watches.
    """
    checkpoint = read_checkpoint(model or default_model_path())
    config = EngineConfig(**{"torch_threads": 1, **settings})
    client = InProcessClient(config, checkpoint, build=build)
    front = Front(config, checkpoint, client, fetcher(config) if fetcher else None)
    server = FanlightServer(front, ServerSettings(port=0))
    server.bind()
    await server.start()
    try:
        await server.load()
        async with (
            AsyncClient(server.address) as client,
            grpc.aio.insecure_channel(server.address, channel_options()) as channel,
        ):
            await client.model()
            served = Served(server, front, client, channel, len(asyncio.all_tasks()))
            yield served
            await served.books()
    finally:
        await server.stop()


class ServerProcess:
    """`python -m fanlight serve` on a free port, as a process of its own; its log is kept for failures."""

    def __init__(self, *arguments: str) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `close`
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fanlight", "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.printed: list[str] = []
        """Lines of standard output up to the one that says where it listens."""
        self.address = self._wait_until_listening()

    def _wait_until_listening(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.printed.append(line.rstrip())
            if line.startswith("listening on "):
                return line.split()[2].rstrip(";")
        raise AssertionError(f"the server ended with {self._process.wait()} before it listened:\n{self.log()}")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def log(self) -> str:
        """What it wrote to standard error so far."""
        self._log.seek(0)
        return self._log.read()

    def terminate(self) -> None:
        """Ask it to drain and stop, as an operator does."""
        self._process.terminate()

    def exit_code(self) -> int:
        """Wait for its end."""
        return self._process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        """End it, gently first; nothing is left behind."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


@contextmanager
def server_process(*arguments: str) -> Iterator[ServerProcess]:
    """A server process that listens; ended at the end."""
    process = ServerProcess(*arguments)
    try:
        yield process
    finally:
        process.close()
