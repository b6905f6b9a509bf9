"""`fanlight config --show` tells the source of every setting, on three checkpoints; a running server tells the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fanlight_server.cli.config import main
from fanlight_server.cli.serve import main as serve
from tests.e2e.made_models import EMBEDDED, model_path
from tests.e2e.serving import ServerProcess, server_process
from tests.engine.checkpoints import make_llama

CHECKPOINTS = ("llama", "llava", EMBEDDED)
CONTEXT_LENGTHS = {"llama": 2048, "llava": 2048, EMBEDDED: 4096}
GREPCURL = Path(sys.executable).parent / "grpcurl"


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("config") / "llama")


@dataclass
class Layers:
    """Everything that decides a setting, of a copy of one checkpoint that tests may change."""

    directory: Path
    file: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    flags: list[str] = field(default_factory=list)

    def checkpoint_says(self, **generation: Any) -> None:
        (self.directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, **generation}))

    def file_says(self, text: str) -> None:
        self.file.write_text(text)
        self.flags += ["--config", str(self.file)]

    def environment_says(self, **variables: str) -> None:
        for name, value in variables.items():
            self.monkeypatch.setenv(f"FANLIGHT_{name.upper()}", value)

    def show(self, *flags: str) -> str:
        assert main(["--show", str(self.directory), *self.flags, *flags]) == 0
        return self.capsys.readouterr().out

    def row(self, name: str, *flags: str) -> list[str]:
        """The row of a setting: its value, and its source with what that overrode."""
        (row,) = [line.split(maxsplit=2) for line in self.show(*flags).splitlines() if line.startswith(f"{name} ")]
        return row[1:]

    def json(self, *flags: str) -> dict[str, Any]:
        return json.loads(self.show("--json", *flags))


@pytest.fixture(params=CHECKPOINTS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def layers(
    name: str, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Layers:
    """The checkpoint's small files, and no weights: none are read."""
    for variable in [one for one in os.environ if one.startswith("FANLIGHT_")]:
        monkeypatch.delenv(variable)
    directory = tmp_path / name
    directory.mkdir()
    for file in (llama if name == "llama" else model_path(name)).iterdir():
        if file.suffix in (".json", ".jinja"):
            (directory / file.name).write_bytes(file.read_bytes())
    layers = Layers(directory, tmp_path / "fanlight.toml", monkeypatch, capsys)
    layers.checkpoint_says()
    return layers


def test_a_whole_number_takes_each_layer_in_turn(layers: Layers) -> None:
    assert layers.row("page_size") == ["16", "default"]
    layers.file_says("page_size = 32")
    assert layers.row("page_size") == ["32", "file (over default 16)"]
    layers.environment_says(page_size="64")
    assert layers.row("page_size") == ["64", "environment (over file 32, default 16)"]
    assert layers.row("page_size", "--page-size", "128") == [
        "128",
        "flag (over environment 64, file 32, default 16)",
    ]


def test_the_context_takes_each_layer_in_turn(layers: Layers, name: str) -> None:
    own = CONTEXT_LENGTHS[name]
    assert layers.row("context_length") == [str(own), "checkpoint"]
    layers.file_says("context_length = 512")
    assert layers.row("context_length") == ["512", f"file (over checkpoint {own})"]
    layers.environment_says(context_length="256")
    assert layers.row("context_length") == ["256", f"environment (over file 512, checkpoint {own})"]
    assert layers.row("context_length", "--context-length", "128")[1].startswith("flag (over environment 256, file 512")


def test_a_sampling_default_takes_each_layer_in_turn(layers: Layers) -> None:
    assert layers.row("default_temperature") == ["0.0", "default"]
    layers.checkpoint_says(do_sample=True, temperature=0.7, top_p=0.9)
    assert layers.row("default_temperature") == ["0.7", "checkpoint (over default 0.0)"]
    assert layers.row("default_top_p") == ["0.9", "checkpoint (over default 1.0)"]
    assert layers.row("default_top_k") == ["50", "checkpoint (over default 0)"]
    assert layers.row("default_min_p") == ["0.0", "default"]
    assert layers.row("default_repetition_penalty") == ["1.0", "default"]
    layers.checkpoint_says(do_sample=True, temperature=0.7, repetition_penalty=1.05)
    assert layers.row("default_repetition_penalty") == ["1.05", "checkpoint (over default 1.0)"]
    layers.file_says("default_temperature = 0.6")
    assert layers.row("default_temperature") == ["0.6", "file (over checkpoint 0.7, default 0.0)"]
    layers.environment_says(default_temperature="0.5")
    assert layers.row("default_temperature") == ["0.5", "environment (over file 0.6, checkpoint 0.7, default 0.0)"]
    assert layers.row("default_temperature", "--default-temperature", "0.4") == [
        "0.4",
        "flag (over environment 0.5, file 0.6, checkpoint 0.7, default 0.0)",
    ]


