"""ModelService: ListModels and GetModel, for the one model that is served."""

from __future__ import annotations

from typing import Any

from fanlight.v1 import model_pb2_grpc
from fanlight_server.backend import Backend
from fanlight_server.convert import models as to_wire
from fanlight_server.lifecycle import Lifecycle
from fanlight_server.status import ErrorReason, field_error


class ModelService(model_pb2_grpc.ModelServiceServicer):
    """Answers once the engine is loaded, because only then its capacity is known."""

    def __init__(self, backend: Backend, lifecycle: Lifecycle) -> None:
        self._backend = backend
        self._lifecycle = lifecycle

    async def ListModels(self, request: Any, context: Any) -> Any:
        """All models."""
        self._lifecycle.require_loaded()
        return to_wire.list_models_response(self._backend.checkpoint, self._backend.client.facts, self._backend.config)

    async def GetModel(self, request: Any, context: Any) -> Any:
        """One model; the default one when no name is given."""
        self._lifecycle.require_loaded()
        served = self._backend.checkpoint.name
        if request.name not in ("", served):
            raise field_error(
                "name",
                f"no model of this name is served; use {served!r} or leave it unset",
                ErrorReason.MODEL_NOT_FOUND,
            )
        return to_wire.get_model_response(self._backend.checkpoint, self._backend.client.facts, self._backend.config)
