"""A scripted server and clients for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from scripted_server import ScriptedServer, ServerThread

from fanlight import AsyncClient, Client


@pytest.fixture
def server_thread() -> Iterator[ServerThread]:
    thread = ServerThread()
    yield thread
    thread.stop()


@pytest.fixture
def server(server_thread: ServerThread) -> ScriptedServer:
    return server_thread.scripted


@pytest.fixture
def client(server_thread: ServerThread) -> Iterator[Client]:
    with Client(server_thread.address) as client:
        yield client


@pytest_asyncio.fixture
async def async_client(server_thread: ServerThread) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server_thread.address) as client:
        yield client
