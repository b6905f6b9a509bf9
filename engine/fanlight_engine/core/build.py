"""Builds a core from a configuration and a checkpoint: weights, caches sized to fit, runner, engine.

The only place that knows all rooms of the core; nothing else constructs them together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.client import CoreFacts
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.block_pool import BlockPool
from fanlight_engine.core.engine import Engine
from fanlight_engine.core.memory_use import readable_bytes
from fanlight_engine.errors import ConfigError
from fanlight_engine.model.adapter import ModelAdapter
from fanlight_engine.model.attention.interface import AttentionBackend
from fanlight_engine.model.attention.reference import ReferenceAttention
from fanlight_engine.model.kv_cache import KeyValueShape, PagedKeyValueCache
from fanlight_engine.model.loading.agreement import check_agreement
from fanlight_engine.model.loading.available_memory import available_bytes
from fanlight_engine.model.loading.loader import LoadingPlan, load_planned, plan_loading, resolve_device, resolve_dtype
from fanlight_engine.model.loading.memory_estimate import (
    estimate_memory,
    refuse_more_than_is_stored,
    refuse_what_cannot_fit,
)
from fanlight_engine.model.lora.files import LoraFiles, read_lora_files
from fanlight_engine.model.lora.rows import add_loras
from fanlight_engine.model.rotary import long_factor_border
from fanlight_engine.model.runner import Runner, RunnerLimits
from fanlight_engine.model.vision_cache import VisionCache

_BACKENDS: dict[str, Callable[[], AttentionBackend]] = {"reference": ReferenceAttention}

Report = Callable[[str], None]


def build_engine(config: EngineConfig, checkpoint: Checkpoint, report: Report = lambda line: None) -> Engine:
    """Load everything and return a core that can step. `report` gets a line per stage. Raises StartupError."""
    backend = attention_backend(config.attention)
    if config.torch_threads:
        torch.set_num_threads(config.torch_threads)
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, checkpoint, device)
    adapters = read_lora_files(config.lora, checkpoint.name)  # what is wrong with them is told before weights are read
    plan = plan_loading(checkpoint, device, dtype, config.quantization)
    facts = _facts_that_fit(config, plan, adapters, report)
    report(f"loading weights of {checkpoint.name} ({checkpoint.family.model_type}, {dtype}) on {device}")
    model = load_planned(plan, report)
    lora_rows = add_loras(model, adapters, report) if adapters else None
    adapter = ModelAdapter(model, checkpoint, lora_rows)
    check_agreement(model, adapter, backend, checkpoint)
    facts = replace(facts, loras=tuple(files.lora for files in adapters))
    report(f"allocating {facts.pages} pages of {facts.page_size} tokens, context {facts.context_length} tokens")
    cache = PagedKeyValueCache(adapter.key_value_shape, facts.pages, facts.page_size, device)
    vision_cache: VisionCache[torch.Tensor] = VisionCache(facts.vision_cache_bytes)
    limits = RunnerLimits(config.max_running_requests, config.max_step_tokens, _pages(facts.context_length, config))
    runner = Runner(adapter, cache, backend, vision_cache, limits)
    return Engine(config, facts, runner, BlockPool(facts.pages), vision_cache)


def _facts_that_fit(
    config: EngineConfig, plan: LoadingPlan, adapters: Sequence[LoraFiles], report: Report
) -> CoreFacts:
    """Worked out before anything is allocated. Raises StartupError where the device has less memory than is needed."""
    facts = size_caches(config, plan.checkpoint, plan.dtype)
    memory = estimate_memory(plan, facts, _key_value_shape(plan.checkpoint, plan.dtype), adapters)
    refuse_more_than_is_stored(plan, memory)
    available = available_bytes(plan.device)
    refuse_what_cannot_fit(plan.checkpoint.name, memory, available, plan.device, config.kv_pages)
    of_available = "" if available is None else f" of {readable_bytes(available)} available"
    report(f"memory on {plan.device}: {memory.in_words()}; {readable_bytes(memory.total_bytes)}{of_available}")
    return replace(facts, memory=memory)


def size_caches(config: EngineConfig, checkpoint: Checkpoint, dtype: torch.dtype) -> CoreFacts:
    """Pages and context that the configured memory holds. Raises ConfigError when that is not one page."""
    wanted_context = config.context_length or checkpoint.context_length
    if wanted_context > checkpoint.context_length:
        raise ConfigError(
            f"context_length is {wanted_context}, {checkpoint.name} was made for {checkpoint.context_length}; lower it"
        )
    page_bytes = _key_value_shape(checkpoint, dtype).token_bytes * config.page_size
    useful_pages = _pages(wanted_context, config) * config.max_running_requests + 1  # one is the dummy
    pages = config.kv_pages or min(config.kv_cache_bytes // page_bytes, useful_pages)
    if config.kv_pages == 1:
        raise ConfigError("kv_pages is 1, which only holds padding; it must be 0 (decide) or at least 2")
    if pages < 2:
        raise ConfigError(
            f"kv_cache_bytes is {config.kv_cache_bytes}, two pages of {config.page_size} tokens need {2 * page_bytes}; "
            "raise kv_cache_bytes or lower page_size"
        )
    longest_span = config.max_step_tokens - config.max_running_requests + 1
    if checkpoint.smallest_span > longest_span:
        raise ConfigError(
            f"max_step_tokens is {config.max_step_tokens}, but the {checkpoint.smallest_span} embeddings of a picture "
            f"see each other in {checkpoint.name} and are computed in one step, beside a token of each other request "
            f"that runs; raise max_step_tokens to {checkpoint.smallest_span + config.max_running_requests} or more"
        )
    return CoreFacts(
        context_length=min(wanted_context, (pages - 1) * config.page_size),
        page_size=config.page_size,
        pages=pages,
        dtype=str(dtype).removeprefix("torch."),
        vision_cache_bytes=config.vision_cache_bytes,
        embedding_row_bytes=checkpoint.embedding_width * dtype.itemsize,
        bidirectional=checkpoint.family.bidirectional,
        longest_span=longest_span,
        long_factor_border=long_factor_border(checkpoint),
    )


def _key_value_shape(checkpoint: Checkpoint, dtype: torch.dtype) -> KeyValueShape:
    return KeyValueShape.of(checkpoint.config.get_text_config(), dtype)


def attention_backend(name: str) -> AttentionBackend:
    """The backend of that name. Raises ConfigError."""
    if name not in _BACKENDS:
        raise ConfigError(f"attention is {name!r}, it must be one of {', '.join(_BACKENDS)}")
    return _BACKENDS[name]()


def _pages(tokens: int, config: EngineConfig) -> int:
    return -(-tokens // config.page_size)
