"""Broken weights fail before they are read, with the name of the file and what to do."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from fanlight_engine.checkpoints.checkpoint import read_checkpoint
from fanlight_engine.checkpoints.weight_files import find_weight_files
from fanlight_engine.errors import CheckpointError
from fanlight_engine.model.loading.loader import load_model

INDEX = "model.safetensors.index.json"
CPU = torch.device("cpu")


@pytest.fixture
def single(tmp_path: Path) -> Path:
    """A checkpoint's weights in one file."""
    directory = tmp_path / "single"
    directory.mkdir()
    save_file({"one": torch.ones(4, 8), "two": torch.ones(3)}, directory / "model.safetensors")
    return directory


@pytest.fixture
def sharded(llama_path: Path, tmp_path: Path) -> Path:
    """The Llama in several files with an index, as large checkpoints come."""
    directory = tmp_path / "sharded"
    AutoModelForCausalLM.from_pretrained(llama_path).save_pretrained(directory, max_shard_size="60KB")
    assert len(list(directory.glob("*.safetensors"))) > 2
    return directory


def test_weights_in_shards_are_loaded_as_those_in_one_file_are(sharded: Path, llama_path: Path) -> None:
    whole = load_file(llama_path / "model.safetensors")
    files = find_weight_files(sharded)
    assert {name: weight.shape for name, weight in files.weights.items()} == {
        name: tuple(weight.shape) for name, weight in whole.items()
    }
    assert files.stored_bytes == sum(weight.nbytes for weight in whole.values())
    loaded = load_model(read_checkpoint(sharded), CPU, torch.float32).state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in whole.items())


def test_a_missing_shard_is_named(sharded: Path) -> None:
    victim = sorted(sharded.glob("*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(CheckpointError, match=rf"sharded/{INDEX} names {victim.name}, which is not there: fetch"):
        load_model(read_checkpoint(sharded), CPU, torch.float32)


def test_a_shard_that_was_cut_off_is_named_with_both_sizes(sharded: Path) -> None:
    victim = sorted(sharded.glob("*.safetensors"))[1]
    content = victim.read_bytes()
    victim.write_bytes(content[:-100])
    sizes = f"has {len(content) - 100} bytes, by its header {len(content)}"
    with pytest.raises(CheckpointError, match=rf"sharded/{victim.name} is cut off: it {sizes}; fetch it again"):
        load_model(read_checkpoint(sharded), CPU, torch.float32)


def test_a_weight_of_another_shape_is_named_with_its_shard(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())["weight_map"]
    name = "model.layers.1.mlp.up_proj.weight"
    victim = sharded / index[name]
    weights = load_file(victim)
    weights[name] = weights[name][:-8].clone()
    save_file(weights, victim, {"format": "pt"})
    with pytest.raises(
        CheckpointError, match=rf"sharded/{victim.name} has {name} in shape \[120, 64\], .* \[128, 64\]"
    ):
        load_model(read_checkpoint(sharded), CPU, torch.float32)


@pytest.mark.parametrize(
    "index",
    ["{", "[]", '{"metadata": {}}', '{"weight_map": ["a"]}', '{"weight_map": {}}', '{"weight_map": {"a": 3}}'],
)
def test_an_index_that_is_none_is_refused(index: str, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(index)
    with pytest.raises(CheckpointError, match=f"{INDEX} .*; fetch it again"):
        find_weight_files(tmp_path)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", ""])
def test_an_index_cannot_name_files_elsewhere(name: str, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match="is no file beside it"):
        find_weight_files(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        b"\xff" * 64,
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 12) + b'{"a": "what"',
        struct.pack("<Q", 10) + b'{"a": 5}  ',
        struct.pack("<Q", 24) + b'{"a": {"shape": [1, 2]}}',
    ],
)
def test_a_file_that_is_no_safetensors_is_refused(content: bytes, single: Path) -> None:
    (single / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"single/model.safetensors is no safetensors file: .*; fetch it again"):
        find_weight_files(single)


def test_bytes_behind_the_end_are_noticed(single: Path) -> None:
    with (single / "model.safetensors").open("ab") as file:
        file.write(b"\0" * 8)
    with pytest.raises(CheckpointError, match="has bytes behind its end"):
        find_weight_files(single)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "consolidated.00.pth"])
def test_pickled_weights_are_never_read(name: str, tmp_path: Path) -> None:
    torch.save({"one": torch.ones(3)}, tmp_path / name)
    with pytest.raises(CheckpointError, match=rf"only pickled weights \({name}\).*save the checkpoint as safetensors"):
        find_weight_files(tmp_path)


def test_a_directory_without_weights_says_which_files_are_looked_for(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"neither model.safetensors nor {INDEX}"):
        find_weight_files(tmp_path)
