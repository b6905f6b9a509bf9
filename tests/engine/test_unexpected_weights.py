"""What a checkpoint's files hold beside its model is told, and refused where the answers would hang on it."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fanlight_engine.checkpoints.checkpoint import read_checkpoint
from fanlight_engine.errors import CheckpointError
from fanlight_engine.model.loading.loader import load_planned, plan_loading

CPU = torch.device("cpu")
WIDTH = 64
TOGETHER = "config.json and weights must come from the same checkpoint"
With = Callable[..., Path]


@pytest.fixture
def copied(tmp_path: Path) -> With:
    """A copy of a checkpoint with further weights and with changes to its config.json."""

    def make(path: Path, weights: dict[str, torch.Tensor], **changes: Any) -> Path:
        copy = Path(shutil.copytree(path, tmp_path / "copy"))
        stored = load_file(copy / "model.safetensors")
        save_file({**stored, **weights}, copy / "model.safetensors", {"format": "pt"})
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**config, **changes}))
        return copy

    return make


def lines_of(path: Path) -> list[str]:
    """What loading reports."""
    lines: list[str] = []
    load_planned(plan_loading(read_checkpoint(path), CPU, torch.float32), lines.append)
    return lines


@pytest.mark.parametrize(
    "key",
    [
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.1.self_attn.q_norm.weight",
        "model.layers.0.post_feedforward_layernorm.weight",
        "model.norm.bias",
        "lm_head.bias",
    ],
)
def test_what_the_decoder_would_have_computed_with_is_refused_by_file_and_name(
    key: str, llama_path: Path, copied: With
) -> None:
    path = copied(llama_path, {key: torch.ones(WIDTH)})
    told = rf"copy/model.safetensors has {re.escape(key)}, and (Llama\w+|Linear) as config.json makes it computes"
    with pytest.raises(CheckpointError, match=told) as refusal:
        lines_of(path)
    assert TOGETHER in str(refusal.value)


def test_a_bias_of_the_tower_that_config_json_does_not_speak_of_is_refused(llava_path: Path, copied: With) -> None:
    (patches,) = (key for key in load_file(llava_path / "model.safetensors") if "patch_embedding.weight" in key)
    bias = patches.replace("weight", "bias")
    with pytest.raises(CheckpointError, match=r"copy/model.safetensors has \S*patch_embedding.bias, and Conv2d as"):
        lines_of(copied(llava_path, {bias: torch.ones(4)}))


def test_parts_of_a_tower_that_are_not_run_are_told(llava_path: Path, copied: With) -> None:
    (patches,) = (key for key in load_file(llava_path / "model.safetensors") if "patch_embedding.weight" in key)
    head = patches.replace("embeddings.patch_embedding", "head.attention")
    assert lines_of(copied(llava_path, {head: torch.ones(4)}))[0].startswith("leaving out 1 weight")


def test_layers_that_config_json_does_not_count_are_refused(llama_path: Path, copied: With) -> None:
    path = copied(llama_path, {}, num_hidden_layers=1)
    told = (
        r"has model.layers.1.\S+, and by config.json there are 1 layers \(num_hidden_layers\); 9 weights have no place"
    )
    with pytest.raises(CheckpointError, match=told):
        lines_of(path)


@pytest.mark.parametrize(
    "key",
    [
        "model.vision_tower.encoder.layers.0.self_attn.q_proj.weight",  # a tower beside a text model
        "mtp.layers.0.self_attn.q_proj.weight",  # drafts of further tokens
        "v_head.summary.weight",  # training
        "model.layers.0.self_attn.k_proj.k_scale",  # of a KV cache in few bits
        "model.layers.0.self_attn.masked_bias",  # a buffer of an old release
    ],
)
def test_what_no_answer_hangs_on_is_one_line_with_the_file(key: str, llama_path: Path, copied: With) -> None:
    path = copied(llama_path, {key: torch.ones(WIDTH), key + "_again": torch.ones(1)})
    assert lines_of(path) == [
        f"leaving out 2 weights that the model has no place for, the first is {key} in copy/model.safetensors"
    ]


@pytest.mark.parametrize("key", ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"])
def test_buffers_that_published_checkpoints_often_hold_are_not_worth_a_line(
    key: str, llama_path: Path, copied: With
) -> None:
    assert lines_of(copied(llama_path, {key: torch.ones(8)})) == []


def test_a_head_that_is_shared_may_be_stored_as_well(llama_path: Path, copied: With) -> None:
    """transformers shares the weights where they are equal."""
    embeddings = load_file(llama_path / "model.safetensors")["model.embed_tokens.weight"]
    path = copied(llama_path, {"lm_head.weight": embeddings.clone()}, tie_word_embeddings=True)
    assert lines_of(path) == []


def test_biases_of_zeros_for_modules_without_one_change_nothing(llama_path: Path, copied: With) -> None:
    path = copied(llama_path, {"model.layers.0.self_attn.q_proj.bias": torch.zeros(WIDTH)})
    assert lines_of(path)[0].startswith("leaving out 1 weight")


def test_layers_that_draft_tokens_are_left_out_where_config_json_counts_them(llama_path: Path, copied: With) -> None:
    path = copied(llama_path, {"model.layers.2.mlp.up_proj.weight": torch.ones(4)}, num_nextn_predict_layers=1)
    assert lines_of(path)[0].startswith("leaving out 1 weight")


def test_transformers_own_table_is_not_printed(
    llama_path: Path, copied: With, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    logging.getLogger("transformers").addHandler(caplog.handler)
    try:
        lines_of(copied(llama_path, {"v_head.weight": torch.ones(4)}))
    finally:
        logging.getLogger("transformers").removeHandler(caplog.handler)
    assert "UNEXPECTED" not in caplog.text + "".join(capfd.readouterr())
