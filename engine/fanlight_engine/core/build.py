"""Builds a core from a configuration and a checkpoint: weights, caches sized to fit, runner, engine.

The only place that knows all rooms of the core; nothing else constructs them together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.client import CoreFacts
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.block_pool import BlockPool
from fanlight_engine.core.engine import Engine
from fanlight_engine.core.memory_use import readable_bytes
from fanlight_engine.core.messages import SamplingParams
from fanlight_engine.core.scheduler import most_tokens_of_a_short_step
from fanlight_engine.errors import ConfigError
from fanlight_engine.model.adapter import ModelAdapter
from fanlight_engine.model.attention.choice import AttentionNeeds, choose_attention
from fanlight_engine.model.experts import CapturableExperts
from fanlight_engine.model.graphs import CapturePlan, CudaCapturer
from fanlight_engine.model.kv_cache import KeyValueShape, PagedKeyValueCache
from fanlight_engine.model.loading.agreement import check_agreement
from fanlight_engine.model.loading.available_memory import available_bytes
from fanlight_engine.model.loading.loader import LoadingPlan, load_planned, plan_loading, resolve_device, resolve_dtype
from fanlight_engine.model.loading.memory_estimate import (
    bound_decode_steps,
    estimate_memory,
    refuse_more_than_is_stored,
    refuse_what_cannot_fit,
)
from fanlight_engine.model.lora.files import LoraFiles, read_lora_files
from fanlight_engine.model.lora.rows import add_loras
from fanlight_engine.model.rotary import long_factor_border
from fanlight_engine.model.runner import Runner, RunnerLimits
from fanlight_engine.model.vision_cache import VisionCache

Report = Callable[[str], None]


def build_engine(
    config: EngineConfig,
    checkpoint: Checkpoint,
    report: Report = lambda line: None,
    load: Callable[[LoadingPlan, Report], PreTrainedModel] = load_planned,
    runs_ahead: bool | None = None,
) -> Engine:
    """Load everything and return a core that can step. `report` gets a line per stage. Raises StartupError.

    `load` gives the model of a plan; benchmarks draw its weights where they would be read. `runs_ahead` as in Engine;
    None where the device computes beside the host and the settings allow it.
    """
    if config.torch_threads:
        torch.set_num_threads(config.torch_threads)
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, checkpoint, device)
    adapters = read_lora_files(config.lora, checkpoint.name)  # what is wrong with them is told before weights are read
    plan = plan_loading(checkpoint, device, dtype, config.quantization)
    facts = _facts_that_fit(config, plan, adapters, report)
    report(f"loading weights of {checkpoint.name} ({checkpoint.family.model_type}, {dtype}) on {device}")
    model = load(plan, report)
    lora_rows = add_loras(model, adapters, report) if adapters else None
    adapter = ModelAdapter(model, checkpoint, lora_rows)
    backend = choose_attention(config.attention, AttentionNeeds.of(config, checkpoint, device, dtype), report)
    check_agreement(model, adapter, backend, checkpoint, facts.page_size)
    if config.cpu_kernels and device.type == "cpu":
        adapter.use_cpu_kernels(report, config.deterministic)
    if config.deterministic:
        _refuse_what_depends_on_neighbours(checkpoint, adapter, adapters, device)
    facts = replace(facts, attention=backend.name, loras=tuple(files.lora for files in adapters))
    report(f"allocating {facts.pages} pages of {facts.page_size} tokens, context {facts.context_length} tokens")
    cache = PagedKeyValueCache(adapter.key_value_shape, facts.pages, facts.page_size, device)
    vision_cache: VisionCache[torch.Tensor] = VisionCache(facts.vision_cache_bytes)
    limits = _runner_limits(config, facts, adapter)
    experts = CapturableExperts(model.get_decoder(), dtype, device)
    captures = replace(
        planned_captures(config, backend.gathers_tables), most_rows=experts.most_rows, capturable=experts.capturable
    )
    runner = Runner(adapter, cache, backend, vision_cache, limits, captures)
    if _has_graphs(config, device):
        runner.decode_graphs.capture(CudaCapturer(device), report)
    if runs_ahead is None:
        runs_ahead = config.async_scheduling and device.type == "cuda"
    return Engine(config, facts, runner, BlockPool(facts.pages), vision_cache, runs_ahead)


def planned_captures(config: EngineConfig, gathers_tables: bool) -> CapturePlan:
    """What the settings say of capturing decode steps; not all of it need pay for the model that is loaded."""
    of_silent_request = SamplingParams(
        max_new_tokens=1,
        repetition_penalty=config.default_repetition_penalty,
        presence_penalty=config.default_presence_penalty,
        frequency_penalty=config.default_frequency_penalty,
    )
    return CapturePlan(gathers_tables, with_loras=bool(config.lora), penalises=of_silent_request.has_penalties)


def _runner_limits(config: EngineConfig, facts: CoreFacts, adapter: ModelAdapter) -> RunnerLimits:
    """A short step comes between two chunks of a long prompt, and should take no longer than a few decodes.

    Computed as rows its logits differ by rounding from those of a step that the prompt could be in otherwise, which
    `deterministic` does not allow.
    """
    is_quicker_as_rows = adapter.has_cpu_kernels and not config.deterministic
    return RunnerLimits(
        max_rows=config.max_running_requests,
        max_step_tokens=config.max_step_tokens,
        max_pages_per_sequence=_pages(facts.context_length, config),
        max_tokens_as_rows=most_tokens_of_a_short_step(config) if is_quicker_as_rows else 0,
        encodes_alone=config.deterministic,
    )


def _refuse_what_depends_on_neighbours(
    checkpoint: Checkpoint, adapter: ModelAdapter, adapters: Sequence[LoraFiles], device: torch.device
) -> None:
    """Only our kernels for a CPU compute each token in one way, whatever is beside it, and only whole decoders of them.

    Raises ConfigError where something else computes.
    """
    if adapter.has_cpu_kernels and not adapters:
        return
    why = "adapters are" if adapter.has_cpu_kernels else f"on {device} {checkpoint.name} is"
    raise ConfigError(
        f"deterministic is chosen, but {why} computed by torch's own products, whose last bits depend on what is "
        "computed beside them; turn deterministic off, or serve, without adapters, a decoder that the CPU kernels "
        "compute in one call (a line of the start says so)"
    )


def _has_graphs(config: EngineConfig, device: torch.device) -> bool:
    return config.graphs and device.type == "cuda"


def _decode_step_bytes(config: EngineConfig, plan: LoadingPlan, facts: CoreFacts, shape: KeyValueShape) -> int:
    if not _has_graphs(config, plan.device):
        return 0
    captures = planned_captures(config, gathers_tables=config.attention != "triton")  # others may, none is chosen yet
    gathered = facts.context_length * shape.token_bytes // shape.layers if config.attention == "reference" else 0
    pages = _pages(facts.context_length, config)
    return bound_decode_steps(plan, captures, config.max_running_requests, pages, gathered)


def _facts_that_fit(
    config: EngineConfig, plan: LoadingPlan, adapters: Sequence[LoraFiles], report: Report
) -> CoreFacts:
    """Worked out before anything is allocated. Raises StartupError where the device has less memory than is needed."""
    facts = size_caches(config, plan.checkpoint, plan.dtype)
    shape = _key_value_shape(plan.checkpoint, plan.dtype)
    memory = estimate_memory(plan, facts, shape, adapters, _decode_step_bytes(config, plan, facts, shape))
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


def _pages(tokens: int, config: EngineConfig) -> int:
    return -(-tokens // config.page_size)
