"""The server's own settings go through the same layers as the engine's, and are judged with them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fanlight_engine.config import SETTINGS_OF_A_SERVER, CheckpointTraits, EngineConfig, Setting
from fanlight_engine.errors import ConfigError
from fanlight_server.server_config import ServerConfig, resolve_all


def resolved(environment: dict[str, str] | None = None, **flags: Any) -> ServerConfig:
    return resolve_all(flags, environment or {})[0]


def setting(name: str, environment: dict[str, str], checkpoint: Any = None, **flags: Any) -> Setting:
    _, table = resolve_all(flags, environment, checkpoint)
    return next(one for one in table.settings if one.name == name)


def refusal(environment: dict[str, str] | None = None, **flags: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_all(flags, environment or {})
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fanlight.toml"
    path.write_text('port = 8000\nlog_format = "json"\ndrain_seconds = 5\npage_size = 32\n')
    return path


def test_nobody_chose_anything() -> None:
    server, table = resolve_all({}, {})
    assert server == ServerConfig()
    assert table.config == EngineConfig()
    assert {one.name for one in table.settings} == {one.name for one in (*fields(EngineConfig), *fields(ServerConfig))}


def test_the_engine_alone_knows_the_names_that_only_a_server_has() -> None:
    assert sorted(SETTINGS_OF_A_SERVER) == sorted(field.name for field in fields(ServerConfig))
    assert not {field.name for field in fields(EngineConfig)} & set(SETTINGS_OF_A_SERVER)


def test_flags_win_over_environment_over_file_over_default(file: Path) -> None:
    environment = {"FANLIGHT_PORT": "9000", "FANLIGHT_DRAIN_SECONDS": "1.5"}
    overrode = (("file", 8000), ("default", 50051))
    assert setting("port", {}, config=str(file)) == Setting("port", 8000, "file", overrode[1:])
    assert setting("port", environment, config=str(file)) == Setting("port", 9000, "environment", overrode)
    typed = setting("port", environment, config=str(file), port="7000")
    assert typed == Setting("port", 7000, "flag", (("environment", 9000), *overrode))
    server = resolved(environment, config=str(file), log_format="text")
    assert (server.drain_seconds, server.log_format) == (1.5, "text")


def test_the_environment_can_name_the_file(file: Path) -> None:
    server, table = resolve_all({}, {"FANLIGHT_CONFIG": str(file)})
    assert (server.port, table.config.page_size, server.config) == (8000, 32, str(file))


def test_a_file_cannot_name_another(file: Path) -> None:
    file.write_text(f'config = "{file.as_posix()}"\n')
    assert "config from file names another file, which is not read" in refusal(config=str(file))


def test_the_name_comes_from_the_checkpoint_unless_it_was_chosen() -> None:
    checkpoint = SimpleNamespace(
        name="llama", path=Path("llama"), settings={"context_length": 64}, traits=CheckpointTraits("llama")
    )
    assert setting("name", {}, checkpoint) == Setting("name", "llama", "checkpoint", (("default", ""),))
    chosen = setting("name", {"FANLIGHT_NAME": "mine"}, checkpoint)
    assert (chosen.value, chosen.source, chosen.overrode[0]) == ("mine", "environment", ("checkpoint", "llama"))
    assert setting("context_length", {}, checkpoint).source == "checkpoint"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"port": "70000"}, "port is 70000 (from flag), it must be between 0 and 65535"),
        ({"admin_port": "-1"}, "admin_port is -1 (from flag)"),
        ({"drain_seconds": "nan"}, "drain_seconds is nan (from flag)"),
        ({"log_format": "xml"}, "log_format is 'xml' (from flag), it must be one of text, json"),
        ({"host": "0.0.0.0"}, "host (0.0.0.0 from flag) can be reached from other machines"),
        ({"admin_host": "192.168.0.1"}, "admin_host (192.168.0.1 from flag) can be reached from other machines"),
        ({"admin_port": 5000, "port": 5000}, "admin_port (5000 from flag) and port (5000 from flag) are one port"),
        ({"admin_port": 5000, "admin": False}, "admin_port (5000 from flag) opens nothing, because admin (false from"),
        ({"prot": 5000}, "unknown setting 'prot' from flag; did you mean port?"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_would(flags: dict[str, Any], told: str) -> None:
    assert told in refusal(**flags)


def test_what_is_meant_is_taken() -> None:
    assert resolved(host="0.0.0.0", insecure=True).insecure
    assert resolved(admin_host="::1").admin_host == "::1"
    assert not resolved({"FANLIGHT_ADMIN_PORT": "5000"}, admin=False).admin, "a flag turns off what was set for others"
