"""What a step costs the host: everything in Engine.step but the model's forward and sampling, which are left out.

What is left is planning, packing, rows of sampling parameters, loading them into the step's buffers, reading what was
sampled, page books, and the messages that say so; detokenisation is the front's and no part of it. 256 requests decode,
each with sampling parameters and a prompt of its own, and every step writes a token of each. Time is that of the one
thread that steps, so that neighbours on the machine count for little. A pass is as many steps as a page has tokens, so
that each fills one page of every request.

    limit    milliseconds of host time per step, the mean of a pass
    flat     the same with longer prompts takes no more, within 15 %

    python -m benchmarks.scheduler [--rounds N] [--json FILE] [--svg FILE]
"""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.report import Comparison, Runs, machine_facts, machine_line, one_thread, run_benchmark
from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.build import build_engine
from fanlight_engine.core.engine import Engine
from fanlight_engine.core.messages import AddRequest, SamplingParams

LIMIT_MILLISECONDS = 1.5
FLAT_BAR = 0.85
ROUNDS = 7
PASSES = 12
"""Passes of a round; the quickest counts, since neighbours only ever add time."""
RUNNING = 256
PROMPTS = (64, 1_024, 8_000)
PAGE_SIZE = 16
VOCABULARY = 64
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1 << 16,
}


@dataclass(frozen=True, slots=True)
class StepParts:
    """Where the host time of a step goes with one prompt length, in milliseconds, largest first; and its slowest step,
    which is the one that fills a page of every request."""

    prompt_tokens: int
    parts: tuple[tuple[str, float], ...]
    slowest_step: float


@dataclass(frozen=True, slots=True)
class SchedulerBenchmark:
    """What was measured, and where. Comparisons are of steps per second of host time."""

    comparisons: tuple[Comparison, ...]
    milliseconds: tuple[tuple[int, float], ...]
    """Host time per step by prompt tokens, medians."""
    parts: tuple[StepParts, ...]
    machine: dict[str, Any]
    rounds: int
    running: int

    def text(self) -> str:
        """The result for people."""
        lines = [machine_line(self.machine), f"{self.rounds} rounds, {self.running} requests decode"]
        for prompt, milliseconds in self.milliseconds:
            share = milliseconds / LIMIT_MILLISECONDS
            lines.append(
                f"prompts of {prompt:5} tokens: {milliseconds:.3f} ms of host time per step, {share:.0%} of the limit"
            )
        for one in self.parts:
            told = ", ".join(f"{name} {milliseconds:.3f}" for name, milliseconds in one.parts)
            lines.append(f"prompts of {one.prompt_tokens:5} tokens: {told}; slowest step {one.slowest_step:.3f}")
        return "\n".join([*lines, *(comparison.line() for comparison in self.comparisons)])

    def facts(self) -> dict[str, Any]:
        """The result for machines."""
        return {
            "machine": self.machine,
            "rounds": self.rounds,
            "running": self.running,
            "limit_milliseconds": LIMIT_MILLISECONDS,
            "milliseconds": {str(prompt): milliseconds for prompt, milliseconds in self.milliseconds},
            "parts": {str(one.prompt_tokens): dict(one.parts) for one in self.parts},
            "slowest_step": {str(one.prompt_tokens): one.slowest_step for one in self.parts},
            "comparisons": [comparison.facts() for comparison in self.comparisons],
        }


