"""What chat templates are written in: Jinja's sandbox with the names that transformers gives to templates.

Output is that of transformers. Stricter than its sandbox in one thing: reading what templates have no business with
(`__class__`, `__globals__`) is an error at once, where Jinja would go on with an undefined value that prints as
nothing. Knows Jinja alone: it is imported by a process that must start quickly.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, is_internal_attribute
from jinja2.utils import Namespace


class RaisedByTemplate(Exception):
    """What the template itself objects to, with `raise_exception`."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """See the module."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols])
        self.filters["tojson"] = _to_json
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": _Dictionaries(),
            "namespace": _TemplateNamespace,
        }

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Raise SecurityError; a method that would change a list is only refused where it is called."""
        if attribute.startswith("_") or is_internal_attribute(obj, attribute):
            raise SecurityError(f"it reads {attribute} of a {type(obj).__name__}")
        return super().unsafe_undefined(obj, attribute)


def compile_template(environment: TemplateEnvironment, source: str) -> jinja2.Template:
    """Raises TemplateSyntaxError, and SecurityError naming what the template would read, even where it never does."""
    forbidden = sorted({name for name in _names_read(environment.parse(source)) if name.startswith("__")})
    if forbidden:
        raise SecurityError(f"it reads {', '.join(forbidden)}")
    return environment.from_string(source)


def _names_read(template: nodes.Template) -> Iterator[str]:
    """Attributes and keys that are spelled out."""
    for node in template.find_all((nodes.Getattr, nodes.Getitem, nodes.Filter, nodes.Keyword)):
        match node:
            case nodes.Getattr(attr=name):
                yield name
            case nodes.Getitem(arg=nodes.Const(value=str() as name)):
                yield name
            case nodes.Filter(name="attr", args=[nodes.Const(value=str() as name), *_]):
                yield name
            case nodes.Keyword(key="attribute", value=nodes.Const(value=str() as path)):
                yield from path.split(".")
            case _:
                pass


class _GenerationBlocks(Extension):
    """`{% generation %}` marks what an assistant said, for training; here it is what stands inside."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """The block's content, whose names stay inside."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Dictionaries:
    """`dict` without what else a type can be asked for."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """As that of dict."""
        return dict.fromkeys(*args)


class _TemplateNamespace(Namespace):
    """Jinja's namespace, whose names may not look like Python's own."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"it sets {name} of a namespace")
        super().__setitem__(name, value)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without the escapes for HTML that Jinja's own has."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any = "") -> None:
    raise RaisedByTemplate(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
