"""The command: flags made from the settings, the table, exit codes. The running server is tested end to end."""

from __future__ import annotations

import argparse
import re
import socket
import subprocess
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest

from fanlight_engine.config import EngineConfig, Setting, resolve
from fanlight_server.cli.notices import notices
from fanlight_server.cli.serve import main
from fanlight_server.cli.settings import add_setting_flags, settings_table, typed_settings
from fanlight_server.default_model import default_model_path
from fanlight_server.server_config import ServerConfig


def parse(*argv: str) -> dict:
    parser = argparse.ArgumentParser()
    add_setting_flags(parser)
    return typed_settings(parser.parse_args(argv))


def test_only_what_was_typed_is_a_flag() -> None:
    assert parse() == {}
    assert parse("--page-size", "32", "--no-prefix-cache") == {"page_size": "32", "prefix_cache": False}


@pytest.mark.parametrize(
    "argv", [["a/checkpoint"], ["--model", "a/checkpoint"], ["--model=a/checkpoint", "a/checkpoint", "--port", "0"]]
)
def test_the_model_may_be_typed_with_its_flag_as_well(argv: list[str]) -> None:
    assert parse(*argv)["model"] == "a/checkpoint"


@pytest.mark.parametrize("argv", [["one", "--model", "other"], ["--model", "other", "one"]])
def test_two_models_are_a_usage_error(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert re.search("MODEL is given as (one and as other|other and as one): leave one of them out", told)


def test_a_default_that_leaves_something_open_is_not_said_to_be_won_over() -> None:
    settings = (
        Setting("context_length", 64, "checkpoint", (("default", 0),)),
        Setting("kv_pages", 0, "flag", (("file", 100), ("default", 0))),
        Setting("name", "mine", "file", (("default", ""),)),
        Setting("media_store_bytes", 1, "flag", (("environment", 0), ("default", 7))),
        Setting("default_top_k", 50, "checkpoint", (("default", 0),)),
    )
    _, *rows = settings_table(settings).splitlines()
    assert [row.split(maxsplit=2)[2] for row in rows] == [
        "checkpoint",
        "flag (over file 100)",
        "file",
        "flag (over environment 0, default 7)",
        "checkpoint (over default 0)",
    ]


def test_every_setting_has_a_flag_with_its_help() -> None:
    parser = argparse.ArgumentParser()
    add_setting_flags(parser)
    helps = {action.dest.removeprefix("setting_"): action.help or "" for action in parser._actions}
    for field in (*fields(EngineConfig), *fields(ServerConfig)):
        assert len(helps[field.name]) > len(" Default: 123"), f"{field.name} has no docstring"


def test_truth_values_and_empty_texts_read_as_a_file_would_spell_them() -> None:
    parser = argparse.ArgumentParser(formatter_class=partial(argparse.HelpFormatter, width=1000))
    add_setting_flags(parser)
    text = parser.format_help()
    assert re.search(r"--allow-media-urls, --no-allow-media-urls\s.* Default: false\n", text)
    assert re.search(r"--media-store-directory VALUE\s.* Default: \"\"\n", text)
    rows = dict(row.split()[:2] for row in settings_table(resolve({}, environment={}).settings).splitlines())
    assert (rows["prefix_cache"], rows["media_url_hosts"], rows["media_url_ports"]) == ("true", '""', "80,443")


def test_settings_that_reach_beyond_the_process_are_told() -> None:
    assert notices(EngineConfig()) == []
    fetching, keeping, framing = notices(
        EngineConfig(
            allow_media_urls=True,
            media_url_hosts="example.com, *.example.org",
            media_store_directory="uploads",
            frame_manifest_root="frames",
        )
    )
    assert "example.com, *.example.org; ports 80,443; public addresses only" in fetching
    assert "uploads" in keeping
    assert "frames" in framing


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "[fd00::1]", "localhost", "a.LOCALHOST"]
)
def test_a_host_that_is_never_fetched_from_is_told(host: str) -> None:
    _, private = notices(EngineConfig(allow_media_urls=True, media_url_hosts=f"example.com,{host},93.184.215.14"))
    assert private == f"note: {host} in media_url_hosts is not a public address and is never fetched"


