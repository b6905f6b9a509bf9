"""What each setting is worth: decode steps with it against decode steps without it, turn about in one process.

Graphs, async scheduling, the attention backends, deterministic mode and pages of 256 tokens, on the 1B shape, where the
host has least time to hide behind the device.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.cores import Core, build_core, free_memory
from benchmarks.gpu.decode import random_model
from benchmarks.gpu.models import ONE_BILLION, TINY
from benchmarks.gpu.workbench import Workbench
from benchmarks.report import Comparison, Runs
from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.errors import ConfigError

ROUNDS = 5
REQUESTS, STEPS = (1, 64), 16
PROMPT, CONTEXT = 256, 640
TINY_REQUESTS, TINY_STEPS, TINY_PROMPT, TINY_CONTEXT = (3,), 1, 16, 96
SECONDS_FOR_ONE = 6.0
"""A switch is not begun with less time than this."""


@dataclass(frozen=True, slots=True)
class Switch:
    """Two ways to run, of which the first is meant to be the faster one; `bar` is the ratio aimed at, 0 for none."""

    name: str
    on: dict[str, Any] = field(default_factory=dict)
    off: dict[str, Any] = field(default_factory=dict)
    bar: float = 0.0


SWITCHES = (
    Switch("graphs / none", off={"graphs": False}, bar=1.0),
    Switch("async / synchronous", off={"async_scheduling": False}, bar=1.0),
    Switch("triton / reference", {"attention": "triton"}, {"attention": "reference"}, bar=1.0),
    Switch("flash / triton", {"attention": "flash", "page_size": 256}, {"attention": "triton", "page_size": 256}),
    Switch("any answer / deterministic", off={"deterministic": True}),
    Switch("pages of 16 / of 256", {"page_size": 16}, {"page_size": 256}),
    Switch("all / neither graphs nor async", off={"graphs": False, "async_scheduling": False}, bar=1.0),
)


def measure(workbench: Workbench) -> None:
    """The section. A switch that cannot be had here is noted; one that fails does not stop the others."""
    shape = TINY if workbench.is_tiny else ONE_BILLION
    with tempfile.TemporaryDirectory() as directory:
        checkpoint, model = random_model(shape, Path(directory), workbench.device)
        for switch in SWITCHES:
            if workbench.seconds_left < SECONDS_FOR_ONE:
                workbench.note(f"{switch.name}: not measured, the time of this section was used up")
                continue
            try:
                with workbench.going_on(switch.name, unless=ConfigError):
                    _measure_switch(workbench, switch, checkpoint, model)
            except ConfigError as error:
                workbench.note(f"{switch.name}: not measurable here, {error}")
            free_memory(torch.device(workbench.device))


def _measure_switch(workbench: Workbench, switch: Switch, checkpoint: Checkpoint, model: Any) -> None:
    asked, context = (REQUESTS, CONTEXT) if not workbench.is_tiny else (TINY_REQUESTS, TINY_CONTEXT)
    cores = {
        name: build_core(checkpoint, workbench.device, model, max(asked), context, **settings)
        for name, settings in (("on", switch.on), ("off", switch.off))
    }
    on_name, _, off_name = switch.name.partition(" / ")
    for requests in asked:
        rates = _rates(cores, requests, workbench.is_tiny)
        comparison = Comparison(
            f"{switch.name}, {requests} requests",
            "tokens/s",
            switch.bar,
            Runs(on_name, rates["on"]),
            Runs(off_name, rates["off"]),
            gates=switch.bar > 0,
        )
        workbench.record_comparison(comparison.facts())


def _rates(cores: dict[str, Core], requests: int, is_tiny: bool) -> dict[str, tuple[float, ...]]:
    """Tokens per second, round by round; the first to go changes with the round, and a round before all warms up."""
    steps, prompt = (TINY_STEPS, TINY_PROMPT) if is_tiny else (STEPS, PROMPT)
    for core in cores.values():
        core.begin(requests, prompt)
        core.round(steps)
    rates: dict[str, list[float]] = {name: [] for name in cores}
    for number in range(ROUNDS):
        for name in list(cores) if number % 2 else reversed(list(cores)):
            rates[name].append(requests / cores[name].round(steps))
    for core in cores.values():
        core.end()
    return {name: tuple(found) for name, found in rates.items()}
