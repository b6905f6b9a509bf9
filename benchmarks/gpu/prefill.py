"""Prompts: tokens per second of steps that only prefill, and their share of the card's matrix rate.

A token takes two operations per weight that it meets; attention comes on top and is not counted, so the share is a
lower bound that falls with the context.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.ceilings import matrix_rate
from benchmarks.gpu.cores import Core, build_core, free_memory
from benchmarks.gpu.decode import random_model
from benchmarks.gpu.models import EIGHT_BILLION, ONE_BILLION, TINY, Shape, parameters
from benchmarks.gpu.workbench import Workbench
from benchmarks.report import Comparison, Runs

PROMPTS, TINY_PROMPTS = ((8, 1024), (1, 8192)), ((2, 24),)
"""Requests of a step, and tokens of each prompt."""
ROUNDS = 5
ROOM = 32
"""Tokens of context beside the prompt."""


def measure(workbench: Workbench) -> None:
    """The section: both shapes, one after the other."""
    rate = matrix_rate(torch.device(workbench.device), workbench.is_tiny)
    workbench.record(matrix_tflops=round(rate / 1e12, 1))
    for shape in (TINY,) if workbench.is_tiny else (ONE_BILLION, EIGHT_BILLION):
        with workbench.going_on(f"prefill of {shape.name}"):
            _measure_shape(workbench, shape, rate)
        free_memory(torch.device(workbench.device))


def _measure_shape(workbench: Workbench, shape: Shape, rate: float) -> None:
    prompts = TINY_PROMPTS if workbench.is_tiny else PROMPTS
    with tempfile.TemporaryDirectory() as directory:
        checkpoint, model = random_model(shape, Path(directory), workbench.device)
        core = build_core(
            checkpoint,
            workbench.device,
            model,
            requests=max(requests for requests, _ in prompts),
            context=max(tokens for _, tokens in prompts) + ROOM,
            max_step_tokens=max(requests * tokens for requests, tokens in prompts),
            graphs=False,
        )
        for requests, tokens in prompts:
            workbench.record_comparison(_prefilled(core, shape, model, requests, tokens, rate).facts())


def _prefilled(core: Core, shape: Shape, model: Any, requests: int, tokens: int, rate: float) -> Comparison:
    """Every round has new prompts; the first one warms up. Seconds are until all have their first token."""
    rates = [requests * tokens / core.begin(requests, tokens) for _ in range(1 + ROUNDS)][1:]
    core.end()
    limit = rate / (2 * parameters(model))
    return Comparison(
        f"{shape.name}, prompts of {requests} x {tokens}",
        "tokens/s",
        0.0,
        Runs("fanlight", tuple(rates)),
        Runs("matrix limit", (limit,) * ROUNDS),
        gates=False,
    )
