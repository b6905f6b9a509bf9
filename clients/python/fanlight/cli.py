"""The command `fanlight`: finds its commands by entry points and hands over to them.

A command is an entry point in the group `fanlight.commands` that loads a function `main(argv: list[str]) -> int`, which
gets the arguments after the command's name and returns the exit status. `chat` comes with this distribution; those of
fanlight-server appear when it is installed. This file knows no command's options.
"""

from __future__ import annotations

import difflib
import os
import sys
from importlib.metadata import EntryPoint, entry_points

from fanlight.channel import client_version

COMMAND_GROUP = "fanlight.commands"
USAGE_ERROR = 2
ENDED_BY_A_CLOSED_PIPE = 141

SUMMARIES = {
    "chat": "talk to a running server in the terminal, with pictures and clips",
    "config": "show what a server would run with, each setting with its source",
    "serve": "serve a vision-language model",
}
SERVER_COMMANDS = ("config", "serve")
INSTALL_SERVER = "pip install fanlight-server"


def main(argv: list[str] | None = None) -> int:
    """Runs the command that `argv` names and returns its exit status.

    It ends quietly where whoever reads its output has read enough (`| head`), with the status that a shell would give.
    """
    try:
        try:
            return _run(sys.argv[1:] if argv is None else argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _print_into_nothing()
        return ENDED_BY_A_CLOSED_PIPE


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(help_text())
        return 0 if arguments else USAGE_ERROR
    if arguments[0] in ("-V", "--version"):
        print(f"fanlight {client_version()}")
        return 0
    name, *rest = arguments
    command = installed_commands().get(name)
    if command is None:
        print(f"fanlight: {why_missing(name)}", file=sys.stderr)
        return USAGE_ERROR
    return command.load()(rest)


def _print_into_nothing() -> None:
    """What is still buffered would be complained of at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def installed_commands() -> dict[str, EntryPoint]:
    """The commands that distributions in this environment bring, by name."""
    return {point.name: point for point in entry_points(group=COMMAND_GROUP)}


def why_missing(name: str) -> str:
    """Says why there is no such command, and what to do."""
    if name in SERVER_COMMANDS:
        return f"`{name}` comes with the server, which is not installed here: {INSTALL_SERVER}"
    known = sorted({*installed_commands(), *SERVER_COMMANDS})
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"commands: {', '.join(known)}"
    return f"there is no command `{name}`; {hint}"


def help_text() -> str:
    """What `fanlight --help` prints."""
    installed = installed_commands()
    names = [*SUMMARIES, *sorted(set(installed) - set(SUMMARIES))]
    width = max(len(name) for name in names)
    lines = ["usage: fanlight COMMAND [OPTIONS]", "", "commands:"]
    for name in names:
        missing = "" if name in installed else f" ({INSTALL_SERVER})"
        lines.append(f"  {name:<{width}}  {SUMMARIES.get(name, '')}{missing}".rstrip())
    lines += ["", "`fanlight COMMAND --help` tells the options of a command; `fanlight --version` the version."]
    return "\n".join(lines)
