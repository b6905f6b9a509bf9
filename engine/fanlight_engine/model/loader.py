"""Loads a checkpoint's weights through transformers, on one device, with our attention in its decoder.

Knows nothing of serving. Weights are safetensors only; code of a checkpoint's own is never run.
"""

from __future__ import annotations

from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel
from transformers.utils import logging as transformers_logging

from fanlight_engine.errors import CheckpointError, ConfigError
from fanlight_engine.model.attention.interface import ATTENTION_NAME
from fanlight_engine.model.checkpoint import Checkpoint

_ROTARY_TYPES_OF_THE_WHOLE_STEP = ("dynamic", "longrope")


def resolve_device(name: str) -> torch.device:
    """The torch device of that name. Raises ConfigError when this machine has none."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} cannot be used here; use cpu, or cuda where torch sees a GPU") from error
    return device


def resolve_dtype(name: str, checkpoint: Checkpoint, device: torch.device) -> torch.dtype:
    """The number type of weights and KV cache; "auto" is float32 on a CPU and the checkpoint's own elsewhere."""
    if name != "auto":
        return getattr(torch, name)
    if device.type == "cpu":
        return torch.float32
    own = getattr(checkpoint.config.get_text_config(), "dtype", None) or getattr(checkpoint.config, "dtype", None)
    return own if isinstance(own, torch.dtype) else torch.bfloat16


def load_model(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """The model in eval mode on `device`. Raises CheckpointError naming what is missing or does not fit."""
    _refuse_unservable_rotary(checkpoint)
    auto_class = AutoModelForImageTextToText if checkpoint.takes_images else AutoModelForCausalLM
    transformers_logging.disable_progress_bar()
    try:
        loaded: Any = auto_class.from_pretrained(
            checkpoint.path,
            dtype=dtype,
            attn_implementation="sdpa",
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"weights of {checkpoint.path.name} cannot be loaded: {error}") from error
    model, report = loaded
    _refuse_incomplete(checkpoint, report)
    model.get_decoder().config._attn_implementation = ATTENTION_NAME
    return model.eval().requires_grad_(False).to(device)


def _refuse_unservable_rotary(checkpoint: Checkpoint) -> None:
    """Some rotary types look at the largest position of the whole step: one request would change its neighbours."""
    text_config = checkpoint.config.get_text_config()
    parameters = getattr(text_config, "rope_parameters", None) or getattr(text_config, "rope_scaling", None) or {}
    rotary_type = parameters.get("rope_type", parameters.get("type", "default"))
    if rotary_type in _ROTARY_TYPES_OF_THE_WHOLE_STEP:
        raise CheckpointError(
            f"{checkpoint.path.name}/config.json has rotary type {rotary_type!r}, whose positions depend on the other "
            "requests of a batch; it is not supported"
        )


def _refuse_incomplete(checkpoint: Checkpoint, report: dict) -> None:
    """transformers fills missing weights with random numbers and only warns."""
    missing = sorted(map(str, report.get("missing_keys") or ()))
    mismatched = sorted(str(one[0]) for one in report.get("mismatched_keys") or ())
    if missing or mismatched:
        kind, names = ("lacks", missing) if missing else ("has wrongly shaped", mismatched)
        raise CheckpointError(
            f"the safetensors of {checkpoint.path.name} {kind} {len(names)} weights, the first is {names[0]}; "
            "config.json and weights must come from the same checkpoint"
        )
