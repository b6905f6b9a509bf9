"""LoRA adapters as the settings and the core name them; knows no files, no weights and no requests.

An adapter is a small addition to the weights of the served checkpoint. Callers ask for it as for a model of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from fanlight_engine.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_EXAMPLE = "write name=directory, several of them separated by commas"


@dataclass(frozen=True, slots=True)
class ServedLora:
    """One adapter of a running core."""

    name: str
    number: int
    """What rows of a step carry that take it; 0 stands for the checkpoint itself."""
    digest: bytes
    """SHA-256 over its configuration and its weights: adapters of equal digests give equal answers."""


def parse_lora(setting: str) -> dict[str, str]:
    """The `lora` setting as directories by name, in its order; ~ is the user's own.

    Raises ConfigError naming the pair that is wrong.
    """
    directories: dict[str, str] = {}
    for pair in setting.split(",") if setting.strip() else ():
        name, equals, directory = (part.strip() for part in pair.partition("="))
        if not (equals and name and directory):
            raise ConfigError(f"lora has {pair.strip()!r} in it, which is no adapter; {_EXAMPLE}")
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"lora names an adapter {name!r}; a name has at most 128 letters, digits and . _ - /, and begins with "
                "a letter or a digit"
            )
        if name in directories:
            raise ConfigError(f"lora names two adapters {name!r}; give each a name of its own")
        directories[name] = str(Path(directory).expanduser())
    return directories


def served_names(base: str, setting: str) -> tuple[str, ...]:
    """What requests may name as their model: the checkpoint first, then its adapters."""
    return (base, *parse_lora(setting))


def refuse_name_of_base(setting: str, base: str) -> None:
    """Raise ConfigError when an adapter has the name of the checkpoint that it is added to."""
    if base in parse_lora(setting):
        raise ConfigError(
            f"lora names an adapter {base!r}, which is the name of the model itself; give the adapter another name, or "
            "the model with --name"
        )
