"""Puts the server together and takes it through its life: bind, load, serve, drain.

    bind         a port that is taken fails here, before anything is loaded
    start        connections are accepted; health says NOT_SERVING, work is UNAVAILABLE
    load         the engine starts and answers a probe; health says SERVING
    drain        health says NOT_SERVING, new work is refused, open work ends by itself or when the time is up
    stop         what is still open ends UNAVAILABLE; the engine stops

Knows no message of the contract and nothing of signals or terminals.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

import grpc.aio
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from fanlight.v1 import inference_pb2_grpc, media_service_pb2_grpc, model_pb2_grpc, server_pb2_grpc
from fanlight_engine.request import Generation, SamplingOptions, TokenPrompt
from fanlight_server.addresses import host_and_port, is_loopback
from fanlight_server.backend import Backend
from fanlight_server.convert.models import ServerFacts
from fanlight_server.health import Health
from fanlight_server.lifecycle import Lifecycle
from fanlight_server.rpc.boundary import Boundary
from fanlight_server.rpc.options import MAX_RECEIVE_MESSAGE_BYTES, server_options
from fanlight_server.services.inference import InferenceService, StreamTimes
from fanlight_server.services.media import MediaService
from fanlight_server.services.models import ModelService
from fanlight_server.services.server_info import ServerInfoService, installed_revision, installed_version

SERVICES = (
    "fanlight.v1.InferenceService",
    "fanlight.v1.MediaService",
    "fanlight.v1.ModelService",
    "fanlight.v1.ServerService",
)
PROMISED_HEARTBEAT_SECONDS = 15.0
_SECONDS_TO_SAY_GOODBYE = 5.0

_log = logging.getLogger("fanlight.server")


class PortTakenError(Exception):
    """The address cannot be listened on."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How the server listens and ends. Port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 50051
    drain_seconds: float = 30.0
    times: StreamTimes = field(default_factory=StreamTimes)


class FanlightServer:
    """One server over one backend. Must be made inside a running event loop."""

    def __init__(self, backend: Backend, settings: ServerSettings) -> None:
        self._backend = backend
        self._settings = settings
        self.lifecycle = Lifecycle()
        self.health = Health(SERVICES)
        config = backend.config
        self._grpc = grpc.aio.server(
            interceptors=[Boundary(self.lifecycle)],
            options=server_options(config.max_running_requests + config.max_waiting_requests),
        )
        self._add_services()
        self._core_watch: asyncio.Task[None] | None = None
        self.port = settings.port

    def _add_services(self) -> None:
        facts = ServerFacts(
            version=installed_version(),
            revision=installed_revision(),
            max_receive_message_bytes=MAX_RECEIVE_MESSAGE_BYTES,
            chat_setup_timeout=self._settings.times.chat_setup,
            heartbeat_interval=PROMISED_HEARTBEAT_SECONDS,
        )
        inference = InferenceService(self._backend, self.lifecycle, self._settings.times)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(inference, self._grpc)
        media_service_pb2_grpc.add_MediaServiceServicer_to_server(
            MediaService(self._backend, self.lifecycle), self._grpc
        )
        model_pb2_grpc.add_ModelServiceServicer_to_server(ModelService(self._backend, self.lifecycle), self._grpc)
        server_pb2_grpc.add_ServerServiceServicer_to_server(ServerInfoService(self._backend, facts), self._grpc)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._grpc)
        if is_loopback(self._settings.host):
            reflection.enable_server_reflection([*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME], self._grpc)

    @property
    def host(self) -> str:
        """The address that it listens on."""
        return self._settings.host

    @property
    def address(self) -> str:
        """Where clients find it, as host:port."""
        return host_and_port(self._settings.host, self.port)

    def bind(self) -> int:
        """Take the port and return it. Raises PortTakenError."""
        try:
            self.port = self._grpc.add_insecure_port(self.address)
        except RuntimeError as error:
            raise PortTakenError(
                f"cannot listen on {self.address}: it is in use, or no address of this machine; choose another --port"
            ) from error
        return self.port

    async def start(self) -> None:
        """Accept connections, for health checks above all."""
        await self._grpc.start()

    async def load(self) -> float:
        """Start the engine, see it answer, and say SERVING. Returns the seconds it took; raises StartupError."""
        began = time.monotonic()
        await self._backend.start()
        await self._backend.probe()
        await _probe(self._backend)
        if not self.lifecycle.draining.is_set():
            self.lifecycle.mark_serving()
            self.health.set_ready(True)
            self._core_watch = asyncio.create_task(self._watch_core())
        return time.monotonic() - began

    async def _watch_core(self) -> None:
        """A server whose core is gone can only refuse: balancers must hear of it."""
        await self._backend.client.wait_until_stopped()
        _log.critical("the core is gone; restart the server")
        self.health.set_ready(False)

    async def drain(self, hurry: asyncio.Event) -> None:
        """Let open work end for at most `drain_seconds`; `hurry` cuts that short."""
        self.health.set_ready(False)
        self.lifecycle.mark_draining(self._settings.drain_seconds)
        waits = [asyncio.create_task(self.lifecycle.wait_until_idle()), asyncio.create_task(hurry.wait())]
        try:
            await asyncio.wait(waits, timeout=self._settings.drain_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()

    async def stop(self) -> None:
        """End what is still open and stop the engine."""
        if self._core_watch is not None:
            self._core_watch.cancel()
        self.lifecycle.end_open_calls()
        await self._grpc.stop(grace=_SECONDS_TO_SAY_GOODBYE)
        await self._backend.stop()


async def _probe(backend: Backend) -> None:
    """One token for a prompt of one token, through everything that a request goes through."""
    placeholders = backend.placeholder_ids.values()
    token = next(id for id in range(backend.checkpoint.vocab_size) if id not in placeholders)
    generation = Generation(TokenPrompt((token,)), SamplingOptions(max_new_tokens=1, temperature=0.0, seed=0))
    async for _event in backend.generate(generation, "startup-probe"):
        pass
