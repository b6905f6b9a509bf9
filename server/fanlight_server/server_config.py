"""ServerConfig: the settings of the server itself, resolved together with the engine's by the same layers.

Imports nothing heavy, so that a mistyped setting is told at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from fanlight_engine.config import ResolvedConfig, resolve
from fanlight_engine.errors import ConfigError
from fanlight_engine.settings import CONFIG_VARIABLE, Setting, file_layer, refuse_other_words, refuse_out_of_range
from fanlight_server.addresses import is_loopback
from fanlight_server.default_model import own_settings

if TYPE_CHECKING:
    from fanlight_engine.checkpoints.checkpoint import Checkpoint

DEFAULT_PORT = 50051
_RANGES = (("port", 0, 65_535), ("admin_port", 0, 65_535), ("drain_seconds", 0.0, 86_400.0))
_LOG_FORMATS = ("text", "json")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Settings of one server. Times in seconds."""

    model: str = ""
    """Directory of a Hugging Face checkpoint, a GGUF file, or a model by name; empty is the embedded model."""
    name: str = ""
    """Name of the model for clients; empty takes the checkpoint's own."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = DEFAULT_PORT
    """Port to listen on; 0 takes a free one."""
    insecure: bool = False
    """Listen beyond this machine, without encryption and without keys."""
    admin: bool = True
    """Serve AdminService, on a port of its own."""
    admin_host: str = "127.0.0.1"
    """Address that AdminService listens on: one that only this machine can reach."""
    admin_port: int = 0
    """Port of AdminService; 0 takes the one after port, or a free one where port is 0 or the next one is in use."""
    drain_seconds: float = 30.0
    """How long open requests may take to end after a signal."""
    log_format: str = "text"
    """One line per call, as text or json."""
    config: str = ""
    """TOML file with settings."""

    def __post_init__(self) -> None:
        _judge({field.name: Setting(field.name, getattr(self, field.name), "") for field in fields(self)})


def resolve_all(
    flags: Mapping[str, Any], environment: Mapping[str, str] | None = None, checkpoint: Checkpoint | None = None
) -> tuple[ServerConfig, ResolvedConfig]:
    """Every setting of server and engine, judged against the checkpoint where it is known.

    `flags` holds only what was typed. Raises ConfigError, and CheckpointError for what the checkpoint says.
    """
    given = os.environ if environment is None else environment
    file = flags.get("config", given.get(CONFIG_VARIABLE)) or None
    if "config" in file_layer(file)[1]:
        raise ConfigError("config from file names another file, which is not read: leave it out of the file")
    resolved = resolve(
        flags,
        given,
        file,
        {} if checkpoint is None else _layer_of(checkpoint),
        None if checkpoint is None else checkpoint.traits,
        (ServerConfig,),
    )
    _judge({setting.name: setting for setting in resolved.settings})
    return resolved.made(ServerConfig), resolved


def _layer_of(checkpoint: Checkpoint) -> dict[str, Any]:
    return {"name": checkpoint.name, **checkpoint.settings, **own_settings(checkpoint.path)}


def _judge(settings: Mapping[str, Setting]) -> None:
    refuse_out_of_range(settings, _RANGES)
    refuse_other_words(settings, "log_format", _LOG_FORMATS)
    _refuse_open_doors(settings)
    admin, port, admin_port = settings["admin"], settings["port"], settings["admin_port"]
    if not admin.value and admin_port.value and admin_port.is_chosen and admin_port.source == admin.source:
        raise ConfigError(f"{admin_port} opens nothing, because {admin} wins: leave one of them out")
    if admin.value and admin_port.value and admin_port.value == port.value:
        raise ConfigError(f"{admin_port} and {port} are one port: choose another, or leave admin_port out")


def _refuse_open_doors(settings: Mapping[str, Setting]) -> None:
    host, admin_host = settings["host"], settings["admin_host"]
    if not is_loopback(host.value) and not settings["insecure"].value:
        raise ConfigError(
            f"{host} can be reached from other machines, and calls are neither encrypted nor authenticated: turn "
            "insecure on (--insecure) if that is meant, or use 127.0.0.1"
        )
    if not is_loopback(admin_host.value):
        raise ConfigError(
            f"{admin_host} can be reached from other machines, and AdminService asks nobody who they are: use "
            "127.0.0.1, and reach it from elsewhere through a tunnel"
        )
