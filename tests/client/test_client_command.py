"""The command `fanlight` and its `chat`, with a pipe for input."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from scripted_server import WAIT_SECONDS, ScriptedServer, ServerThread
from test_client_chat import until_interrupted

from fanlight import cli
from fanlight.chat_command import closing_line, main
from fanlight.v1 import server_pb2


def chat(monkeypatch: pytest.MonkeyPatch, address: str, lines: str, *options: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    return main(["--address", address, *options])


def test_each_line_is_a_turn_and_answers_alone_go_to_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server_thread: ServerThread
) -> None:
    assert chat(monkeypatch, server_thread.address, "hello\n\nagain\n/quit\nnever\n", "--temperature", "0") == 0
    output, errors = capsys.readouterr()
    assert output == "hello\nagain\n"
    assert errors.count("[40 tokens in (16 media, 8 cached) · 3 out · first token 250 ms · 50 tokens/s]") == 2
    sampling = server_thread.scripted.requests[0].setup.config.sampling
    assert sampling.HasField("temperature")
    assert sampling.max_new_tokens == 512


def test_the_length_of_answers_and_the_server_may_be_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server_thread: ServerThread
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    assert main([server_thread.address, "--max-new-tokens", "7"]) == 0
    assert server_thread.scripted.requests[0].setup.config.sampling.max_new_tokens == 7
    with pytest.raises(SystemExit):
        main([server_thread.address, "--address", "host:1"])
    assert f"given twice: {server_thread.address} and --address host:1" in capsys.readouterr().err


def test_an_image_goes_with_the_next_message_only(
    monkeypatch: pytest.MonkeyPatch, server_thread: ServerThread, tmp_path: Path
) -> None:
    picture = tmp_path / "a cat.png"
    picture.write_bytes(b"picture")
    assert chat(monkeypatch, server_thread.address, f"/image {picture}\nWhat?\nAnd now?\n") == 0
    turns = [request.turn for request in server_thread.scripted.requests[1:]]
    assert [len(turn.messages[0].parts) for turn in turns] == [2, 1]
    assert turns[0].messages[0].parts[0].image.data == b"picture"


def test_paths_are_quoted_and_several_as_in_a_shell_and_begin_with_a_tilde(
    monkeypatch: pytest.MonkeyPatch, server_thread: ServerThread, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("a cat.png", "b.png", "it's.png", "c.png"):
        Path(name).write_bytes(name.encode())
    commands = ('"a cat.png" b.png', "it's.png", r'~/b.png "~/a cat.png" a\ cat.png', "'c.png'")
    lines = "".join(f"/image {each}\n" for each in commands)
    assert chat(monkeypatch, server_thread.address, f"{lines}What?\n") == 0
    *images, _ = server_thread.scripted.requests[1].turn.messages[0].parts
    expected = [b"a cat.png", b"b.png", b"it's.png", b"b.png", b"a cat.png", b"a cat.png", b"c.png"]
    assert [part.image.data for part in images] == expected


def test_pictures_of_a_refused_turn_are_said_to_be_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cat.png").write_bytes(b"picture")
    lines = "/image cat.png\nWhat?\nAnd now?\n/video cat.png\nWhat?\n/image cat.png cat.png\n/video cat.png\nWhat?\n"
    assert chat(monkeypatch, "127.0.0.1:1", lines) == 1
    told = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert told == [
        "the picture was left out; send it again",
        "the clip was left out; send it again",
        "the pictures and clips were left out; send them again",
    ]


def test_clips_and_urls_go_with_the_next_message_and_a_large_file_by_upload(
    monkeypatch: pytest.MonkeyPatch, server_thread: ServerThread, tmp_path: Path
) -> None:
    server_thread.scripted.features = [server_pb2.FEATURE_MEDIA_UPLOAD]
    clip = tmp_path / "a clip.mp4"
    clip.write_bytes(bytes(5_000_000))
    lines = f"/video {clip}\n/image https://host/cat.png\n/video http://host/clip.mp4\nWhat?\n"
    assert chat(monkeypatch, server_thread.address, lines) == 0
    image, large, fetched, _ = server_thread.scripted.requests[1].turn.messages[0].parts
    assert image.image.url == "https://host/cat.png"
    assert fetched.video.url == "http://host/clip.mp4"
    assert server_thread.scripted.media.held[large.video.digest] == clip.read_bytes()


def test_mistakes_are_told_and_the_chat_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server_thread: ServerThread
) -> None:
    lines = '/image\n/video\n/image nowhere.png\n/image "open\n/image ftp://host/a\n/dance\n/help\nhello\n'
    assert chat(monkeypatch, server_thread.address, lines) == 1
    output, errors = capsys.readouterr()
    assert output == "hello\n"
    for told in (
        "usage: /image PATH",
        "usage: /video PATH",
        "cannot read nowhere.png: No such file",
        'cannot read "open: No closing quotation',
        "only http:// and https:// URLs",
        "no command /dance",
        "/quit",
    ):
        assert told in errors


def test_no_server_says_how_to_start_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat(monkeypatch, "127.0.0.1:1", "hello\n") == 1
    assert "start a server with `fanlight serve`" in capsys.readouterr().err


def test_a_conversation_goes_on_after_the_server_was_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], server_thread: ServerThread
) -> None:
    from collections.abc import AsyncIterator
    from typing import Any

    import grpc
    from scripted_server import echoing_chat

    calls: list[Any] = []

    async def away_once(requests: Any, context: Any) -> AsyncIterator[Any]:
        calls.append(context)
        answered = 0
        async for response in echoing_chat(requests, context):
            answered += response.HasField("usage")
            yield response
            if len(calls) == 1 and answered == 1:
                await anext(requests)
                await context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")

    server_thread.scripted.chat_script = away_once
    assert chat(monkeypatch, server_thread.address, "one\ntwo\nthree\n", "--system", "Be brief.") == 1
    output, errors = capsys.readouterr()
    assert output == "one\nthree\n"
    assert "UNAVAILABLE: restarting" in errors
    setups = [request.setup for request in server_thread.scripted.requests if request.HasField("setup")]
    texts = [message.parts[0].text for message in setups[1].history]
    assert texts == ["Be brief.", "one", "one"]


def test_ctrl_c_stops_the_answer_and_not_the_chat(server_thread: ServerThread, server: ScriptedServer) -> None:
    server.chat_script = until_interrupted
    process = subprocess.Popen(
        [sys.executable, "-m", "fanlight", "chat", "--address", server_thread.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdin
    assert process.stdout
    try:
        process.stdin.write("Tell me everything\n")
        process.stdin.flush()
        assert process.stdout.read(4) == "word"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate("/quit\n", timeout=WAIT_SECONDS)
    finally:
        process.kill()
    assert (process.returncode, output) == (0, "\n")
    assert "[interrupted" in errors


def test_help_lists_the_commands_that_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert set(listed) == {*cli.installed_commands(), *cli.SERVER_COMMANDS} >= {"chat", "config", "serve"}
    assert cli.main([]) == 2


def test_help_says_how_to_get_the_server_only_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chat_only = {name: point for name, point in cli.installed_commands().items() if name == "chat"}
    everything = {**chat_only, **dict.fromkeys(cli.SERVER_COMMANDS, chat_only["chat"])}
    for commands, told in ((chat_only, True), (everything, False)):
        monkeypatch.setattr(cli, "installed_commands", lambda commands=commands: commands)
        cli.main(["--help"])
        output = capsys.readouterr().out
        assert ("serve   serve a vision-language model (pip install fanlight-server)" in output) is told
        assert ("pip install" in output) is told
        assert "chat    talk to a running server in the terminal, with pictures and clips\n" in output


def test_commands_of_the_server_say_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "installed_commands", dict)
    for command in cli.SERVER_COMMANDS:
        assert cli.main([command, "model"]) == 2
        assert "pip install fanlight-server" in capsys.readouterr().err


def test_an_unknown_command_is_refused_with_the_likely_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["chta"]) == 2
    assert "did you mean `chat`?" in capsys.readouterr().err


def test_a_command_gets_the_arguments_after_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["chat", "--help"])
    assert left.value.code == 0
    assert "/image PATH" in capsys.readouterr().out


def test_nothing_known_is_nothing_said() -> None:
    assert closing_line(None, None) == ""


LOUD = """
import sys
from types import SimpleNamespace
from fanlight import cli

def loud(argv):
    print("x" * 1_000_000)
    return 0

cli.installed_commands = lambda: {"loud": SimpleNamespace(load=lambda: loud)}
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", [["loud"], ["--help"], ["--version"]])
def test_a_reader_that_has_read_enough_ends_a_command_quietly(command: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([sys.executable, "-c", LOUD, *command], stdout=write, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (cli.ENDED_BY_A_CLOSED_PIPE, b"")