class HostCore:
    """A core whose device does nothing, with all its requests decoding."""

    def __init__(self, checkpoint: Checkpoint, running: int, prompt_tokens: int, new_tokens: int) -> None:
        context = prompt_tokens + new_tokens
        config = EngineConfig(
            torch_threads=1,
            context_length=context,
            page_size=PAGE_SIZE,
            kv_pages=running * (-(-context // PAGE_SIZE) + 1) + 1,
            max_running_requests=running,
            max_waiting_requests=running,
            max_step_tokens=1 << 20,
            attention="reference",
            cpu_kernels=False,
        )
        self.engine: Engine = build_engine(config, checkpoint)
        self.prompt_tokens = prompt_tokens
        _leave_device_out(self.engine)
        words = random.Random(prompt_tokens)
        for number in range(running):
            prompt = tuple(words.choices(range(VOCABULARY), k=prompt_tokens))
            sampling = SamplingParams(new_tokens, temperature=0.8, top_p=0.95, seed=number, end_ids=(VOCABULARY - 1,))
            self.engine.add(AddRequest(str(number), prompt, sampling))
        while self.engine.statistics().decode_steps < PAGE_SIZE:
            self.engine.step()

    def milliseconds_of_passes(self) -> float:
        """Host milliseconds per step of the quickest of several passes."""
        best = math.inf
        for _ in range(PASSES):
            begun = time.thread_time()
            for _ in range(PAGE_SIZE):
                self.engine.step()
            best = min(best, (time.thread_time() - begun) / PAGE_SIZE)
        return best * 1e3

    def parts(self) -> StepParts:
        """One pass with a clock around each part, which adds a little to each."""
        runner, scheduler, steps = self.engine._runner, self.engine._scheduler, self.engine._steps
        clocks = [
            _Clock("schedule", scheduler, "schedule"),
            _Clock("launch", runner, "launch"),
            _Clock("sampling rows", runner._sampling, "rows_of", inside="launch"),
            _Clock("pack", runner._decode_rows, "pack", inside="launch"),
            _Clock("load", runner._decode_step, "load", inside="launch"),
            _Clock("read", steps, "finish"),
            _Clock("postprocess", self.engine, "_postprocess"),
        ]
        seconds = []
        for _ in range(PAGE_SIZE):
            begun = time.thread_time()
            self.engine.step()
            seconds.append(time.thread_time() - begun)
        for clock in clocks:
            clock.restore()
        found = {clock.name: clock.seconds for clock in clocks}
        found["rest of the step"] = sum(seconds) - sum(clock.seconds for clock in clocks if not clock.inside)
        for clock in clocks:
            if clock.inside:
                found[clock.inside] -= clock.seconds
        found["rest of launch"] = found.pop("launch")
        ordered = sorted(found.items(), key=lambda one: -one[1])
        parts = tuple((name, total / PAGE_SIZE * 1e3) for name, total in ordered)
        return StepParts(self.prompt_tokens, parts, max(seconds) * 1e3)


class _Clock:
    """Adds up the time that one method of one object takes."""

    def __init__(self, name: str, owner: Any, method: str, inside: str = "") -> None:
        self.name = name
        self.inside = inside
        self.seconds = 0.0
        self._owner = owner
        self._method = method
        timed: Callable[..., Any] = getattr(owner, method)

        def clocked(*arguments: Any, **named: Any) -> Any:
            begun = time.thread_time()
            try:
                return timed(*arguments, **named)
            finally:
                self.seconds += time.thread_time() - begun

        setattr(owner, method, clocked)

    def restore(self) -> None:
        """The method as it was."""
        delattr(self._owner, self._method)


def measure(rounds: int = ROUNDS, running: int = RUNNING, prompts: Sequence[int] = PROMPTS) -> SchedulerBenchmark:
    """Measure with one thread; restores torch's number of threads. A quarter of a minute on an idle processor."""
    steps = PAGE_SIZE * (PASSES * (rounds + 1) + 4)
    with one_thread(), tempfile.TemporaryDirectory() as directory:
        checkpoint = _make(Path(directory))
        cores = [HostCore(checkpoint, running, prompt, steps) for prompt in prompts]
        figures: dict[int, list[float]] = {prompt: [] for prompt in prompts}
        for number in range(rounds + 1):  # the first one warms up
            for core in cores:
                milliseconds = core.milliseconds_of_passes()
                if number:
                    figures[core.prompt_tokens].append(milliseconds)
        parts = tuple(core.parts() for core in cores)
        machine = machine_facts(("torch", "numpy", "msgspec"), torch.get_num_threads())
    rates = {
        prompt: Runs(f"prompts of {prompt} tokens", tuple(1e3 / one for one in milliseconds))
        for prompt, milliseconds in figures.items()
    }
    return SchedulerBenchmark(
        comparisons=_comparisons(rates, rounds),
        milliseconds=tuple((prompt, 1e3 / rates[prompt].median) for prompt in prompts),
        parts=parts,
        machine=machine,
        rounds=rounds,
        running=running,
    )


def _comparisons(rates: dict[int, Runs], rounds: int) -> tuple[Comparison, ...]:
    limit = Runs("the limit", (1e3 / LIMIT_MILLISECONDS,) * rounds)
    shortest = rates[min(rates)]
    against_limit = [Comparison(f"limit, {one.name}", "steps/s", 1.0, one, limit) for one in rates.values()]
    flat = [
        Comparison(f"flat, {one.name}", "steps/s", FLAT_BAR, one, shortest)
        for one in rates.values()
        if one is not shortest
    ]
    return (*against_limit, *flat)


def _leave_device_out(engine: Engine) -> None:
    """The model gives its input back, and decode steps neither run nor sample: their ids stay what they are, zeros."""
    runner: Any = engine._runner
    runner._adapter.decode = lambda embeddings, positions, batch, layer_features=(): embeddings
    runner._adapter.logits = lambda hidden: torch.zeros(len(hidden), VOCABULARY)
    runner.decode_graphs.forward = lambda bucket: None
    runner.decode_graphs.sample = lambda bucket, mode: None


def _make(directory: Path) -> Checkpoint:
    """A checkpoint that is all but nothing."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(directory)
    return read_checkpoint(directory)


if __name__ == "__main__":
    run_benchmark(
        f"Host time of a step at {RUNNING} running requests, without the model.",
        "Steps per second of host time",
        ROUNDS,
        measure,
    )