def test_hosts_without_fetching_are_told_to_do_nothing() -> None:
    (idle,) = notices(EngineConfig(media_url_hosts="example.com"))
    assert "allow_media_urls is off: no URL is fetched" in idle


def test_the_table_shows_what_was_chosen_first_with_its_source() -> None:
    resolved = resolve({"page_size": "32"}, environment={"FANLIGHT_PAGE_SIZE": "64", "FANLIGHT_MAX_IMAGES": "3"})
    header, *rows = settings_table(resolved.settings).splitlines()
    assert header.split() == ["setting", "value", "source"]
    assert rows[0].split(maxsplit=2) == ["page_size", "32", "flag (over environment 64, default 16)"]
    assert rows[1].split(maxsplit=2) == ["max_images", "3", "environment (over default 16)"]
    assert all(row.endswith("default") for row in rows[2:])
    assert len(rows) == len(fields(EngineConfig))


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (["--page-size", "many"], 2, "page_size from flag is 'many', a whole number is needed"),
        (["--page-size", "0"], 2, "page_size is 0 (from flag), it must be between"),
        (["--port", "70000"], 2, "port is 70000 (from flag), it must be between 0 and 65535"),
        (["--port", "many"], 2, "port from flag is 'many', a whole number is needed"),
        (["--drain-seconds", "-1"], 2, "drain_seconds is -1.0 (from flag), it must be between"),
        (["--log-format", "xml"], 2, "log_format is 'xml' (from flag), it must be one of text, json"),
        (["--admin-host", "0.0.0.0"], 2, "AdminService asks nobody who they are"),
        (["--config", "missing.toml"], 2, "missing.toml cannot be read"),
        (["--host", "0.0.0.0"], 2, "--insecure"),
        (
            ["--frame-manifest-root", "no/such/place"],
            2,
            "frame_manifest_root is 'no/such/place', which is no directory",
        ),
        (["--allow-media-urls"], 2, "media_url_hosts is empty"),
        (["no/such/checkpoint", "--port", "0"], 4, "no/such/checkpoint is no directory"),
    ],
)
def test_wrong_usage_is_told_without_a_traceback(
    argv: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == code
    output = capsys.readouterr()
    assert told in output.err
    assert "Traceback" not in output.err
    assert output.out == ""


@pytest.mark.parametrize("argv", [["--no-such-flag"], ["--page", "3"], ["--port"]])
def test_unknown_flags_and_those_without_their_value_are_usage_errors(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "meant"), [(["--page-siz", "3"], "--page-size"), (["--max_images=3"], "--max-images")], ids=["two", "one"]
)
def test_a_flag_typed_wrongly_is_told_the_one_that_was_meant(
    typed: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(typed)
    *usage, told = capsys.readouterr().err.splitlines()
    assert told == f"fanlight serve: error: unrecognized arguments: {typed[0]}; did you mean {meant}?"
    assert len(usage) == 1


def test_a_taken_port_is_told_in_one_line_before_anything_heavy_is_imported() -> None:
    script = (
        "import sys\nfrom fanlight_server.cli.serve import main\n"
        "code = main(['--port', sys.argv[1]])\n"
        "assert not {'torch', 'transformers', 'grpc', 'numpy'} & set(sys.modules), 'heavy'\n"
        "sys.exit(code)"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-c", script, port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    (told,) = done.stderr.splitlines()
    assert told.startswith(f"fanlight serve: cannot listen on 127.0.0.1, port {port}: Address already in use; choose")


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom fanlight_server.cli.serve import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'transformers', 'grpc', 'numpy'} & set(sys.modules), 'heavy'\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert "--page-size" in done.stdout
    assert "--admin-port" in done.stdout


def test_the_embedded_model_is_beside_the_source() -> None:
    assert default_model_path().name == "fanlight-tiny"
    assert default_model_path().parent == Path(__file__).resolve().parents[2] / "models"
