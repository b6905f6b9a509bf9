"""A wire that can be cut: a TCP proxy on loopback whose connections end without a goodbye."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class CuttableWire:
    """Forwards connections to a target until `cut`, which resets them as a crashed client's machine would."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._writers: list[asyncio.StreamWriter] = []
        self._pumps: set[asyncio.Task[None]] = set()
        self.address = ""

    async def open(self) -> asyncio.Server:
        """Listen on a free port."""
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return server

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._writers += [writer, far_writer]
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            pump = asyncio.create_task(_pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    def cut(self) -> None:
        """Reset every connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


@asynccontextmanager
async def cuttable_wire(address: str) -> AsyncIterator[CuttableWire]:
    """A wire to a server at host:port, cut at the latest at the end."""
    host, port = address.rsplit(":", 1)
    wire = CuttableWire(host, int(port))
    async with await wire.open():
        try:
            yield wire
        finally:
            wire.cut()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    sink.transport.abort()
