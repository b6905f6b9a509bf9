"""Which model a caller means: the one that is served, or one of its LoRA adapters. Knows no weights and no messages."""

from __future__ import annotations

from fanlight_engine.lora import served_names
from fanlight_server.backend import Backend
from fanlight_server.status import ErrorReason, field_error


def names_of(backend: Backend) -> tuple[str, ...]:
    """What requests may name, the default first."""
    return served_names(backend.checkpoint.name, backend.config.lora)


def asked_model(backend: Backend, name: str, field: str) -> str:
    """The name of the model that is asked for; empty asks for the default. Raises ServiceError naming `field`."""
    served = names_of(backend)
    if name and name not in served:
        raise field_error(
            field,
            f"no model {name!r} is served; use {' or '.join(map(repr, served))}, or leave it unset",
            ErrorReason.MODEL_NOT_FOUND,
        )
    return name or served[0]