def test_a_truth_value_takes_each_layer_in_turn(layers: Layers) -> None:
    assert layers.row("prefix_cache") == ["true", "default"]
    layers.file_says("prefix_cache = false")
    assert layers.row("prefix_cache") == ["false", "file (over default true)"]
    layers.environment_says(prefix_cache="on")
    assert layers.row("prefix_cache") == ["true", "environment (over file false)"]
    assert layers.row("prefix_cache", "--no-prefix-cache") == ["false", "flag (over environment true, default true)"]


def test_the_servers_own_settings_take_each_layer_in_turn(layers: Layers, name: str) -> None:
    assert layers.row("name") == [name, "checkpoint"]
    assert layers.row("port") == ["50051", "default"]
    layers.file_says('port = 8000\nname = "mine"')
    assert layers.row("port") == ["8000", "file (over default 50051)"]
    layers.environment_says(port="9000", log_format="json")
    assert layers.row("port") == ["9000", "environment (over file 8000, default 50051)"]
    assert layers.row("log_format") == ["json", "environment (over default text)"]
    assert layers.row("port", "--port", "0") == ["0", "flag (over environment 9000, file 8000, default 50051)"]
    assert layers.row("name")[0] == "mine"


def test_the_length_that_the_checkpoint_suggests_is_told_and_applies_where_it_is_chosen(layers: Layers) -> None:
    layers.checkpoint_says(max_new_tokens=99, typical_p=0.9)
    assert layers.row("default_max_new_tokens") == ["0", "default"]
    assert "typical_p=0.9, max_new_tokens=99" in layers.show()
    assert layers.row("default_max_new_tokens", "--default-max-new-tokens", "99") == ["99", "flag (over default 0)"]


def test_the_checkpoint_is_described(layers: Layers, name: str) -> None:
    text = layers.show()
    found = layers.json()["checkpoint"]
    assert (found["name"], found["path"]) == (name, str(layers.directory))
    kind = {"llama": ("text", ""), "llava": ("vision and text", "clip_vision_model")}
    assert (found["kind"], found["tower"]) == kind.get(name, ("vision and text", "qwen2_5_vl_vision"))
    modalities = {"llama": ["text"], "llava": ["text", "image"]}
    assert found["modalities"] == modalities.get(name, ["text", "image", "video"])
    assert found["context_length"] == CONTEXT_LENGTHS[name]
    config = json.loads((layers.directory / "config.json").read_text())
    assert found["family"] == config["model_type"]
    assert found["decoder"] == config.get("text_config", config)["model_type"]
    assert found["vocabulary_size"] == config.get("text_config", config)["vocab_size"]
    assert found["fingerprint"].startswith("sha256:")
    for key in ("kind", "family", "decoder", "fingerprint", "tokenizer_class"):
        assert found[key] in text


def test_a_template_is_found_wherever_it_may_be(layers: Layers) -> None:
    tokenizer = json.loads((layers.directory / "tokenizer_config.json").read_text())
    (layers.directory / "chat_template.jinja").unlink(missing_ok=True)
    without = {key: value for key, value in tokenizer.items() if key != "chat_template"}
    (layers.directory / "tokenizer_config.json").write_text(json.dumps(without))
    assert layers.json()["checkpoint"]["has_chat_template"] is False
    (layers.directory / "tokenizer_config.json").write_text(json.dumps({**without, "chat_template": "{{ messages }}"}))
    assert layers.json()["checkpoint"]["has_chat_template"] is True
    (layers.directory / "tokenizer_config.json").unlink()
    (layers.directory / "chat_template.jinja").write_text("{{ messages }}")
    found = layers.json()["checkpoint"]
    assert (found["has_chat_template"], found["tokenizer_class"]) == (True, "")


