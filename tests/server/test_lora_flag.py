"""--lora: one flag per adapter comes to one setting, and what is wrong with it is told before anything is loaded."""

from __future__ import annotations

import argparse

import pytest

from fanlight.v1 import server_pb2
from fanlight_engine.config import EngineConfig, resolve
from fanlight_server.cli.serve import main
from fanlight_server.cli.settings import add_setting_flags, typed_settings
from tests.server.conftest import start_server, stop_server
from tests.server.scripted_backend import ScriptedBackend


def typed(*argv: str) -> dict:
    parser = argparse.ArgumentParser()
    add_setting_flags(parser)
    return typed_settings(parser.parse_args(argv))


def test_each_use_of_the_flag_adds_an_adapter() -> None:
    assert typed("--lora", "red=/one", "--lora", "blue=/two") == typed("--lora", "red=/one,blue=/two")
    assert typed("--lora", "red=/one") == {"lora": "red=/one"}
    assert "lora" not in typed()


def test_typed_adapters_take_the_place_of_those_of_the_environment() -> None:
    settings = resolve(typed("--lora", "red=/one"), environment={"FANLIGHT_LORA": "blue=/two"}).settings
    (lora,) = [one for one in settings if one.name == "lora"]
    assert (lora.value, lora.source, lora.overrode[0]) == ("red=/one", "flag", ("environment", "blue=/two"))


def test_a_pair_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--port", "0", "--lora", "adapters/red"]) == 2
    assert capsys.readouterr().err == (
        "fanlight serve: lora has 'adapters/red' in it, which is no adapter; write name=directory, several of them "
        "separated by commas\n"
    )


async def test_the_names_of_adapters_are_told_before_anything_is_loaded() -> None:
    backend = ScriptedBackend(config=EngineConfig(lora="red=/one,blue=/two"))
    backend.may_start.clear()
    served = await start_server(backend)
    told = await served.info.GetServerInfo(server_pb2.GetServerInfoRequest())
    assert list(told.models) == ["scripted", "red", "blue"]
    backend.may_start.set()
    await stop_server(served)
