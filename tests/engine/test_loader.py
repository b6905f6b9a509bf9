"""Weights are loaded whole and untouched, or the start fails and says what is missing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.errors import CheckpointError, ConfigError
from fanlight_engine.model.attention.interface import ATTENTION_NAME
from fanlight_engine.model.loading.loader import load_model, resolve_device, resolve_dtype

CPU = torch.device("cpu")
Copy = Callable[[Path], Path]


@pytest.fixture
def copied(tmp_path: Path) -> Copy:
    """A copy of a checkpoint that may be damaged."""
    return lambda path: Path(shutil.copytree(path, tmp_path / "copy"))


def load(path: Path) -> torch.nn.Module:
    return load_model(read_checkpoint(path), CPU, torch.float32)


@pytest.mark.parametrize("fixture", ["llama_path", "qwen_path", "llava_path"])
def test_a_model_has_the_checkpoints_weights_and_our_attention_in_its_decoder_only(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(fixture)
    model = load_model(read_checkpoint(path), CPU, torch.float32)
    assert not model.training
    assert not any(weight.requires_grad for weight in model.parameters())
    stored = sorted(weight.double().sum().item() for weight in load_file(path / "model.safetensors").values())
    assert sorted(weight.double().sum().item() for weight in model.parameters()) == pytest.approx(stored)
    assert model.get_decoder().config._attn_implementation == ATTENTION_NAME
    if model.config.get_text_config() is not model.config:
        assert model.config.vision_config._attn_implementation != ATTENTION_NAME


@pytest.mark.parametrize(
    ("fixture", "part"),
    [("llama_path", "layers.1.mlp.up_proj"), ("qwen_path", "blocks.0"), ("llava_path", "projector")],
)
def test_a_missing_weight_is_named_instead_of_being_made_up(
    fixture: str, part: str, request: pytest.FixtureRequest, copied: Copy
) -> None:
    path = copied(request.getfixturevalue(fixture))
    weights = load_file(path / "model.safetensors")
    victim = next(name for name in sorted(weights) if part in name)
    del weights[victim]
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=f"copy lacks 1 weights in model.safetensors, the first is .*{part}"):
        load(path)


def test_weights_of_another_shape_than_the_config_says_are_refused_by_file_and_name(
    llama_path: Path, copied: Copy
) -> None:
    path = copied(llama_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "intermediate_size": config["intermediate_size"] * 2}))
    shapes = r"copy/model.safetensors has model.layers.0.mlp.down_proj.weight in shape \[64, 128\], .* is \[64, 256\]"
    with pytest.raises(CheckpointError, match=shapes):
        load(path)


@pytest.mark.parametrize("fixture", ["llama_path", "llava_path"])
def test_attention_that_a_configuration_asks_for_is_not_what_is_loaded(
    fixture: str, request: pytest.FixtureRequest, copied: Copy
) -> None:
    """Some published ones ask for a package that is not here."""
    path = copied(request.getfixturevalue(fixture))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "_attn_implementation": "flash_attention_2"}))
    model = load_model(read_checkpoint(path), CPU, torch.float32)
    assert model.get_decoder().config._attn_implementation == ATTENTION_NAME


def test_an_adapter_among_the_files_cannot_put_another_model_in_place(llama_path: Path, copied: Copy) -> None:
    path = copied(llama_path)
    (path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "elsewhere", "peft_type": "LORA"}))
    with pytest.raises(CheckpointError, match=r"copy/adapter_config.json makes an adapter of this checkpoint: move it"):
        load(path)


def test_numbers_are_float32_on_a_cpu_and_the_checkpoints_own_elsewhere(tiny_path: Path) -> None:
    checkpoint = read_checkpoint(tiny_path)
    stored = next(iter(load_file(tiny_path / "model.safetensors").values())).dtype
    assert resolve_dtype("auto", checkpoint, CPU) is torch.float32
    assert resolve_dtype("auto", checkpoint, torch.device("meta")) is stored
    assert resolve_dtype("bfloat16", checkpoint, CPU) is torch.bfloat16


def test_half_precision_is_loaded_as_asked(llama: Checkpoint) -> None:
    model = load_model(llama, CPU, torch.bfloat16)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("name", ["abacus", "cuda:99", ""])
def test_a_device_that_is_not_here_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used here; use cpu"):
        resolve_device(name)
