"""The process that runs a checkpoint's chat templates, limited in memory, processor time and files.

    python -m ...renderer_process SOCKET_DESCRIPTOR

    server    compile: a template; it is the next number, from 0
    process   compiled | unsafe | failed
    server    render: a number, and the template's variables
    process   rendered | refused | unsafe | failed

Each message of the server says how much memory and processor time its answer may take. Memory that is not there makes
the work fail, and is told; a process that has used its time is ended by the system, in the middle of whatever it does.
"""

from __future__ import annotations

import importlib
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError

from fanlight_engine.inputs.channel import Channel
from fanlight_engine.inputs.confinement import forbid_files, limit_memory, mapped_bytes
from fanlight_engine.inputs.templates.environment import RaisedByTemplate, TemplateEnvironment, compile_template

_IMPORTED_LATE = (
    "encodings.ascii",
    "encodings.latin_1",
    "encodings.unicode_escape",
    "jinja2.constants",
    "jinja2.debug",
    "pprint",
    "traceback",
    "unicodedata",
)
"""Modules that Jinja and Python import when a template needs them, when no file can be opened any more."""
_MEMORY_FOR_ANSWERS = 16 << 20
"""Bytes that telling the answer may take beside."""


def main(arguments: Sequence[str]) -> None:
    """Answer until the server closes the socket."""
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    for name in _IMPORTED_LATE:
        importlib.import_module(name)
    time.tzset()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    memory_at_start = mapped_bytes()
    forbid_files()
    channel.send("ready")
    environment, templates = TemplateEnvironment(), []
    while True:
        try:
            message = channel.receive()
        except EOFError:
            return
        limit_memory(memory_at_start + message["memory"])
        signal.setitimer(signal.ITIMER_PROF, message["seconds"])
        kind, content = _answer(message, environment, templates)
        limit_memory(memory_at_start + message["memory"] + _MEMORY_FOR_ANSWERS)
        try:
            channel.send(kind, **content)
        except (MemoryError, OverflowError):
            channel.send("failed", why="", is_too_large=True)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _answer(
    message: dict[str, Any], environment: TemplateEnvironment, templates: list[jinja2.Template]
) -> tuple[str, dict[str, Any]]:
    """Kind and content of what to say. Nothing of the work is left when it returns, neither of work that failed."""
    try:
        if message["kind"] == "compile":
            templates.append(compile_template(environment, message["source"]))
            return "compiled", {}
        return "rendered", {"text": templates[message["number"]].render(message["variables"])}
    except RaisedByTemplate as raised:
        return "refused", {"why": str(raised)}
    except SecurityError as error:
        return "unsafe", {"why": str(error)}
    except MemoryError:
        return "failed", {"why": "", "is_too_large": True}
    except Exception as error:  # a template is a program: it can fail in any way
        return "failed", {"why": type(error).__name__, "detail": _in_words(error), "is_too_large": False}


def _in_words(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"line {error.lineno}: {error.message}"
    return str(error)


if __name__ == "__main__":
    main(sys.argv[1:])
