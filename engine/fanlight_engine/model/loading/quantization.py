"""Weights in few bits: made while loading (int8), or stored so by the checkpoint; what cannot be is refused at once.

Only the decoder's linear layers are ever quantised here: tower, projector, embeddings and head stay as they are. Knows
transformers' quantisation configurations; knows no layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.errors import CheckpointError, ConfigError
from fanlight_engine.model.loading.skeleton import Skeleton
from fanlight_engine.packages import require_package

_INT8 = "int8"

_ON_EVERY_DEVICE = ("torchao",)
_NEEDING_A_GPU = {
    "gptq": "GPTQ",
    "awq": "AWQ",
    "bitsandbytes": "bitsandbytes",
    "fp8": "FP8",
    "fbgemm_fp8": "FP8 (FBGEMM)",
    "compressed-tensors": "compressed-tensors",
}
"""Methods by config.json's name for them, whose kernels, as transformers loads them, are made for GPUs."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the decoder's weights are stored in few bits. `made_here` is False where the checkpoint brings them so."""

    method: str
    made_here: bool


def choose_quantization(setting: str, checkpoint: Checkpoint, device: torch.device) -> Quantization | None:
    """What to do on `device`; None for plain weights. Raises StartupError with what to do instead."""
    stored = checkpoint.quantization
    if stored:
        return _of_checkpoint(setting, stored, checkpoint, device)
    if not setting:
        return None
    require_package("torchao", f"quantization={setting}", ConfigError)
    return Quantization(setting, made_here=True)


def _of_checkpoint(setting: str, stored: str, checkpoint: Checkpoint, device: torch.device) -> Quantization:
    if setting:
        raise ConfigError(
            f"quantization is {setting!r}, and the weights of {checkpoint.name} are quantised already ({stored}); "
            "leave it out, or serve the checkpoint with full weights"
        )
    says = f"{checkpoint.path.name}/config.json has weights quantised with {stored} (quantization_config)"
    instead = "serve the checkpoint with full weights, on a CPU with --quantization int8 where memory is short"
    if stored in _NEEDING_A_GPU and device.type != "cuda":
        raise CheckpointError(f"{says}, whose kernels need a GPU, and the device is {device.type}: {instead}")
    if stored not in _NEEDING_A_GPU and stored not in _ON_EVERY_DEVICE:
        supported = ", ".join((*_ON_EVERY_DEVICE, *_NEEDING_A_GPU))
        raise CheckpointError(f"{says}, which is not supported (supported: {supported}): {instead}")
    if stored == "torchao":
        require_package("torchao", f"{checkpoint.path.name}, whose weights are quantised with torchao,")
    return Quantization(stored, made_here=False)


def loading_arguments(quantization: Quantization | None, skeleton: Skeleton, device: torch.device) -> dict[str, Any]:
    """What `from_pretrained` is told of it. Weights that need a GPU's kernels are read onto the GPU at once."""
    if quantization is None:
        return {}
    if not quantization.made_here:
        return {"device_map": {"": device}} if quantization.method in _NEEDING_A_GPU else {}
    assert quantization.method == _INT8, quantization
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    kept = skeleton.linears_outside_decoder()
    return {"quantization_config": TorchAoConfig(Int8WeightOnlyConfig(), modules_to_not_convert=kept)}
