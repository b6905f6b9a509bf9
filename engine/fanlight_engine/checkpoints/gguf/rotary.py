"""What a GGUF says about rotary positions and transformers does not read from it, put back into the configuration.

Left out, it would not be noticed: the model would answer, only worse. What cannot be put back is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from fanlight_engine.checkpoints.gguf.header import FLOAT_TYPES, GgufHeader
from fanlight_engine.errors import CheckpointError

_FACTORS = "rope_freqs.weight"
_LONG_FACTORS = "rope_factors_long.weight"
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What every checkpoint with rotary type llama3 has. A GGUF holds only the divisors that come of it, whose greatest is
the factor."""


def restore_rotary(header: GgufHeader, config: PretrainedConfig) -> None:
    """Complete the rotary parameters of `config`. Raises CheckpointError where the file has more than is understood."""
    scaling = _stated_scaling(header)
    if _LONG_FACTORS in header.tensors or (scaling is not None and scaling["rope_type"] not in ("linear", "yarn")):
        stated = "longrope" if _LONG_FACTORS in header.tensors else scaling and scaling["rope_type"]
        raise CheckpointError(
            f"{header.file} has rotary positions of type {stated!r}, which are not read from a GGUF; use the "
            "safetensors checkpoint that it was made from"
        )
    if scaling is not None:
        _add(config, scaling)
    if _FACTORS in header.tensors:
        _add_llama3(header, config)


def _stated_scaling(header: GgufHeader) -> dict[str, Any] | None:
    kind = header.of_model("rope.scaling.type")
    factor = header.of_model("rope.scaling.factor")
    if kind in (None, "none") or factor in (None, 1.0):
        return None
    scaling: dict[str, Any] = {"rope_type": str(kind), "factor": float(factor)}
    original = header.of_model("rope.scaling.original_context_length")
    if original is not None:
        scaling["original_max_position_embeddings"] = int(original)
    return scaling


def _add(config: Any, scaling: dict[str, Any]) -> None:
    """Where layers have rotary parameters of their own kinds, scaling is for those that see the whole context."""
    parameters = config.rope_parameters
    if "full_attention" in parameters:
        config.rope_parameters = {**parameters, "full_attention": {**parameters["full_attention"], **scaling}}
    else:
        config.rope_parameters = {**parameters, **scaling}


def _add_llama3(header: GgufHeader, config: Any) -> None:
    """The divisors must be those that the type llama3 makes; then it is that type."""
    divisors = _read_divisors(header)
    if np.all(divisors == 1.0):
        return
    plain = config.rope_parameters
    width = 2 * len(divisors)
    frequencies = float(plain["rope_theta"]) ** (-np.arange(0, width, 2) / width) / divisors
    config.rope_parameters = {**plain, **_LLAMA3, "rope_type": "llama3", "factor": float(divisors.max())}
    made, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    if made.shape != frequencies.shape or not np.allclose(made.numpy(), frequencies, rtol=1e-4, atol=0.0):
        raise CheckpointError(
            f"{header.file} has rotary divisors ({_FACTORS}) that are not those of the type llama3, the only ones that "
            "are understood; use the safetensors checkpoint that it was made from"
        )


def _read_divisors(header: GgufHeader) -> np.ndarray:
    tensor = header.tensors[_FACTORS]
    if FLOAT_TYPES.get(tensor.type_number) != "float32" or len(tensor.shape) != 1:
        raise CheckpointError(f"{header.file} has {_FACTORS} of another form than float32 in one row; convert it again")
    divisors = np.fromfile(header.file, dtype="<f4", count=tensor.elements, offset=tensor.offset).astype(np.float64)
    if len(divisors) != tensor.elements or not np.all(divisors > 0):
        raise CheckpointError(f"{header.file} ends inside {_FACTORS}, or has divisors below zero; fetch it again")
    return divisors
