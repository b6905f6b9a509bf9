"""grpc.health.v1: "" (ready), one name per service, and "live", which a drain leaves alone.

Written here because a change must reach every watcher at once and must never wait for a slow one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

READY = ""
LIVE = "live"

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health(health_pb2_grpc.HealthServicer):
    """Starts as not ready, but live."""

    def __init__(self, services: Iterable[str]) -> None:
        self._status: dict[str, Any] = dict.fromkeys((READY, *services), _NOT_SERVING)
        self._status[LIVE] = _SERVING
        self._changed = asyncio.Event()

    def set_ready(self, ready: bool) -> None:
        """Change all names but "live"."""
        for name in self._status:
            if name != LIVE:
                self._status[name] = _SERVING if ready else _NOT_SERVING
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        """The status now; NOT_FOUND for a name that is not known."""
        if request.service not in self._status:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no service of this name is here")
        return self._response(request.service)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:
        """The status now and whenever it changes; SERVICE_UNKNOWN for a name that is not known."""
        told = None
        while True:
            changed, response = self._changed, self._response(request.service)
            if response.status != told:
                told = response.status
                await context.write(response)
            else:
                await changed.wait()

    def _response(self, service: str) -> health_pb2.HealthCheckResponse:
        return health_pb2.HealthCheckResponse(status=self._status.get(service, _SERVICE_UNKNOWN))
