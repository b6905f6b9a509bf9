"""What a user starts: `fanlight serve` and `fanlight chat` as processes, from the first line to a signal."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fanlight import Client, Delta, Event, FinishReason, Stream, Unavailable
from tests.e2e.pictures import picture
from tests.e2e.serving import ServerProcess, server_process

LONG = {"ignore_eos": True, "max_new_tokens": 400, "temperature": 0.0, "token_ids": True}


def wait_for_token(stream: Stream[Event]) -> None:
    assert any(isinstance(event, Delta) for event in stream), "it ended before its first token"


def test_a_terminal_chat_shows_a_picture_and_prints_the_answer(process: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "scene.png").write_bytes(picture(1))
    said = f"/image {tmp_path / 'scene.png'}\nWhat is it?\n/quit\n"
    command = [sys.executable, "-m", "fanlight", "chat", "--address", process.address, "--max-new-tokens", "16"]
    done = subprocess.run(command, input=said, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert re.search(r"\(\d+ media\)", done.stderr), "the closing line counts the image's tokens"


def test_one_line_per_call_is_logged(process: ServerProcess) -> None:
    with Client(process.address) as client:
        answer = client.generate("Hello", max_new_tokens=1)
    assert f"request_id={answer.request_id}" in process.log()


def test_sigterm_lets_streams_finish_refuses_new_ones_and_exits_0() -> None:
    with server_process("--torch-threads", "1", "--log-format", "json") as server, Client(server.address) as client:
        streams = [client.events("What is it?", images=picture(number), **LONG) for number in range(4)]
        for stream in streams:
            wait_for_token(stream)
        server.terminate()
        while "draining" not in server.log():
            next(streams[0])
        with pytest.raises(Unavailable) as refused:
            client.generate("Hello", max_new_tokens=1)
        assert refused.value.reason == "DRAINING"
        for stream in streams:
            for _ in stream:
                pass
            assert (stream.finish_reason, len(stream.tokens)) == (FinishReason.LENGTH, 400)
        assert server.exit_code() == 0
