"""Flags for every setting, made from the dataclasses that declare them, and the table of what they came to.

A setting that is added to EngineConfig or ServerConfig is a flag at once, with its docstring as help. Imports nothing
heavy.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from fanlight_engine.config import EngineConfig, Setting
from fanlight_engine.settings import DEFAULT, shown
from fanlight_server.server_config import ServerConfig

POSITIONAL = "model"
"""The one setting that may be typed without its flag."""
_DECIDED_WHERE_ZERO = ("admin_port", "context_length", "kv_pages", "torch_threads")
"""Settings whose default, 0, says that they are decided elsewhere; the others' means something."""
_PREFIX = "setting_"
_PRECEDENCE = "Precedence: flag, environment (FANLIGHT_PAGE_SIZE=32), file (page_size = 32), checkpoint, default."


def add_setting_flags(parser: argparse.ArgumentParser) -> None:
    """One flag per field: --page-size for page_size; --prefix-cache and --no-prefix-cache for a truth value."""
    about_model = _helps(ServerConfig)[POSITIONAL]
    common: dict[str, Any] = {"default": argparse.SUPPRESS, "metavar": "MODEL", "action": _Once}
    parser.add_argument(_PREFIX + POSITIONAL, nargs="?", help=about_model, **common)
    parser.add_argument("--" + POSITIONAL, dest=_PREFIX + POSITIONAL, help="The same, as a flag.", **common)
    _add_group(parser, "server settings", ServerConfig)
    _add_group(parser, "engine settings", EngineConfig)


def _add_group(parser: argparse.ArgumentParser, title: str, declaration: type) -> None:
    group = parser.add_argument_group(title, _PRECEDENCE)
    helps = _helps(declaration)
    for field in fields(declaration):
        if field.name == POSITIONAL:
            continue
        flag = "--" + field.name.replace("_", "-")
        text = f"{helps.get(field.name, '')} Default: {shown(field.default)}".replace("%", "%%").strip()
        common: dict[str, Any] = {"dest": _PREFIX + field.name, "default": argparse.SUPPRESS, "help": text}
        if field.type == "bool":
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        elif field.metadata:
            group.add_argument(flag, action=_Joined, **field.metadata, **common)
        else:
            group.add_argument(flag, metavar="N" if field.type in ("int", "float") else "VALUE", **common)


class _Once(argparse.Action):
    """What may be typed in two ways, and means one thing."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        typed = getattr(namespace, self.dest, values)
        if typed != values:
            parser.error(f"{self.metavar} is given as {typed} and as {values}: leave one of them out")
        setattr(namespace, self.dest, values)


class _Joined(argparse.Action):
    """A flag that may be given several times, once for each of the things that its setting lists."""

    def __init__(self, *, separator: str, **options: Any) -> None:
        super().__init__(metavar="VALUE", **options)
        self._separator = separator

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        listed = [one for one in (getattr(namespace, self.dest, None), values) if one is not None]
        setattr(namespace, self.dest, self._separator.join(listed))


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
    ordered = sorted(settings, key=lambda setting: setting.source == DEFAULT)
    rows = [("setting", "value", "source"), *((one.name, shown(one.value), _source(one)) for one in ordered)]
    name_width, value_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(f"{name:<{name_width}}  {value:<{value_width}}  {source}" for name, value, source in rows)


def _source(setting: Setting) -> str:
    overridden = ", ".join(
        f"{source} {shown(value)}"
        for source, value in setting.overrode
        if not _is_left_open(setting.name, source, value)
    )
    return f"{setting.source} (over {overridden})" if overridden else setting.source


def _is_left_open(name: str, source: str, value: Any) -> bool:
    """Whether it is a default that decides nothing, so that winning over it is not worth a word."""
    return source == DEFAULT and (value == "" or (value == 0 and name in _DECIDED_WHERE_ZERO))


def _helps(declaration: type) -> dict[str, str]:
    """The string below each field of a dataclass; none where the source is not at hand."""
    try:
        body = ast.parse(inspect.getsource(declaration)).body[0]
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
