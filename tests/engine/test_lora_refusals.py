"""What cannot be served as a LoRA adapter is refused at load, with the file, the reason and the fix."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import CheckpointTraits, EngineConfig, resolve
from fanlight_engine.core.build import build_engine
from fanlight_engine.errors import CheckpointError, ConfigError
from fanlight_engine.lora import parse_lora
from fanlight_engine.model.lora.files import CONFIG_FILE, WEIGHTS_FILE, read_lora_files
from tests.engine.lora_adapters import decoder_modules, make_lora

Spoil = Callable[[Path], None]


@pytest.fixture(scope="module")
def good(llama_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_lora(tmp_path_factory.mktemp("good") / "adapter", llama_path, seed=1, target_modules=["q_proj"])


def with_settings(**settings: Any) -> Spoil:
    def spoil(path: Path) -> None:
        content = json.loads((path / CONFIG_FILE).read_text()) | settings
        (path / CONFIG_FILE).write_text(json.dumps(content))

    return spoil


def with_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Spoil:
    def spoil(path: Path) -> None:
        weights = load_file(path / WEIGHTS_FILE)
        change(weights)
        save_file(weights, path / WEIGHTS_FILE)

    return spoil


def pickled(path: Path) -> None:
    (path / WEIGHTS_FILE).unlink()
    (path / "adapter_model.bin").write_bytes(b"\x80\x04")


def without(name: str) -> Spoil:
    return lambda path: (path / name).unlink()


def holding(name: str, content: bytes) -> Spoil:
    def spoil(path: Path) -> None:
        (path / name).write_bytes(content)

    return spoil


Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
TENSOR = torch.zeros(2, 2)

FILES_THAT_ARE_REFUSED: dict[str, tuple[Spoil, str]] = {
    "no configuration": (without(CONFIG_FILE), r"has no adapter_config.json: give the directory"),
    "a configuration that is not JSON": (holding(CONFIG_FILE, b"{"), r"adapter_config.json is not JSON"),
    "a configuration that is no object": (holding(CONFIG_FILE, b"[]"), r"holds list, a JSON object is needed"),
    "another kind of adapter": (with_settings(peft_type="IA3"), r"peft_type 'IA3'; only LORA is served"),
    "a tuned prompt": (with_settings(peft_type="PROMPT_TUNING"), r"peft_type 'PROMPT_TUNING'"),
    "DoRA": (with_settings(use_dora=True), r"use_dora True: DoRA scales the weights"),
    "whole modules": (with_settings(modules_to_save=["lm_head"]), r"modules_to_save \['lm_head'\]: whole modules"),
    "biases": (with_settings(bias="all"), r"bias 'all': biases were trained"),
    "biases of its own": (with_settings(lora_bias=True), r"lora_bias True: biases were trained"),
    "trained tokens": (with_settings(trainable_token_indices=[5]), r"trainable_token_indices \[5\]: embeddings"),
    "parameters": (with_settings(target_parameters=["experts.down_proj"]), r"target_parameters .*not those of linear"),
    "repeated layers": (with_settings(layer_replication=[[0, 2], [1, 2]]), r"layer_replication .*more than once"),
    "an invocation": (with_settings(alora_invocation_tokens=[1]), r"alora_invocation_tokens \[1\]: it begins in"),
    "what is not known": (with_settings(use_next_years_idea=True), r"use_next_years_idea True: .*not known here"),
    "a base that was changed": (with_settings(init_lora_weights="pissa"), r"init_lora_weights 'pissa', which changed"),
    "no rank": (with_settings(r=None), r"rank None in r or rank_pattern"),
    "a rank of nothing": (with_settings(rank_pattern={"q_proj": 0}), r"rank 0 in r or rank_pattern"),
    "a huge rank": (with_settings(r=10**9), r"names rank 1000000000, the matrices .* have rank 4 at most"),
    "no weights": (without(WEIGHTS_FILE), r"has no adapter_model.safetensors: save"),
    "pickled weights": (pickled, r"has adapter_model.bin, which may run code .*safe_serialization=True"),
    "broken weights": (holding(WEIGHTS_FILE, b"nothing"), r"adapter_model.safetensors cannot be read"),
    "magnitudes": (
        with_weights(lambda weights: weights.update({"m.lora_magnitude_vector": TENSOR})),
        r"holds m.lora_magnitude_vector: DoRA",
    ),
    "embeddings": (
        with_weights(lambda weights: weights.update({"base_model.model.model.embed_tokens.weight": TENSOR})),
        r"embed_tokens.weight: embeddings were trained, or tokens added",
    ),
    "a copy of the head": (
        with_weights(lambda weights: weights.update({"base_model.model.lm_head.base_layer.weight": TENSOR})),
        r"base_layer.weight: it is a copy of the base's own weights .*save_embedding_layers=False",
    ),
    "a whole head": (
        with_weights(lambda weights: weights.update({"base_model.model.lm_head.weight": TENSOR})),
        r"lm_head.weight: whole modules were trained",
    ),
}

ADAPTERS_THAT_DO_NOT_FIT: dict[str, tuple[Spoil, str]] = {
    "other modules": (with_settings(target_modules=["c_attn"]), r"cannot be added to LlamaForCausalLM: .*c_attn"),
    "embeddings as a target": (with_settings(target_modules=["embed_tokens"]), r"embed_tokens, a Embedding; only"),
    "a missing matrix": (
        with_weights(lambda weights: weights.pop(Q)),
        r"lacks 1 matrices, the first is model.layers.0.self_attn.q_proj.lora_A.weight; adapter and checkpoint",
    ),
    "modules without matrices": (with_settings(target_modules=["q_proj", "v_proj"]), r"lacks 4 matrices"),
    "matrices without a module": (
        with_weights(lambda weights: weights.update({Q.replace("layers.0", "layers.9"): weights[Q].clone()})),
        r"has no place in this model for 1 matrices, the first is .*layers.9",
    ),
    "matrices of another size": (
        with_weights(lambda weights: weights.update({Q: torch.zeros(4, 96)})),
        r"has wrongly shaped 1 matrices, the first is .*q_proj.lora_A.weight \(4, 96\)",
    ),
    "numbers that are none": (
        with_weights(lambda weights: weights[Q].fill_(float("nan"))),
        r"numbers for model.layers.0.self_attn.q_proj that are not finite in torch.float32",
    ),
}


def spoiled(good: Path, directory: Path, spoil: Spoil) -> Path:
    path = directory / "spoiled"
    shutil.copytree(good, path)
    spoil(path)
    return path


@pytest.mark.parametrize("what", FILES_THAT_ARE_REFUSED)
def test_directories_that_are_refused_before_any_weights_are_loaded(what: str, good: Path, tmp_path: Path) -> None:
    spoil, message = FILES_THAT_ARE_REFUSED[what]
    path = spoiled(good, tmp_path, spoil)
    with pytest.raises(CheckpointError, match=message) as refused:
        read_lora_files(f"mine={path}", "base")
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("what", ADAPTERS_THAT_DO_NOT_FIT)
def test_adapters_that_do_not_fit_the_checkpoint_are_refused(
    what: str, good: Path, llama: Checkpoint, tmp_path: Path
) -> None:
    spoil, message = ADAPTERS_THAT_DO_NOT_FIT[what]
    path = spoiled(good, tmp_path, spoil)
    with pytest.raises(CheckpointError, match=message) as refused:
        build(llama, f"mine={path}")
    assert "lora mine: " in str(refused.value)
    assert str(path) in str(refused.value)
    assert ".served" not in str(refused.value)


def test_an_adapter_of_the_vision_tower_is_refused(llava_path: Path, llava: Checkpoint, tmp_path: Path) -> None:
    """Names of modules alone take those of the tower as well."""
    path = make_lora(tmp_path / "both", llava_path, seed=1, target_modules=["q_proj"])
    with pytest.raises(CheckpointError, match=r"adds to model.vision_tower.*only the decoder takes adapters"):
        build(llava, f"both={path}")


def test_an_adapter_of_the_projector_is_refused(llava_path: Path, llava: Checkpoint, tmp_path: Path) -> None:
    path = make_lora(tmp_path / "projector", llava_path, seed=1, target_modules=["linear_1"])
    with pytest.raises(CheckpointError, match=r"adds to model.multi_modal_projector.linear_1, which belongs to"):
        build(llava, f"projector={path}")


def test_an_adapter_of_another_checkpoint_is_refused(llama: Checkpoint, qwen_path: Path, tmp_path: Path) -> None:
    path = make_lora(tmp_path / "other", qwen_path, seed=1, target_modules=decoder_modules("q_proj"))
    with pytest.raises(CheckpointError, match=r"other cannot be added to LlamaForCausalLM"):
        build(llama, f"other={path}")


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any file of the adapter is looked at, and without adapters not at all."""
    monkeypatch.setattr("fanlight_engine.packages.is_installed", lambda module: False)
    for path in (good, good / "nowhere"):
        with pytest.raises(ConfigError, match=rf"lora=mine={path} needs the package peft.*fanlight-server\[lora\]"):
            read_lora_files(f"mine={path}", "llama")
    assert read_lora_files("", "llama") == ()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("mine", r"'mine' in it, which is no adapter; write name=directory"),
        ("=/there", r"'=/there' in it"),
        ("mine=", r"'mine=' in it"),
        ("mine=/there,", r"'' in it"),
        ("my model=/there", r"names an adapter 'my model'; a name has at most 128 letters"),
        (f"{'m' * 129}=/there", r"at most 128 letters"),
        ("-mine=/there", r"begins with a letter or a digit"),
        ("mine=/there,mine=/elsewhere", r"names two adapters 'mine'"),
    ],
)
def test_a_malformed_setting_is_refused_whatever_set_it(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(lora=setting)
    with pytest.raises(ConfigError, match=message):
        resolve(environment={"FANLIGHT_LORA": setting})


def test_an_adapter_may_not_have_the_name_of_its_base(good: Path) -> None:
    with pytest.raises(ConfigError, match=r"adapter 'base', which is the name of the model itself; .*--name"):
        read_lora_files(f"base={good}", "base")
    with pytest.raises(ConfigError, match=r"adapter 'base', which is the name of the model itself"):
        resolve({"lora": f"base={good}"}, environment={}, traits=CheckpointTraits("base"))


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"lora mine: .*nowhere is no directory"):
        read_lora_files(f"mine={tmp_path / 'nowhere'}", "base")


def test_names_and_directories_are_read_in_their_order() -> None:
    assert parse_lora(" org/b-1.x = /adapters/b=1 ,a=there") == {"org/b-1.x": "/adapters/b=1", "a": "there"}
    assert parse_lora("") == {}


def test_the_home_directory_may_be_written_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell leaves ~ alone behind an equals sign."""
    monkeypatch.setenv("HOME", "/home/somebody")
    assert parse_lora("a=~/adapters/b") == {"a": "/home/somebody/adapters/b"}


def build(checkpoint: Checkpoint, setting: str) -> None:
    build_engine(EngineConfig(torch_threads=1, context_length=64, lora=setting), checkpoint)
