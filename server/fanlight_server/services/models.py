"""ModelService: what is served, and what prompts and texts become, for the one checkpoint that is served."""

from __future__ import annotations

import asyncio
from typing import Any

from fanlight.v1 import model_pb2_grpc
from fanlight_server.active_requests import ANONYMOUS
from fanlight_server.backend import Backend
from fanlight_server.convert import counts
from fanlight_server.convert import models as to_wire
from fanlight_server.convert import requests as from_wire
from fanlight_server.lifecycle import Lifecycle
from fanlight_server.model_names import asked_model, names_of
from fanlight_server.status import fields_named


class ModelService(model_pb2_grpc.ModelServiceServicer):
    """Answers once the engine is loaded, because only then its capacity is known."""

    def __init__(self, backend: Backend, lifecycle: Lifecycle) -> None:
        self._backend = backend
        self._lifecycle = lifecycle

    async def ListModels(self, request: Any, context: Any) -> Any:
        """All models."""
        self._lifecycle.require_loaded()
        models = [to_wire.model_facts(self._backend, name) for name in names_of(self._backend)]
        return to_wire.list_models_response(models, self._backend.client.facts)

    async def GetModel(self, request: Any, context: Any) -> Any:
        """One model; the default one when no name is given."""
        self._lifecycle.require_loaded()
        name = asked_model(self._backend, request.name, "name")
        return to_wire.get_model_response(to_wire.model_facts(self._backend, name), self._backend.client.facts)

    async def CountTokens(self, request: Any, context: Any) -> Any:
        """What the prompt of a generation becomes, without generating."""
        self._lifecycle.require_serving()
        generation = from_wire.generation_of(request, ANONYMOUS)
        with fields_named(from_wire.below_generation):
            return counts.count_tokens_response(await self._backend.count_tokens(generation))

    async def Tokenize(self, request: Any, context: Any) -> Any:
        """The tokens of a text."""
        self._lifecycle.require_serving()
        text = counts.text_to_tokenize(request)
        tokens = await self._backend.tokenize(request.model, text, request.parse_special_tokens)
        # Thousands of messages are made: beside the event loop, which would stand still meanwhile.
        return await asyncio.to_thread(counts.tokenize_response, tokens)

    async def Detokenize(self, request: Any, context: Any) -> Any:
        """The text of tokens."""
        self._lifecycle.require_serving()
        ids = counts.ids_to_join(request)
        return counts.detokenize_response(
            await self._backend.detokenize(request.model, ids, request.spell_special_tokens)
        )
