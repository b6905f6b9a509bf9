"""AdminService: what the server runs with, for its operator; it answers while loading and while draining as well."""

from __future__ import annotations

from typing import Any

from fanlight.v1 import admin_pb2_grpc
from fanlight_server.backend import Backend
from fanlight_server.config_report import ConfigReport
from fanlight_server.convert import admin as to_wire
from fanlight_server.lifecycle import Lifecycle


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """`lifecycle` is that of the server which it tells about."""

    def __init__(self, report: ConfigReport, backend: Backend, lifecycle: Lifecycle) -> None:
        self._report = report
        self._backend = backend
        self._lifecycle = lifecycle

    async def GetConfig(self, request: Any, context: Any) -> Any:
        """The checkpoint's facts and every setting, with what was decided while loading once that is known."""
        core = self._backend.client.facts if self._lifecycle.has_served else None
        return to_wire.get_config_response(self._report, core)
