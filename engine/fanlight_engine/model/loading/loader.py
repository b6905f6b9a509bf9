"""Loads a checkpoint's weights through transformers, on one device, with our attention in its decoder.

First a plan, which looks at headers and shapes only, so that whatever can be refused is refused before memory is taken;
then the weights. Knows nothing of serving. Weights are safetensors only; code of a checkpoint's own is never run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.checkpoints.quiet import without_notices
from fanlight_engine.checkpoints.weight_files import WeightFiles, find_weight_files
from fanlight_engine.errors import CheckpointError, ConfigError, in_one_line
from fanlight_engine.model.attention.interface import ATTENTION_NAME
from fanlight_engine.model.loading.progress import Report, reported
from fanlight_engine.model.loading.quantization import Quantization, choose_quantization, loading_arguments
from fanlight_engine.model.loading.skeleton import Skeleton, auto_class_of, skeleton_of
from fanlight_engine.model.loading.unexpected_weights import judge_unexpected
from fanlight_engine.model.rotary import long_factor_border, refuse_unservable_rotary, settle_rotary


@dataclass(frozen=True, slots=True)
class LoadingPlan:
    """What is about to be loaded, and how."""

    checkpoint: Checkpoint
    device: torch.device
    dtype: torch.dtype
    files: WeightFiles
    skeleton: Skeleton
    quantization: Quantization | None = None


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
    own = getattr(torch, checkpoint.dtype, None)
    return own if isinstance(own, torch.dtype) else torch.bfloat16


def plan_loading(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, quantization: str = ""
) -> LoadingPlan:
    """Look at everything but the weights; `quantization` is the setting. Raises StartupError for what cannot be."""
    refuse_unservable_rotary(checkpoint)
    _refuse_adapter(checkpoint)
    chosen = choose_quantization(quantization, checkpoint, device)
    files = find_weight_files(checkpoint.path)
    with without_notices():
        skeleton = skeleton_of(checkpoint)
    return LoadingPlan(checkpoint, device, dtype, files, skeleton, chosen)


def load_model(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """`load_planned` for weights as they are, planned here and now."""
    return load_planned(plan_loading(checkpoint, device, dtype))


def load_planned(plan: LoadingPlan, report: Report = lambda line: None) -> PreTrainedModel:
    """The model in eval mode on the plan's device. `report` gets a line per tenth of a slow load.

    Raises CheckpointError naming what is missing, does not fit, or has no place though answers hang on it.
    """
    checkpoint = plan.checkpoint
    try:
        with reported(report, f"loading weights of {checkpoint.name}"), without_notices():
            loaded: Any = auto_class_of(checkpoint).from_pretrained(
                checkpoint.path,
                config=checkpoint.config,
                dtype=plan.dtype,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are refused below, by name
                **loading_arguments(plan.quantization, plan.skeleton, plan.device),
            )
    except Exception as error:  # readers of the many forms of weights raise whatever they meet
        raise CheckpointError(f"weights of {checkpoint.path.name} cannot be loaded: {in_one_line(error)}") from error
    model, information = loaded
    _refuse_incomplete(plan, information)
    unexpected = sorted(map(str, information.get("unexpected_keys") or ()))
    judge_unexpected(checkpoint.path.name, model, plan.files, unexpected, report)
    return made_ready(model, plan)


def made_ready(model: Any, plan: LoadingPlan) -> PreTrainedModel:
    """A model that has its weights, as the adapter needs it: our attention in its decoder, in eval mode, on the plan's
    device. Changes the model that is given."""
    decoder = model.get_decoder()
    decoder.config._attn_implementation = ATTENTION_NAME
    settle_rotary(decoder, long_factor_border(plan.checkpoint))
    return model.eval().requires_grad_(False).to(plan.device)


def _refuse_adapter(checkpoint: Checkpoint) -> None:
    """transformers would read the adapter, and another checkpoint that it names in place of this one."""
    if (checkpoint.path / "adapter_config.json").is_file():
        raise CheckpointError(
            f"{checkpoint.path.name}/adapter_config.json makes an adapter of this checkpoint: move it into a directory "
            "of its own and serve it with --lora NAME=DIRECTORY, or remove it"
        )


def _refuse_incomplete(plan: LoadingPlan, information: dict[str, Any]) -> None:
    """transformers fills what is missing or has another shape with random numbers."""
    name = plan.checkpoint.path.name
    together = "config.json and weights must come from the same checkpoint"
    missing = sorted(map(str, information.get("missing_keys") or ()))
    if missing:
        raise CheckpointError(
            f"{name} lacks {len(missing)} weights in {_listed(plan.files)}, the first is {missing[0]}; {together}"
        )
    mismatched: list[Any] = sorted(information.get("mismatched_keys") or ())
    if mismatched:
        parameter, stored_shape, needed_shape = mismatched[0]
        weight = plan.files.of_parameter(parameter)
        file = f"{name}/{weight.file.name}" if weight else f"the safetensors of {name}"
        raise CheckpointError(
            f"{file} has {parameter} in shape {list(stored_shape)}, by config.json it is {list(needed_shape)} "
            f"({len(mismatched)} weights are wrongly shaped); {together}"
        )


def _listed(files: WeightFiles) -> str:
    names = [file.name for file in files.files]
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
