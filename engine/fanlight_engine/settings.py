"""How a setting gets its value: layers of sources, the highest first, each value with what it overrode.

Precedence: flag > environment (FLAGS in capitals behind FANLIGHT_) > file (TOML) > checkpoint > default. Settings are
declared as fields of dataclasses; knows no particular setting.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fanlight_engine.errors import CheckpointError, ConfigError

FLAG, ENVIRONMENT, FILE, CHECKPOINT, DEFAULT = "flag", "environment", "file", "checkpoint", "default"
MEMORY = "memory"
"""Source of what was decided while loading, from the memory that there is."""
DEVICE = "device"
"""Source of what was decided while loading, by the device that the model is on."""
CHOICES = (FLAG, ENVIRONMENT, FILE)
"""Sources that somebody chose."""
ENVIRONMENT_PREFIX = "FANLIGHT_"
CONFIG_VARIABLE = ENVIRONMENT_PREFIX + "CONFIG"
"""The variable that names the file."""

_TRUE_WORDS = ("1", "true", "yes", "on")
_FALSE_WORDS = ("0", "false", "no", "off")
_KINDS_IN_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}

Layer = tuple[str, Mapping[str, Any]]
"""A source and what it says, by name."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One resolved value, where it came from, and what that overrode as (source, value) pairs, the next one first."""

    name: str
    value: Any
    source: str
    overrode: tuple[tuple[str, Any], ...] = ()

    @property
    def is_chosen(self) -> bool:
        """Whether somebody chose it for this server, rather than a checkpoint or nobody."""
        return self.source in CHOICES

    def outranks(self, other: Setting) -> bool:
        """Whether it comes from a higher layer than another setting."""
        ranks = {source: rank for rank, source in enumerate((FLAG, ENVIRONMENT, FILE, CHECKPOINT, DEFAULT))}
        return ranks.get(self.source, len(ranks)) < ranks.get(other.source, len(ranks))

    def __str__(self) -> str:
        """Name, value and source, for messages."""
        value = shown(self.value)
        if not self.source:
            return f"{self.name} ({value})"
        return f"{self.name} ({value} {'by' if self.source == DEFAULT else 'from'} {self.source})"


def shown(value: Any) -> str:
    """A value as a file or the environment would spell it; an empty text is visible."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if value != "" else '""'


def resolve_layers(declarations: Iterable[type], layers: Iterable[Layer]) -> tuple[Setting, ...]:
    """One Setting for each field of the declaring dataclasses, which are the last layer themselves.

    `layers` come highest first. Raises ConfigError for a name that is no setting and a value of another type.
    """
    known = {field.name: field for declaration in declarations for field in fields(declaration)}
    defaults = {name: field.default for name, field in known.items()}
    every_layer = (*layers, (DEFAULT, defaults))
    for source, values in every_layer:
        for name, value in values.items():
            if isinstance(value, dict):
                raise ConfigError(
                    f"[{name}] from {source} is a table, and tables are not used: write its settings at the top level, "
                    "name = value, above any [table]"
                )
            if name not in known:
                raise ConfigError(_unknown_setting(name, source, known))
    return tuple(_resolve_one(name, str(field.type), every_layer) for name, field in known.items())


def environment_layer(environment: Mapping[str, str] | None = None) -> Layer:
    """FANLIGHT_PAGE_SIZE -> page_size. A name that starts like ours and is none is an error, as everywhere.

    Without an environment, that of the process is read.
    """
    given = os.environ if environment is None else environment
    variables = [variable for variable in given if variable.startswith(ENVIRONMENT_PREFIX)]
    return ENVIRONMENT, {variable.removeprefix(ENVIRONMENT_PREFIX).lower(): given[variable] for variable in variables}


def file_layer(file: str | Path | None) -> Layer:
    """The top level of a TOML file. Raises ConfigError."""
    if file is None:
        return FILE, {}
    try:
        return FILE, tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"configuration file {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {file} is not TOML: {error}") from error


def without(layer: Layer, names: Iterable[str]) -> Layer:
    """The layer but for some names."""
    source, values = layer
    return source, {name: value for name, value in values.items() if name not in frozenset(names)}


def refuse_out_of_range(settings: Mapping[str, Setting], ranges: Iterable[tuple[str, float, float]]) -> None:
    """Raise unless every value lies within its range, bounds included: CheckpointError where the checkpoint's does."""
    for name, low, high in ranges:
        if not low <= settings[name].value <= high:
            raise _unacceptable(settings[name], f"it must be between {low} and {high}")


def refuse_other_words(settings: Mapping[str, Setting], name: str, words: tuple[str, ...]) -> None:
    """Raise unless the value is one of the words, of which the empty one may be."""
    if settings[name].value not in words:
        shown = ", ".join(word for word in words if word)
        raise _unacceptable(
            settings[name], f"it must be {shown}, or empty" if "" in words else f"it must be one of {shown}"
        )


def _unacceptable(setting: Setting, limit: str) -> ConfigError | CheckpointError:
    source = f" (from {setting.source})" if setting.source else ""
    told = f"{setting.name} is {setting.value!r}{source}, {limit}"
    if setting.source == CHECKPOINT:
        flag = "--" + setting.name.replace("_", "-")
        return CheckpointError(
            f"{told}: correct the checkpoint's config.json or generation_config.json, or choose {flag}"
        )
    return ConfigError(told)


def _resolve_one(name: str, kind: str, layers: Iterable[Layer]) -> Setting:
    found = [(source, _convert(name, kind, values[name], source)) for source, values in layers if name in values]
    (source, value), *overrode = found
    return Setting(name, value, source, tuple((one, old) for one, old in overrode if old != value))


def _convert(name: str, kind: str, value: Any, source: str) -> Any:
    """Text (from flags and the environment) to the field's type; a file's values must already have it."""
    if isinstance(value, str) and source != FILE:
        if kind == "bool" and value.lower() in _TRUE_WORDS + _FALSE_WORDS:
            return value.lower() in _TRUE_WORDS
        if kind in ("int", "float"):
            try:
                return int(value.replace("_", "")) if kind == "int" else float(value)
            except ValueError:
                pass
    if kind == "float" and type(value) is int:
        return float(value)
    if type(value).__name__ == kind:
        return value
    told = f"{name} from {source} is {value!r}, {_KINDS_IN_WORDS[kind]} is needed"
    if value == "" and source == ENVIRONMENT:
        told += (
            f"; unset {ENVIRONMENT_PREFIX}{name.upper()} to leave it out, an empty variable is a value like any other"
        )
    elif isinstance(value, str) and source == FILE:
        told += "; write it without quotes"
    raise ConfigError(told)


def _unknown_setting(name: str, source: str, known: Iterable[str]) -> str:
    """What to say of it, in the spelling of its source: the setting that may have been meant, else all there are."""

    def spelled(one: str) -> str:
        return ENVIRONMENT_PREFIX + one.upper() if source == ENVIRONMENT else one

    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {spelled(close[0])}?" if close else f"known: {', '.join(map(spelled, sorted(known)))}"
    return f"unknown setting {spelled(name)!r} from {source}; {hint}"