def test_json_has_typed_values(layers: Layers) -> None:
    layers.environment_says(max_running_requests="8")
    report = layers.json("--drain-seconds", "1.5")
    assert set(report) == {"version", "checkpoint", "settings"}
    assert report["version"] == 1
    found = {setting.pop("name"): setting for setting in report["settings"]}
    assert found["max_running_requests"] == {
        "value": 8,
        "source": "environment",
        "overrode": [{"source": "default", "value": 32}],
    }
    assert found["drain_seconds"]["value"] == 1.5
    assert found["insecure"] == {"value": False, "source": "default", "overrode": []}
    assert found["media_url_hosts"]["value"] == ""


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (["--page-siz", "3"], 2, "did you mean --page-size"),
        (["--context-length", "1000000"], 2, "context_length (1000000 from flag) is above the"),
        (["--kv-pages", "9", "--kv-cache-bytes", "9"], 2, "both say how large the KV cache is"),
        (["one/checkpoint", "--model", "another"], 2, "MODEL is given as one/checkpoint and as another"),
        (["--config", "missing.toml"], 2, "missing.toml cannot be read"),
    ],
)
def test_wrong_settings_are_told_with_exit_code_2(
    argv: list[str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        got = main(["--show", *argv])
    except SystemExit as stopped:
        got = stopped.code
    output = capsys.readouterr()
    assert (got, output.out) == (code, "")
    assert told in output.err
    assert "Traceback" not in output.err


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (["--device", "cuda:99"], 2, "device 'cuda:99' cannot be used here"),
        (["--device", "abacus"], 2, "device 'abacus' cannot be used here"),
        (["--attention", "magic"], 2, "attention is 'magic' (from flag), it must be one of auto, reference, cpu"),
        (["--lora", "red=no/such/adapter"], 4, "lora red: no/such/adapter is no directory"),
        (["--quantization", "int8"], 2, "quantization=int8 needs the package torchao, which is not installed"),
    ],
)
def test_what_serve_would_refuse_is_refused_as_far_as_small_files_and_packages_show_it(
    argv: list[str],
    code: int,
    told: str,
    llama: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("fanlight_engine.packages.is_installed", lambda module: module != "torchao")
    for run, command in ((main, "--show"), (serve, "--port=0")):
        assert run([command, str(llama), *argv]) == code
        output = capsys.readouterr()
        assert output.out == ""
        assert told in output.err
        assert "Traceback" not in output.err


def test_a_package_that_the_checkpoint_needs_is_told(
    layers: Layers, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((layers.directory / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "torchao", "quant_type": "int8_weight_only"}
    (layers.directory / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("fanlight_engine.packages.is_installed", lambda module: False)
    assert main(["--show", str(layers.directory)]) == 4
    assert "quantised with torchao, needs the package torchao" in capsys.readouterr().err


def test_only_the_embedded_model_bounds_its_answers(capsys: pytest.CaptureFixture[str], llama: Path) -> None:
    rows = {}
    for argv in ([], [str(model_path(EMBEDDED))], ["--default-max-new-tokens", "7"], [str(llama)]):
        assert main(["--show", *argv]) == 0
        (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("default_max_new_tokens ")]
        rows[tuple(argv[:1])] = row.split(maxsplit=2)[1:]
    assert rows == {
        (): ["256", "checkpoint (over default 0)"],
        (str(model_path(EMBEDDED)),): ["256", "checkpoint (over default 0)"],
        ("--default-max-new-tokens",): ["7", "flag (over checkpoint 256, default 0)"],
        (str(llama),): ["0", "default"],
    }


@pytest.mark.parametrize("spoil", ["missing", "config", "generation"])
def test_a_checkpoint_that_cannot_be_served_is_told_with_exit_code_4(
    spoil: str, llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "spoilt"
    if spoil != "missing":
        directory.mkdir()
        (directory / "config.json").write_text("{" if spoil == "config" else (llama / "config.json").read_text())
        (directory / "generation_config.json").write_text('{"do_sample": true, "temperature": -1}')
    for command in (["--show"], None):
        run = main if command else serve
        assert run([*(command or ["--port", "0"]), str(directory)]) == 4
        output = capsys.readouterr()
        assert output.out == ""
        told = {"missing": "is no directory", "config": "config.json", "generation": "generation_config.json"}
        assert told[spoil] in output.err
        assert "Traceback" not in output.err


def test_a_flag_about_pictures_is_refused_for_text_and_the_same_from_the_environment_is_not(
    llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--show", str(llama), "--max-images", "3"]) == 2
    assert "max_images (3 from flag) is about pictures, and llama takes none" in capsys.readouterr().err
    monkeypatch.setenv("FANLIGHT_MAX_IMAGES", "3")
    assert main(["--show", str(llama)]) == 0


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Arguments of a server that chooses in every way, but for the port."""
    file = tmp_path_factory.mktemp("settings") / "fanlight.toml"
    file.write_text("max_images = 2\ndefault_temperature = 0.25\ndrain_seconds = 3\n")
    return ["--config", str(file), "--torch-threads", "1", "--name", "mine", "--no-prefix-cache"]


@pytest.fixture(scope="module")
def administered(configured: list[str]) -> Any:
    with server_process(*configured) as process:
        yield process


def call_admin(process: ServerProcess, *words: str) -> str:
    command = [str(GREPCURL), "-plaintext", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def admin_address(process: ServerProcess) -> str:
    (line,) = [line for line in process.printed if line.startswith("AdminService is on ")]
    return line.split()[-1]


def as_shown(setting: Mapping[str, Any]) -> dict[str, Any]:
    """A setting of GetConfig in the form of `config --show --json`."""

    def source(message: Mapping[str, Any]) -> str:
        return message["source"].removeprefix("SETTING_SOURCE_").lower()

    overrode = [{"source": source(one), "value": json.loads(one["json"])} for one in setting.get("overrode", ())]
    return {
        "name": setting["name"],
        "value": json.loads(setting["json"]),
        "source": source(setting),
        "overrode": overrode,
    }


def test_a_running_server_tells_what_the_command_shows(
    administered: ServerProcess, configured: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--show", "--json", "--port", "0", *configured]) == 0
    shown = json.loads(capsys.readouterr().out)
    told = json.loads(call_admin(administered, admin_address(administered), "fanlight.v1.AdminService/GetConfig"))
    settings = [as_shown(setting) for setting in told["settings"]]
    decided = {one["name"]: one for one in settings if one["source"] in ("memory", "device")}
    assert {name: one["source"] for name, one in decided.items()} == {
        "kv_pages": "memory",
        "kv_cache_bytes": "memory",
        "dtype": "device",
        "attention": "device",
    }
    assert decided["dtype"]["value"] == "float32"
    (taken,) = [int(one["bytes"]) for one in told["memory"] if one["part"] == "KV cache"]
    assert decided["kv_cache_bytes"]["value"] == taken
    assert {"decoder", "vision tower", "KV cache"} <= {one["part"] for one in told["memory"]}
    assert decided["kv_pages"]["overrode"] == [{"source": "default", "value": 0}]
    assert [one["name"] for one in settings] == [one["name"] for one in shown["settings"]]
    for one, other in zip(settings, shown["settings"], strict=True):
        assert one == decided.get(one["name"], other)
    facts = {**told["checkpoint"], "quantization": told["checkpoint"].get("quantization", "")}
    facts = {_snake_case(name): value for name, value in facts.items()}
    facts["modalities"] = [kind.removeprefix("MODALITY_").lower() for kind in facts["modalities"]]
    assert facts == shown["checkpoint"]


def _snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def test_reflection_lists_admin_on_its_own_port_alone(administered: ServerProcess) -> None:
    assert "fanlight.v1.AdminService" in call_admin(administered, admin_address(administered), "list")
    assert "fanlight.v1.AdminService" not in call_admin(administered, administered.address, "list")


def test_a_server_can_be_without_it() -> None:
    with server_process("--torch-threads", "1", "--no-admin") as process:
        assert not [line for line in process.printed if "AdminService" in line]


def test_the_sampling_default_that_was_chosen_holds_for_requests(administered: ServerProcess) -> None:
    told = json.loads(call_admin(administered, administered.address, "fanlight.v1.ModelService/GetModel"))
    model = told["model"]
    defaults = model.get("samplingDefaults", model.get("sampling_defaults"))
    assert defaults["temperature"] == 0.25
    assert model["name"] == "mine"
