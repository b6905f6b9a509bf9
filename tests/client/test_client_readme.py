"""The examples of the client's README run as they are printed, in order, against a server that takes everything."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import time
from pathlib import Path

import pytest
from PIL import Image
from scripted_server import ScriptedServer, ServerThread

import fanlight
from fanlight import Client
from fanlight.v1 import server_pb2

README = Path(fanlight.__file__).parent.parent / "README.md"
FILES = ("cat.jpg", "clip.mp4", "broken.jpg")


def test_every_example_runs(
    server_thread: ServerThread, server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.features = [server_pb2.FEATURE_MEDIA_UPLOAD]
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        Path(name).write_bytes(b"file " + name.encode())
    examples = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    with Client(server_thread.address) as client:
        known = {"fanlight": fanlight, "time": time, "picture_bytes": b"1", "pil_image": Image.new("RGB", (2, 2))}
        for example in examples:
            code = example.replace("localhost:50051", server_thread.address)
            names = {**known, "client": client}
            running = eval(compile(code, str(README), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
            if inspect.iscoroutine(running):
                asyncio.run(running)
    assert len(examples) >= 8
    assert Path("copy.mp4").read_bytes() == b"file clip.mp4"
    assert len(server.requests) > len(examples)
