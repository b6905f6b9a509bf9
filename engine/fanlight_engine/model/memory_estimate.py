"""What a core will take of a device's memory, worked out before anything is allocated; the refusal where it cannot fit.

Weights are counted from the model's own shapes, in the number type that they are loaded in; nothing is measured.
"""

from __future__ import annotations

import torch
from torch import nn

from fanlight_engine.client import CoreFacts
from fanlight_engine.core.memory_use import MemoryUse, readable_bytes
from fanlight_engine.errors import CheckpointError, ConfigError
from fanlight_engine.model.kv_cache import KeyValueShape
from fanlight_engine.model.loader import LoadingPlan


def estimate_memory(plan: LoadingPlan, facts: CoreFacts, shape: KeyValueShape) -> MemoryUse:
    """Bytes by part of the loaded model and of its caches."""
    skeleton, dtype, quantization = plan.skeleton, plan.dtype, plan.quantization
    counted: set[int] = set()
    embeddings = _bytes_of((skeleton.embeddings, skeleton.head), dtype, counted)
    is_made_here = quantization is not None and quantization.made_here
    decoder = _bytes_of((skeleton.decoder,), dtype, counted, linears_in_int8=is_made_here)
    tower = _bytes_of((skeleton.model,), dtype, counted)
    if quantization is not None and not quantization.made_here:
        decoder = max(0, plan.files.stored_bytes - embeddings - tower)  # only its file knows what packed weights take
    return MemoryUse(
        decoder_bytes=decoder,
        embeddings_bytes=embeddings,
        vision_tower_bytes=tower,
        key_value_bytes=facts.pages * facts.page_size * shape.token_bytes,
        vision_cache_bytes=facts.vision_cache_bytes if tower else 0,
    )


def refuse_what_cannot_fit(name: str, use: MemoryUse, available: int | None, device: torch.device) -> None:
    """Raise CheckpointError where the weights alone are too large, ConfigError where smaller caches would help."""
    if available is None or use.total_bytes <= available:
        return
    numbers = (
        f"{name} takes {readable_bytes(use.total_bytes)} on {device} ({use.in_words()}), and "
        f"{readable_bytes(available)} are available"
    )
    if use.weight_bytes > available:
        raise CheckpointError(
            f"{numbers}: its weights alone do not fit; try --dtype bfloat16 or --quantization int8, or serve a smaller "
            "checkpoint"
        )
    caches = "kv_cache_bytes (or context_length, max_running_requests)"
    if use.vision_cache_bytes:
        caches += " or vision_cache_bytes"
    left = readable_bytes(available - use.weight_bytes)
    raise ConfigError(f"{numbers}: its weights fit and leave {left} for caches; lower {caches}")


def _bytes_of(
    modules: tuple[nn.Module, ...], dtype: torch.dtype, counted: set[int], linears_in_int8: bool = False
) -> int:
    """Of all parameters that were not counted before; these are added to `counted`, since weights may be shared."""
    total = 0
    for module in modules:
        for part in module.modules():
            is_quantised = linears_in_int8 and isinstance(part, nn.Linear)
            for name, parameter in part.named_parameters(recurse=False):
                if id(parameter) in counted:
                    continue
                counted.add(id(parameter))
                if is_quantised and name == "weight":
                    total += parameter.numel() + parameter.shape[0] * dtype.itemsize  # and a scale per row
                else:
                    total += parameter.numel() * dtype.itemsize
    return total
