"""A real server on a real port over a scripted backend, and stubs that talk to it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2_grpc

from fanlight.v1 import inference_pb2_grpc, media_service_pb2_grpc, model_pb2_grpc, server_pb2_grpc
from fanlight_server.server import FanlightServer, ServerSettings
from fanlight_server.services.inference import StreamTimes
from tests.server.scripted_backend import ScriptedBackend


@dataclass
class Served:
    """A server that serves, its backend, and stubs."""

    server: FanlightServer
    backend: ScriptedBackend
    channel: grpc.aio.Channel
    inference: inference_pb2_grpc.InferenceServiceStub = field(init=False)
    media: media_service_pb2_grpc.MediaServiceStub = field(init=False)
    models: model_pb2_grpc.ModelServiceStub = field(init=False)
    info: server_pb2_grpc.ServerServiceStub = field(init=False)
    health: Any = field(init=False)

    def __post_init__(self) -> None:
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.media = media_service_pb2_grpc.MediaServiceStub(self.channel)
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)
        self.info = server_pb2_grpc.ServerServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)


async def start_server(
    backend: ScriptedBackend, times: StreamTimes | None = None, drain_seconds: float = 5.0
) -> Served:
    """Bound and accepting connections, but not loaded."""
    settings = ServerSettings(port=0, drain_seconds=drain_seconds, times=times or StreamTimes())
    server = FanlightServer(backend, settings)
    server.bind()
    await server.start()
    return Served(server, backend, grpc.aio.insecure_channel(server.address))


async def stop_server(served: Served) -> None:
    await served.server.stop()
    await served.channel.close()
    assert served.backend.running_ids == [], "every generation must be freed"
    assert served.server.lifecycle.work_count == 0


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    one = await start_server(ScriptedBackend())
    await one.server.load()
    one.backend.generations.clear()
    yield one
    await stop_server(one)


@pytest_asyncio.fixture
async def hasty() -> AsyncIterator[Served]:
    """Heartbeats and the chat's setup limit come after a moment."""
    one = await start_server(ScriptedBackend(), StreamTimes(heartbeat=0.05, chat_setup=0.1))
    await one.server.load()
    yield one
    await stop_server(one)


@pytest.fixture(autouse=True)
def nothing_slips_through(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Neither gRPC nor asyncio may have met an exception that nobody caught."""
    yield
    slipped = [record for record in caplog.get_records("call") if record.name.split(".")[0] in ("grpc", "asyncio")]
    assert not [record.getMessage() for record in slipped if record.levelno >= logging.WARNING]


logging.getLogger("fanlight").setLevel(logging.INFO)
