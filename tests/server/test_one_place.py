"""The rule that keeps the contract and the engine apart, checked on the source."""

from __future__ import annotations

import ast
from pathlib import Path

import fanlight_server

PACKAGE = Path(fanlight_server.__file__).parent
ENGINE_TYPES = ("fanlight_engine.request", "fanlight_engine.events")


def imported_names(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_only_convert_sees_messages_and_engine_types_together() -> None:
    both = set()
    for file in PACKAGE.rglob("*.py"):
        names = imported_names(file)
        sees_messages = any(name.startswith("fanlight.v1.") and name.endswith("_pb2") for name in names)
        sees_engine = any(name.startswith(ENGINE_TYPES) for name in names)
        if sees_messages and sees_engine:
            both.add(file.relative_to(PACKAGE).parts[0])
    assert both == {"convert"}


def test_the_state_of_a_chat_knows_neither_sockets_nor_messages() -> None:
    names = imported_names(PACKAGE / "chat_session.py")
    assert not {name for name in names if name.split(".")[0] in ("grpc", "google", "fanlight", "asyncio")}
