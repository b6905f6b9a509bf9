"""What a core will take of a device's memory, worked out before anything is allocated; the refusal where it cannot fit.

Weights are counted from the model's own shapes, in the number type that they are loaded in. What captured decode steps
need is bounded, from the sizes of what a step computes; nothing is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from fanlight_engine.client import CoreFacts
from fanlight_engine.core.memory_use import MemoryUse, readable_bytes
from fanlight_engine.errors import CheckpointError, ConfigError
from fanlight_engine.model.graphs import CapturePlan, row_sizes
from fanlight_engine.model.kv_cache import KeyValueShape
from fanlight_engine.model.loading.loader import LoadingPlan
from fanlight_engine.model.lora.files import LoraFiles

_MOST_PER_STORED_BYTE = 32
"""Weights of one bit that are loaded as float32."""

_BYTES_PER_LOGIT = 4 + 64
"""The float32 logit, and what the most expensive kind of sampling has at once for each: float64 scores, probabilities,
these sorted with their ids, what sorting them takes, and two running sums."""
_BYTES_PER_MARK = 4
_STATES_PER_ROW = 64
"""Hidden states that a layer has at once of each row, generously: the widest are those between its two projections."""
_BYTES_PER_GRAPH = 4 << 20
"""What a driver keeps of a graph of some hundred kernels, generously."""


def estimate_memory(
    plan: LoadingPlan,
    facts: CoreFacts,
    shape: KeyValueShape,
    adapters: Sequence[LoraFiles] = (),
    decode_step_bytes: int = 0,
) -> MemoryUse:
    """Bytes by part of the loaded model with its adapters, of its caches, and of captured decode steps."""
    skeleton, dtype, quantization = plan.skeleton, plan.dtype, plan.quantization
    counted: set[int] = set()
    embeddings = _bytes_of((skeleton.embeddings, skeleton.head), dtype, counted) + _untied_bytes(plan)
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
        lora_bytes=sum(files.numbers for files in adapters) * dtype.itemsize,
        decode_step_bytes=decode_step_bytes,
    )


def bound_decode_steps(plan: LoadingPlan, captures: CapturePlan, max_rows: int, max_pages: int, gathered: int) -> int:
    """Bytes that captured decode steps of up to `max_rows` rows take: buffers, what they compute, and the graphs.

    All graphs share the memory of the largest step. `gathered` are bytes of keys and values of one layer that attention
    copies for one row, in the longest context.
    """
    graphs = len(captures.buckets(max_rows, max_pages)) + len(row_sizes(max_rows)) * len(captures.kinds)
    per_logit = _BYTES_PER_LOGIT + _BYTES_PER_MARK * captures.penalises
    states = _STATES_PER_ROW * plan.checkpoint.hidden_size * plan.dtype.itemsize
    per_row = per_logit * plan.checkpoint.vocab_size + states + gathered
    return max_rows * per_row + graphs * _BYTES_PER_GRAPH


def refuse_more_than_is_stored(plan: LoadingPlan, use: MemoryUse) -> None:
    """Raise CheckpointError where config.json makes a model that its files are far too small for."""
    stored = plan.files.stored_bytes
    if use.weight_bytes > _MOST_PER_STORED_BYTE * stored:
        name = plan.checkpoint.path.name
        raise CheckpointError(
            f"{name}/config.json makes a model of {readable_bytes(use.weight_bytes)}, its weights have "
            f"{readable_bytes(stored)}; config.json and weights must come from the same checkpoint"
        )


def refuse_what_cannot_fit(
    name: str, use: MemoryUse, available: int | None, device: torch.device, kv_pages: int = 0
) -> None:
    """Raise CheckpointError where the weights alone are too large, ConfigError where smaller caches would help.

    `kv_pages` is the setting, 0 where the KV cache follows from kv_cache_bytes.
    """
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
    caches = f"kv_pages ({kv_pages})" if kv_pages else "kv_cache_bytes (or context_length, max_running_requests)"
    if use.vision_cache_bytes:
        caches += " or vision_cache_bytes"
    left = readable_bytes(available - use.weight_bytes)
    raise ConfigError(f"{numbers}: its weights fit and leave {left} for caches; lower {caches}")


def _untied_bytes(plan: LoadingPlan) -> int:
    """The head's own weight, where config.json shares it with the embeddings and the files hold both: transformers
    shares them only where they are equal, and has both in memory before it knows."""
    head: Any = plan.skeleton.head
    is_shared = head.weight is getattr(plan.skeleton.embeddings, "weight", None)
    if not is_shared or not any(name.endswith("lm_head.weight") for name in plan.files.weights):
        return 0
    return head.weight.numel() * plan.dtype.itemsize


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
