"""Every setting has one value and a known source; what is unknown or makes no sense is refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from fanlight_engine.config import EngineConfig, Setting, resolve
from fanlight_engine.errors import CheckpointError, ConfigError


def setting(name: str, **layers: Any) -> Setting:
    """One setting after resolving these layers; the process's own environment takes no part."""
    resolved = resolve(**{"environment": {}, **layers})
    return next(one for one in resolved.settings if one.name == name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fanlight.toml"
    path.write_text('page_size = 32\ndevice = "cpu:0"\nprefix_cache = false\n')
    return path


def test_without_any_source_the_defaults_hold_and_say_so() -> None:
    resolved = resolve(environment={})
    assert resolved.config == EngineConfig()
    assert [one.name for one in resolved.settings] == [one.name for one in fields(EngineConfig)]
    assert {one.source for one in resolved.settings} == {"default"}


def test_flags_win_over_environment_over_file_over_checkpoint_over_default(file: Path) -> None:
    layers: dict[str, Any] = {
        "checkpoint": {"page_size": 64},
        "file": file,
        "environment": {"FANLIGHT_PAGE_SIZE": "128"},
        "flags": {"page_size": 256},
    }
    expected = [(16, "default"), (64, "checkpoint"), (32, "file"), (128, "environment"), (256, "flag")]
    for count, (value, source) in enumerate(expected):
        found = setting("page_size", **dict(list(layers.items())[:count]))
        assert (found.value, found.source) == (value, source)
        assert found.overrode == tuple((source, value) for value, source in reversed(expected[:count]))


def test_a_source_that_agrees_is_not_called_overridden() -> None:
    assert setting("page_size", flags={"page_size": 16}) == Setting("page_size", 16, "flag")


def test_a_file_gives_typed_values(file: Path) -> None:
    config = resolve(environment={}, file=file).config
    assert (config.page_size, config.device, config.prefix_cache) == (32, "cpu:0", False)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("page_size", "64", 64),
        ("kv_cache_bytes", "1_000_000", 1_000_000),
        ("prefix_cache", "false", False),
        ("prefix_cache", "ON", True),
        ("device", "cuda:1", "cuda:1"),
    ],
)
def test_text_from_the_environment_and_flags_becomes_the_settings_type(name: str, text: str, value: Any) -> None:
    for layer in ({"environment": {f"FANLIGHT_{name.upper()}": text}}, {"flags": {name: text}}):
        found = setting(name, **layer).value
        assert found == value
        assert type(found) is type(value)


@pytest.mark.parametrize(
    ("variable", "needed"), [("PAGE_SIZE", "a whole number"), ("DEFAULT_TOP_P", "a number"), ("ADMIN", "true or false")]
)
def test_an_empty_variable_is_no_number(variable: str, needed: str) -> None:
    @dataclass(frozen=True)
    class Doors:
        admin: bool = True

    told = f"{variable.lower()} from environment is '', {needed} is needed; unset FANLIGHT_{variable} to leave it out"
    with pytest.raises(ConfigError, match=f"^{told}"):
        resolve(environment={f"FANLIGHT_{variable}": ""}, others=(Doors,))
    assert resolve(environment={"FANLIGHT_LORA": ""}).config.lora == "", "a text may be empty"


def test_the_environment_of_the_process_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANLIGHT_PAGE_SIZE", "8")
    assert resolve().config.page_size == 8


def test_other_variables_of_the_environment_are_not_ours_to_judge() -> None:
    environment = {"fanlight_page_size": "2", "PAGE_SIZE": "3"}
    assert resolve(environment=environment).config == EngineConfig()


def test_an_unknown_variable_with_our_prefix_is_refused_with_the_one_that_was_meant() -> None:
    meant = r"unknown setting 'FANLIGHT_PAGESIZE' from environment; did you mean FANLIGHT_PAGE_SIZE\?$"
    with pytest.raises(ConfigError, match=meant):
        resolve(environment={"FANLIGHT_PAGESIZE": "16"})


