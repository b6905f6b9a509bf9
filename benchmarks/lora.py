"""What LoRA adapters cost: tokens that one core computes in a second with them, against the same core without any.

    decode     a step of eight running requests, one token each
    prefill    a step of one prompt
    used       every request takes an adapter, those of a batch different ones
    loaded     adapters are there, and no request takes one; all but as fast as without any

A random Llama of four layers, adapters of rank 16 on all linear modules. Time is that of the processor core, so that
neighbours on the machine count for little.

    python -m benchmarks.lora [--rounds N] [--json FILE] [--svg FILE]
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.report import Comparison, Runs, machine_facts, machine_line, one_thread, run_benchmark
from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.build import build_engine
from fanlight_engine.core.engine import Engine
from fanlight_engine.core.messages import AddRequest, SamplingParams

USED_BAR, LOADED_BAR = 0.75, 0.95
ROUNDS = 7
PASSES = 4
"""Times that a round goes through all cores; each counts at the best of them, since neighbours only ever add time."""
DECODE_ROWS, DECODE_STEPS = 8, 4
PROMPT_TOKENS = 256
RANK, ADAPTERS = 16, 4
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SHAPE: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
}
CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class LoraBenchmark:
    """What was measured, and where."""

    comparisons: tuple[Comparison, ...]
    machine: dict[str, Any]
    rounds: int

    def text(self) -> str:
        """The result for people."""
        lines = [
            machine_line(self.machine),
            f"{self.rounds} rounds; decode: {DECODE_ROWS} requests; prefill: {PROMPT_TOKENS} tokens; rank {RANK} on "
            f"{len(TARGETS)} modules of a layer",
            f"{'':36} {'with':>8} {'without':>8}",
        ]
        return "\n".join([*lines, *(comparison.line() for comparison in self.comparisons)])

    def facts(self) -> dict[str, Any]:
        """The result for machines."""
        return {
            "machine": self.machine,
            "rounds": self.rounds,
            "comparisons": [comparison.facts() for comparison in self.comparisons],
        }


class Core:
    """A core whose requests take its adapters in turn, or none."""

    def __init__(self, checkpoint: Checkpoint, adapters: dict[str, Path], uses_them: bool) -> None:
        setting = ",".join(f"{name}={path}" for name, path in adapters.items())
        config = EngineConfig(
            torch_threads=1,
            context_length=CONTEXT,
            max_running_requests=DECODE_ROWS,
            max_step_tokens=PROMPT_TOKENS,
            prefix_cache=False,
            lora=setting,
        )
        self._engine: Engine = build_engine(config, checkpoint)
        self._names = list(adapters) if uses_them else [""]
        self._number = 0

    def decode_rate(self) -> float:
        """Tokens per second of processor time while DECODE_ROWS requests decode."""
        ids = [self._add(8) for _ in range(DECODE_ROWS)]
        self._engine.step()  # all prompts fit into one
        seconds = _core_seconds(self._engine.step, DECODE_STEPS)
        self._drop(ids)
        return DECODE_ROWS / seconds

    def prefill_rate(self) -> float:
        """Tokens per second of processor time while a prompt is computed."""
        request_id = self._add(PROMPT_TOKENS)
        seconds = _core_seconds(self._engine.step, 1)
        self._drop([request_id])
        return PROMPT_TOKENS / seconds

    def _add(self, tokens: int) -> str:
        name = self._names[self._number % len(self._names)]
        self._number += 1
        request_id = str(self._number)
        prompt = tuple(10 + (self._number + position) % 2000 for position in range(tokens))
        self._engine.add(AddRequest(request_id, prompt, SamplingParams(max_new_tokens=DECODE_STEPS + 2), lora=name))
        return request_id

    def _drop(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._engine.abort(request_id)


def measure(rounds: int = ROUNDS) -> LoraBenchmark:
    """Measure with one thread; restores torch's number of threads. A minute and a half on an idle processor."""
    with one_thread(), tempfile.TemporaryDirectory() as directory:
        checkpoint, adapters = _make(Path(directory))
        first = dict(list(adapters.items())[:1])
        cores = {
            "none": Core(checkpoint, {}, uses_them=False),
            "1 used": Core(checkpoint, first, uses_them=True),
            f"{ADAPTERS} used": Core(checkpoint, adapters, uses_them=True),
            f"{ADAPTERS} loaded": Core(checkpoint, adapters, uses_them=False),
        }
        figures = _figures(cores, rounds)
        machine = machine_facts(("torch", "transformers", "peft"), torch.get_num_threads())
    comparisons = tuple(
        Comparison(
            f"{work}, {name}",
            "tokens/s",
            USED_BAR if "used" in name else LOADED_BAR,
            Runs(name, tuple(figures[work, name])),
            Runs("without", tuple(figures[work, "none"])),
        )
        for work in ("decode", "prefill")
        for name in list(cores)[1:]
    )
    return LoraBenchmark(comparisons, machine, rounds)


def _figures(cores: dict[str, Core], rounds: int) -> dict[tuple[str, str], list[float]]:
    """Turn about, beginning with another core each time; the first round warms up and is dropped."""
    figures: dict[tuple[str, str], list[float]] = {(work, name): [] for work in ("decode", "prefill") for name in cores}
    for number in range(rounds + 1):
        best = dict.fromkeys(figures, 0.0)
        for turn in range(PASSES):
            for name in _rotated(list(cores), number + turn):
                best["decode", name] = max(best["decode", name], cores[name].decode_rate())
                best["prefill", name] = max(best["prefill", name], cores[name].prefill_rate())
        if number:
            for key, rate in best.items():
                figures[key].append(rate)
    return figures


def _rotated(names: list[str], by: int) -> list[str]:
    return names[by % len(names) :] + names[: by % len(names)]


def _core_seconds(step: Callable[[], object], times: int) -> float:
    """Seconds of the quickest of several calls: what else the machine does only ever adds time."""
    best = math.inf
    for _ in range(times):
        started = time.process_time()
        step()
        best = min(best, time.process_time() - started)
    return best


def _make(directory: Path) -> tuple[Checkpoint, dict[str, Path]]:
    """A checkpoint and adapters of it, all with random weights."""
    base = directory / "base"
    with torch.random.fork_rng():
        torch.manual_seed(1)
        LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(base)
        adapters: dict[str, Path] = {}
        for number in range(ADAPTERS):
            path = directory / f"adapter-{number}"
            config = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=TARGETS, init_lora_weights=False)
            get_peft_model(LlamaForCausalLM.from_pretrained(base), config).save_pretrained(str(path))
            adapters[path.name] = path
    (base / "generation_config.json").write_text(json.dumps({"do_sample": False}), encoding="utf-8")
    return read_checkpoint(base), adapters


if __name__ == "__main__":
    run_benchmark(
        "Tokens per second of one core with LoRA adapters, against without.",
        "Tokens computed by one core with LoRA adapters",
        ROUNDS,
        measure,
    )
