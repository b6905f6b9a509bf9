"""A silent call whose client pings often: servers with gRPC's defaults hang up on it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

_PINGING = [
    ("grpc.keepalive_time_ms", 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


async def lives_through_pings(address: str, seconds: float) -> bool:
    """Whether a call on which nothing is said for so long is still open, with a ping every second."""
    async with grpc.aio.insecure_channel(address, _PINGING) as channel:
        stub: Any = HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        first = await watch.read()
        assert first.status == health_pb2.HealthCheckResponse.SERVING, first
        silence = asyncio.ensure_future(watch.read())
        ended, _ = await asyncio.wait({silence}, timeout=seconds)
        watch.cancel()
        await asyncio.gather(silence, return_exceptions=True)
        return not ended
