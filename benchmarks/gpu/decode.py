"""Decode steps of random models: tokens per second, and their share of what the memory allows.

A step must read all weights and the keys and values of every request. That many bytes over the bandwidth of a copy,
measured in the same process, is the least time it could take. A profile of two loads follows, so that what is in the
way shows without another run.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.ceilings import bandwidth
from benchmarks.gpu.cores import Core, Load, build_core
from benchmarks.gpu.models import (
    EIGHT_BILLION,
    ONE_BILLION,
    TINY,
    Shape,
    draw_weights,
    make_checkpoint,
    weight_bytes_of_a_step,
)
from benchmarks.gpu.step_profile import profile_steps
from benchmarks.gpu.workbench import Workbench
from benchmarks.report import Comparison, Runs
from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.model.kv_cache import KeyValueShape
from fanlight_engine.model.loading.loader import plan_loading

BARS = {1: 0.70, 64: 0.50}
"""Requests, and the share of the bandwidth limit that is aimed at."""
LOADS = (Load(1, 256, 40, 5), Load(64, 256, 20, 5), Load(8, 256, 20, 5), Load(256, 256, 10, 5))
TINY_LOADS = (Load(1, 16, 2, 5), Load(4, 16, 2, 5))
CONTEXT, TINY_CONTEXT = 640, 96
LADDER: tuple[dict[str, Any], ...] = (
    {},
    {"graphs": False},
    {"graphs": False, "async_scheduling": False, "attention": "reference"},
)
"""Settings to decode with, the best first; the others only where those before them fail, so that something is known."""
PROFILED, PROFILED_STEPS = (1, 64), 5


def measure_1b(workbench: Workbench) -> None:
    """The section of the 1B shape."""
    _measure(workbench, ONE_BILLION)


def measure_8b(workbench: Workbench) -> None:
    """The section of the 8B shape."""
    _measure(workbench, EIGHT_BILLION)


def random_model(shape: Shape, directory: Path, device: str) -> tuple[Checkpoint, Any]:
    """A checkpoint in the directory, and its model with weights drawn on the device, made ready for a core."""
    checkpoint = make_checkpoint(shape, directory)
    with torch.no_grad():
        return checkpoint, draw_weights(plan_loading(checkpoint, torch.device(device), torch.bfloat16))


def _measure(workbench: Workbench, shape: Shape) -> None:
    shape, loads, context = (shape, LOADS, CONTEXT) if not workbench.is_tiny else (TINY, TINY_LOADS, TINY_CONTEXT)
    device = torch.device(workbench.device)
    limit = bandwidth(device, workbench.is_tiny)
    with tempfile.TemporaryDirectory() as directory:
        checkpoint, model = random_model(shape, Path(directory), workbench.device)
        workbench.record(shape=shape.name, weight_bytes_of_a_step=weight_bytes_of_a_step(model))
        core = _core(workbench, checkpoint, model, max(load.requests for load in loads), context)
        least = _LeastSeconds(model, limit)
        for load in loads:
            workbench.record_comparison(_decoded(core, load, shape, least).facts())
            _record_graphs(workbench, core)
        profiled = PROFILED if not workbench.is_tiny else (loads[0].requests,)
        for requests in profiled:
            core.begin(requests, loads[0].prompt_tokens)
            profile_steps(workbench, core, f"{shape.name}, {requests} requests", PROFILED_STEPS)
        core.end()


def _core(workbench: Workbench, checkpoint: Checkpoint, model: Any, requests: int, context: int) -> Core:
    """The first of the ladder that builds and decodes a few tokens."""
    for rung, settings in enumerate(LADDER):
        begun = time.monotonic()
        try:
            core = build_core(checkpoint, workbench.device, model, requests, context, **settings)
            core.begin(1, 16)
            core.round(3)
            core.end()
        except Exception:  # the next rung leaves out what may have failed; something must be known even so
            workbench.note_failure(f"decoding with {settings or 'default settings'}")
            if rung + 1 == len(LADDER):
                raise
        else:
            workbench.record(settings=settings, build_seconds=round(time.monotonic() - begun, 1), reports=core.reports)
            workbench.record(memory=_memory(core, torch.device(workbench.device)))
            return core
    raise AssertionError("the ladder has rungs")


def _memory(core: Core, device: torch.device) -> dict[str, float]:
    """Gibibytes that were worked out before anything was allocated, and what the device then had given."""
    accounted = core.engine.facts.memory
    found = {"accounted": accounted.total_bytes, "accounted for graphs": accounted.decode_step_bytes}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        found |= {"allocated": torch.cuda.memory_allocated(device), "most": torch.cuda.max_memory_reserved(device)}
        found |= {"reserved": torch.cuda.memory_reserved(device), "taken on the device": total - free}
    return {name: round(count / (1 << 30), 3) for name, count in found.items()}


class _LeastSeconds:
    """The shortest time of a step, by what it must read."""

    def __init__(self, model: Any, bytes_per_second: float) -> None:
        self._weights = weight_bytes_of_a_step(model)
        self._token_bytes = KeyValueShape.of(model.config.get_text_config(), model.dtype).token_bytes
        self._rate = bytes_per_second

    def of(self, requests: int, context: float) -> float:
        """With so many requests of so many tokens each."""
        return (self._weights + requests * context * self._token_bytes) / self._rate


def _decoded(core: Core, load: Load, shape: Shape, least: _LeastSeconds) -> Comparison:
    core.begin(load.requests, load.prompt_tokens)
    core.round(load.steps)  # warms up
    rates, limits = [], []
    for _ in range(load.rounds):
        context = core.context() + load.steps / 2
        rates.append(load.requests / core.round(load.steps))
        limits.append(load.requests / least.of(load.requests, context))
    core.end()
    return Comparison(
        f"{shape.name}, {load.requests} requests",
        "tokens/s",
        BARS.get(load.requests, 0.0),
        Runs("fanlight", tuple(rates)),
        Runs("bandwidth limit", tuple(limits)),
        gates=load.requests in BARS,
    )


def _record_graphs(workbench: Workbench, core: Core) -> None:
    """How many steps went through a graph: a share that was reached without one would not be what it seems."""
    workbench.record(graphs=asdict(core.engine._runner.decode_graphs.counters))
