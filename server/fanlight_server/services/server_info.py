"""ServerService: GetServerInfo, which answers while loading and while draining as well."""

from __future__ import annotations

import json
from importlib import metadata
from typing import Any

from fanlight.v1 import server_pb2_grpc
from fanlight_server.backend import Backend
from fanlight_server.convert import models as to_wire

DISTRIBUTION = "fanlight-server"


class ServerInfoService(server_pb2_grpc.ServerServiceServicer):
    """What a client needs to know."""

    def __init__(self, backend: Backend, facts: to_wire.ServerFacts) -> None:
        self._backend = backend
        self._facts = facts

    async def GetServerInfo(self, request: Any, context: Any) -> Any:
        """Version, features and limits."""
        backend = self._backend
        return to_wire.server_info_response(to_wire.model_facts(backend), self._facts, backend.store.max_object_bytes)


def installed_version() -> str:
    """Version of the installed distribution; "unknown" when the source runs without being installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


def installed_revision() -> str:
    """Commit that the distribution was installed from; empty unless pip noted one."""
    try:
        noted = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return ""
    return json.loads(noted or "{}").get("vcs_info", {}).get("commit_id", "")
