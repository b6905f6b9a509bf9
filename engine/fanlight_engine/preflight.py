"""What can be told of a start before anything is loaded: of device, attention, adapters and missing packages.

Whoever loads judges all of this again, and more. Weights, memory, chat template and processor are not looked at.
"""

from __future__ import annotations

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.inputs.loading import require_packages_of
from fanlight_engine.model.attention.choice import AttentionNeeds, refuse_attention
from fanlight_engine.model.loading.loader import resolve_device, resolve_dtype
from fanlight_engine.model.loading.quantization import choose_quantization
from fanlight_engine.model.lora.files import read_lora_files
from fanlight_engine.model.lora.weights import require_packages_of_adapter


def refuse_what_would_not_start(config: EngineConfig, checkpoint: Checkpoint) -> None:
    """Raises ConfigError and CheckpointError in the words of a start."""
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, checkpoint, device)
    refuse_attention(config.attention, AttentionNeeds.of(config, checkpoint, device, dtype))
    for files in read_lora_files(config.lora, checkpoint.name):
        require_packages_of_adapter(files)
    choose_quantization(config.quantization, checkpoint, device)
    require_packages_of(checkpoint)
