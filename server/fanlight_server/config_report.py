"""What a server runs with: the checkpoint's facts, and every setting with its source, for AdminService and commands.

Knows neither messages nor terminals; imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from fanlight_engine.settings import CHECKPOINT, DEVICE, MEMORY, Setting

if TYPE_CHECKING:
    from fanlight_engine.checkpoints.description import CheckpointDescription
    from fanlight_engine.client import CoreFacts

SCHEMA_VERSION = 1
"""Counts up whenever what `as_json` gives changes in a way that a reader could trip over."""


@dataclass(frozen=True, slots=True)
class ConfigReport:
    """One server's configuration. Settings are in the order of their declaration."""

    checkpoint: CheckpointDescription
    settings: tuple[Setting, ...]

    def once_loaded(self, facts: CoreFacts) -> ConfigReport:
        """The same with what was decided while loading."""
        return replace(self, settings=with_decided(self.settings, facts, self.checkpoint.dtype))

    def as_json(self) -> dict[str, Any]:
        """JSON values; docs/configuration.md is their description."""
        return {
            "version": SCHEMA_VERSION,
            "checkpoint": asdict(self.checkpoint),
            "settings": [_setting_as_json(setting) for setting in self.settings],
        }


def with_decided(settings: Iterable[Setting], facts: CoreFacts, own_dtype: str) -> tuple[Setting, ...]:
    """The settings with what was decided while loading; `own_dtype` is the checkpoint's number type.

    That is the context that the KV cache holds, its pages, the bytes that it took, the number type, and the
    attention backend.
    """
    decided = {
        "context_length": (facts.context_length, MEMORY),
        "kv_pages": (facts.pages, MEMORY),
        "kv_cache_bytes": (facts.memory.key_value_bytes, MEMORY),
        "dtype": (facts.dtype, CHECKPOINT if facts.dtype == own_dtype else DEVICE),
        "attention": (facts.attention, DEVICE),
    }
    return tuple(_decided(one, *decided[one.name]) if one.name in decided else one for one in settings)


def _decided(setting: Setting, value: Any, source: str) -> Setting:
    if value in (setting.value, 0, ""):  # as it was, or not known
        return setting
    return Setting(setting.name, value, source, ((setting.source, setting.value), *setting.overrode))


def _setting_as_json(setting: Setting) -> dict[str, Any]:
    return {
        "name": setting.name,
        "value": setting.value,
        "source": setting.source,
        "overrode": [{"source": source, "value": value} for source, value in setting.overrode],
    }