@pytest.mark.parametrize("layer", ["flags", "checkpoint"])
def test_an_unknown_name_is_refused_with_the_one_that_was_meant(layer: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'page_siz' from \w+; did you mean page_size\?$"):
        resolve(**{"environment": {}, layer: {"page_siz": 16}})  # pyright: ignore[reportArgumentType]


def test_an_unknown_name_like_no_other_is_refused_with_all_there_are() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'zzz' from flag; known: .*page_size"):
        resolve(flags={"zzz": 1}, environment={})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("pagesize = 16", "unknown setting 'pagesize' from file"),
        ("page_size = ", "is not TOML"),
        ("page_size = 16.0", "page_size from file is 16.0, a whole number is needed"),
        ("page_size = true", "page_size from file is True, a whole number is needed"),
        ("device = 1", "device from file is 1, a text is needed"),
        ("prefix_cache = 1", "prefix_cache from file is 1, true or false is needed"),
        ("[limits]\npage_size = 16", r"^\[limits\] from file is a table, and tables are not used: .* at the top level"),
        ("page_size = '32'", "^page_size from file is '32', a whole number is needed; write it without quotes$"),
        ("prefix_cache = 'on'", "^prefix_cache from file is 'on', true or false is needed; write it without quotes$"),
    ],
)
def test_a_bad_file_is_refused_by_name_and_value(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=why):
        resolve(environment={}, file=file)


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml cannot be read: No such file"):
        resolve(environment={}, file=tmp_path / "nowhere.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not TOML"):
        resolve(environment={}, file=tmp_path / "binary.toml")


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"page_size": "sixteen"}, "page_size from flag is 'sixteen', a whole number is needed"),
        ({"prefix_cache": "maybe"}, "prefix_cache from flag is 'maybe', true or false is needed"),
        ({"page_size": 0}, r"page_size is 0 \(from flag\), it must be between 1 and 1024"),
        ({"page_size": 4096}, "page_size is 4096"),
        ({"max_images": -1}, "max_images is -1"),
        ({"dtype": "int4"}, r"dtype is 'int4' \(from flag\), it must be one of auto, float32, bfloat16, float16"),
        (
            {"attention": "telepathy"},
            r"attention is 'telepathy' \(from flag\), it must be one of auto, reference, cpu, triton, flash",
        ),
        ({"frame_manifest_root": "no/such/place"}, "frame_manifest_root is 'no/such/place', which is no directory"),
    ],
)
def test_values_that_make_no_sense_are_refused_with_what_would(flags: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        resolve(flags=flags, environment={})


def test_every_number_has_a_range() -> None:
    for one in fields(EngineConfig):
        if one.type in ("int", "float"):
            for value in (-3, 1 << 60):
                with pytest.raises(ConfigError, match=f"^{one.name} is .* it must be between"):
                    resolve(flags={one.name: value}, environment={})


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_number_that_is_none_has_no_place_in_any_range(value: str) -> None:
    with pytest.raises(ConfigError, match="default_temperature is"):
        resolve(flags={"default_temperature": value}, environment={})


def test_a_setting_made_by_hand_is_judged_without_a_source() -> None:
    with pytest.raises(ConfigError, match=r"^page_size is 0, it must be between 1 and 1024$"):
        EngineConfig(page_size=0)


def test_a_value_of_the_checkpoints_that_makes_no_sense_is_its_fault_and_can_be_overridden() -> None:
    layer = {"default_temperature": -1.0}
    told = r"default_temperature is -1\.0 \(from checkpoint\).*generation_config\.json, or choose --default-temperature"
    with pytest.raises(CheckpointError, match=told):
        resolve(environment={}, checkpoint=layer)
    assert resolve({"default_temperature": "0.5"}, {}, checkpoint=layer).config.default_temperature == 0.5


def test_sampling_defaults_are_settings_like_any_other(tmp_path: Path) -> None:
    file = tmp_path / "fanlight.toml"
    file.write_text("default_temperature = 1\n")
    checkpoint = {"default_temperature": 0.7, "default_top_k": 20}
    assert setting("default_temperature", checkpoint=checkpoint) == Setting(
        "default_temperature", 0.7, "checkpoint", (("default", 0.0),)
    )
    over = setting("default_temperature", checkpoint=checkpoint, file=file)
    assert over == Setting("default_temperature", 1.0, "file", (("checkpoint", 0.7), ("default", 0.0)))
    assert type(over.value) is float
    environment = {"FANLIGHT_DEFAULT_TOP_K": "5"}
    assert setting("default_top_k", checkpoint=checkpoint, environment=environment).source == "environment"


def test_an_engine_without_a_server_shares_its_file_and_environment_with_one(tmp_path: Path) -> None:
    file = tmp_path / "fanlight.toml"
    file.write_text('port = 8000\nname = "mine"\npage_size = 32\n')
    resolved = resolve(environment={"FANLIGHT_ADMIN_PORT": "1"}, file=file)
    assert resolved.config.page_size == 32
    assert "port" not in {one.name for one in resolved.settings}
    with pytest.raises(ConfigError, match="unknown setting 'port' from flag"):
        resolve({"port": 8000}, environment={})


@dataclass(frozen=True)
class Others:
    colour: str = "red"
    weight: float = 1.0


def test_settings_beside_the_engines_go_through_the_same_layers() -> None:
    resolved = resolve({"weight": "2.5"}, {"FANLIGHT_COLOUR": "blue"}, others=(Others,))
    assert resolved.made(Others) == Others("blue", 2.5)
    assert resolved.config == EngineConfig()
    assert resolved.settings[-2:] == (
        Setting("colour", "blue", "environment", (("default", "red"),)),
        Setting("weight", 2.5, "flag", (("default", 1.0),)),
    )
    with pytest.raises(ConfigError, match=r"'FANLIGHT_COLOR' from environment; did you mean FANLIGHT_COLOUR\?"):
        resolve({}, {"FANLIGHT_COLOR": "blue"}, others=(Others,))


def test_a_configuration_cannot_be_changed_after_it_was_made() -> None:
    with pytest.raises(FrozenInstanceError):
        EngineConfig().page_size = 3  # pyright: ignore[reportAttributeAccessIssue]
