"""Flags for every setting of the engine, made from EngineConfig itself, and the table of what they came to.

A setting that is added to EngineConfig is a flag at once, with its docstring as help. Imports nothing heavy.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fanlight_engine.config import EngineConfig, Setting

if TYPE_CHECKING:
    from fanlight_engine.client import CoreFacts

_PREFIX = "setting_"
_DEFAULT_SOURCE = "default"


def add_setting_flags(parser: argparse.ArgumentParser) -> None:
    """One flag per field: --page-size for page_size; --prefix-cache and --no-prefix-cache for a truth value."""
    group = parser.add_argument_group(
        "engine settings",
        "Precedence: flag, environment (FANLIGHT_PAGE_SIZE=32), file (page_size = 32), checkpoint, default.",
    )
    helps = _field_docstrings(EngineConfig)
    for field in fields(EngineConfig):
        flag = "--" + field.name.replace("_", "-")
        text = f"{helps.get(field.name, '')} Default: {shown(field.default)}".replace("%", "%%").strip()
        common: dict[str, Any] = {"dest": _PREFIX + field.name, "default": argparse.SUPPRESS, "help": text}
        if field.type in ("bool", bool):
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        else:
            group.add_argument(flag, metavar="N" if field.type in ("int", int) else "VALUE", **common)


def shown(value: Any) -> str:
    """A value as a file or the environment would spell it; an empty text is visible."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if value != "" else '""'


def typed_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Only what was typed, by field name; numbers are still text, which `config.resolve` judges."""
    return {name.removeprefix(_PREFIX): value for name, value in vars(arguments).items() if name.startswith(_PREFIX)}


def closest_flags(parser: argparse.ArgumentParser, unknown: Iterable[str]) -> str:
    """The flags that may have been meant by unknown ones, for an error's text; empty where none comes close."""
    known = [flag for action in parser._actions for flag in action.option_strings]
    typed = [text.partition("=")[0] for text in unknown if text.startswith("--")]
    return " and ".join(close for flag in typed for close in difflib.get_close_matches(flag, known, n=1))


def settings_table(settings: Iterable[Setting]) -> str:
    """Setting, value and source in aligned columns; what somebody chose comes first, defaults after it."""
    ordered = sorted(settings, key=lambda setting: setting.source == _DEFAULT_SOURCE)
    rows = [("setting", "value", "source"), *((one.name, shown(one.value), _source(one)) for one in ordered)]
    name_width, value_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(f"{name:<{name_width}}  {value:<{value_width}}  {source}" for name, value, source in rows)


def with_decided(settings: Iterable[Setting], facts: CoreFacts) -> tuple[Setting, ...]:
    """The settings with what was decided while loading: the context that the KV cache holds, and its pages."""
    decided = {"context_length": facts.context_length, "kv_pages": facts.pages}
    return tuple(
        one
        if decided.get(one.name, one.value) == one.value
        else Setting(one.name, decided[one.name], "memory", ((one.source, one.value), *one.overrode))
        for one in settings
    )


def _source(setting: Setting) -> str:
    overridden = ", ".join(f"{source} {shown(value)}" for source, value in setting.overrode)
    return f"{setting.source} (over {overridden})" if overridden else setting.source


def _field_docstrings(config: type) -> dict[str, str]:
    """The string below each field of a dataclass; none where the source is not at hand."""
    try:
        body = ast.parse(inspect.getsource(config)).body[0]
    except (OSError, TypeError, SyntaxError):
        return {}
    assert isinstance(body, ast.ClassDef)
    docstrings: dict[str, str] = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docstrings[name] = " ".join(text.split())
            case _:
                pass
    return docstrings
