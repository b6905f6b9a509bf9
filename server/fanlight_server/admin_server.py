"""AdminService on a port of its own, which only this machine can reach: nothing of it is on the public one.

Lives beside a FanlightServer, from the moment it accepts connections to its very end. Knows no message of the contract.
"""

from __future__ import annotations

import grpc.aio
from grpc_reflection.v1alpha import reflection

from fanlight.v1 import admin_pb2_grpc
from fanlight_server.addresses import host_and_port, is_loopback, why_not_free
from fanlight_server.backend import Backend
from fanlight_server.config_report import ConfigReport
from fanlight_server.lifecycle import Lifecycle
from fanlight_server.rpc.boundary import Boundary
from fanlight_server.rpc.options import server_options
from fanlight_server.server import PortTakenError
from fanlight_server.services.admin import AdminService

SERVICE = "fanlight.v1.AdminService"
_HIGHEST_PORT = 65_535
_MOST_CALLS = 16
_SECONDS_TO_SAY_GOODBYE = 1.0


class AdminServer:
    """Must be made inside a running event loop. `host` must be a loopback address."""

    def __init__(self, host: str, report: ConfigReport, backend: Backend, lifecycle: Lifecycle) -> None:
        """`lifecycle` is that of the server which it tells about; its own calls hold up nobody's drain."""
        assert is_loopback(host), "settings are judged before"
        self._host = host
        self._own_calls = Lifecycle()
        self._grpc = grpc.aio.server(interceptors=[Boundary(self._own_calls)], options=server_options(_MOST_CALLS))
        admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(report, backend, lifecycle), self._grpc)
        reflection.enable_server_reflection([SERVICE, reflection.SERVICE_NAME], self._grpc)
        self.port = 0

    @property
    def address(self) -> str:
        """Where it is found, as host:port."""
        return host_and_port(self._host, self.port)

    def bind(self, port: int, public_port: int) -> int:
        """Take `port` and return it; 0 is the one after the public port, or any that is free. Raises PortTakenError.

        `public_port` is 0 where the public server takes any that is free, too.
        """
        wanted = port or self._next(public_port)
        try:
            self.port = self._grpc.add_insecure_port(host_and_port(self._host, wanted))
        except RuntimeError as error:
            raise PortTakenError(
                f"AdminService cannot listen on {host_and_port(self._host, wanted)}: it is in use, or no address of "
                "this machine; choose another --admin-port, or --no-admin"
            ) from error
        return self.port

    def _next(self, public_port: int) -> int:
        """0 where there is none to take."""
        following = public_port + 1
        is_usable = 1 < following <= _HIGHEST_PORT and why_not_free(self._host, following) is None
        return following if is_usable else 0

    async def start(self) -> None:
        """Accept connections."""
        await self._grpc.start()

    async def stop(self) -> None:
        """End what is still open."""
        self._own_calls.end_open_calls()
        await self._grpc.stop(grace=_SECONDS_TO_SAY_GOODBYE)
