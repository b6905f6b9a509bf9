"""Random models of real shapes, drawn on the device: no weight file is written and none is read.

A checkpoint directory needs one all the same, whose header the engine judges before it loads. Ours has the true header
and behind it a hole, which takes no room on a disk; the weights are drawn where they would have been read.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.model.loading.loader import LoadingPlan, made_ready
from fanlight_engine.model.loading.skeleton import auto_class_of

SEED = 1


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama-type decoder."""

    name: str
    config: dict[str, Any]


ONE_BILLION = Shape(
    "1B",
    {
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "tie_word_embeddings": True,
    },
)
EIGHT_BILLION = Shape(
    "8B",
    {
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
)
TINY = Shape(
    "tiny",
    {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "tie_word_embeddings": True,
    },
)
_LONGEST = 65_536
_BYTES_PER_NUMBER = 2


def make_checkpoint(shape: Shape, directory: Path) -> Checkpoint:
    """config.json, generation_config.json and weights that are a header and a hole, in bfloat16."""
    config = LlamaConfig(**shape.config, max_position_embeddings=_LONGEST, dtype="bfloat16")
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(directory)
    (directory / "generation_config.json").write_text(json.dumps({"do_sample": False}), encoding="utf-8")
    with torch.device("meta"), no_init_weights():
        model = LlamaForCausalLM(config)
    kept = {name: tuple(one.shape) for name, one in model.named_parameters() if name not in _tied(model)}
    _write_hollow_weights(directory / "model.safetensors", kept)
    return read_checkpoint(directory)


def draw_weights(plan: LoadingPlan, report: object = None) -> PreTrainedModel:
    """In place of reading them, for `build_engine(load=...)`: drawn on the plan's device, the same at every call."""
    model = draw_model(plan.checkpoint, plan.device, plan.dtype)
    return made_ready(model, plan)


def draw_model(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> Any:
    """The checkpoint's model with transformers' own initialisation, in eval mode."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        torch.manual_seed(SEED)
        model: Any = auto_class_of(checkpoint).from_config(checkpoint.config, dtype=dtype)
    return model.eval().requires_grad_(False)


def weight_bytes_of_a_step(model: Any) -> int:
    """What every decode step reads at least: all weights, less the table of embeddings, of which it takes few rows. A
    table that is the head as well counts, once."""
    embeddings, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    total = sum(one.numel() * one.element_size() for one in model.parameters())
    return total if embeddings is head else total - embeddings.numel() * embeddings.element_size()


def parameters(model: Any) -> int:
    """Numbers that take part in computing a token; the table of embeddings does not, unless it is the head."""
    return weight_bytes_of_a_step(model) // model.dtype.itemsize


def _tied(model: Any) -> set[str]:
    return {"lm_head.weight"} if model.config.tie_word_embeddings else set()


def _write_hollow_weights(file: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + torch.Size(shape).numel() * _BYTES_PER_NUMBER
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + end)
