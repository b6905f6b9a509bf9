"""What the setting `deterministic` promises, and what it costs.

promise    one request, answered a thousand times in random batches: with neighbours of all lengths, arriving at any
           step, its prompt cut anywhere. Its tokens and their log-probabilities, bit for bit, must be one answer.
           How many answers there are without the setting is printed beside it.
cost       decode tokens per second with the setting against without, in the reference case of `cpu`

python -m benchmarks.deterministic [--runs N] [--rounds N] [--threads N] [--json FILE] [--svg FILE]
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.checkpoints import language_model
from benchmarks.cpu import UNIT, even_batches
from benchmarks.peers.process import Batch, BatchFigures
from benchmarks.peers.workers.run_fanlight import Fanlight
from benchmarks.report import (
    Comparison,
    Runs,
    benchmark_parser,
    checked_rounds,
    deliver,
    machine_facts,
    machine_line,
)
from benchmarks.rounds import take_turns
from fanlight_engine.checkpoints.checkpoint import read_checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.build import build_engine
from fanlight_engine.core.engine import Engine
from fanlight_engine.core.messages import AddRequest, Generated, Rejected, SamplingParams

RUNS, RUNS_WITHOUT = 1000, 200
ROUNDS, PASSES, THREADS = 5, 2, 2
LOADS = (1, 8, 16)
COST_GOAL = 0.5
"""Part of the speed that the setting may leave: not a bar, the figure is what matters."""
PROMPT_TOKENS, NEW_TOKENS = 150, 24
MOST_REQUESTS, LATEST_ARRIVAL = 24, 12
LONGEST_PROMPT, LONGEST_ANSWER = 300, 40
MAX_STEP_TOKENS = 256
"""Less than the longest prompt, so that prompts are cut where their neighbours leave room."""
SHAPE: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
WITH, WITHOUT = "deterministic", "as it is by default"

Answer = tuple[tuple[int, ...], tuple[float, ...]]
"""Ids and log-probabilities."""


@dataclass(frozen=True, slots=True)
class Promise:
    """How many different answers one request got in so many runs."""

    runs: int
    answers: int

    @property
    def holds(self) -> bool:
        """Whether all were the same."""
        return self.answers == 1


@dataclass(frozen=True, slots=True)
class DeterministicBenchmark:
    """What was measured, and where."""

    promise: Promise
    without: Promise
    comparisons: tuple[Comparison, ...]
    machine: dict[str, Any]
    rounds: int

    def text(self) -> str:
        """The result for people."""
        lines = [
            machine_line(self.machine),
            f"{WITH}: {self.promise.answers} different answers in {self.promise.runs} runs (bar 1)",
            f"{WITHOUT}: {self.without.answers} different answers in {self.without.runs} runs",
            f"{self.rounds} rounds\n{'':36} {'with':>8} {'without':>8}",
        ]
        return "\n".join([*lines, *(comparison.line() for comparison in self.comparisons)])

    def facts(self) -> dict[str, Any]:
        """The result for machines."""
        return {
            "machine": self.machine,
            "rounds": self.rounds,
            "runs": self.promise.runs,
            "different_answers": self.promise.answers,
            "different_answers_without": [self.without.answers, self.without.runs],
            "comparisons": [comparison.facts() for comparison in self.comparisons],
        }


def measure(rounds: int = ROUNDS, runs: int = RUNS, threads: int = THREADS) -> DeterministicBenchmark:
    """Measure both. About three minutes."""
    torch.set_num_threads(threads)
    promise = answers_in_random_batches(runs, threads, deterministic=True)
    without = answers_in_random_batches(min(runs, RUNS_WITHOUT), threads, deterministic=False)
    machine = machine_facts(("torch",), threads)
    return DeterministicBenchmark(promise, without, tuple(_costs(rounds, threads)), machine, rounds)


def answers_in_random_batches(runs: int, threads: int, deterministic: bool) -> Promise:
    """Answer one request at least so many times, each time among others."""
    with tempfile.TemporaryDirectory() as directory:
        _write_checkpoint(Path(directory))
        config = EngineConfig(
            dtype="bfloat16",
            torch_threads=threads,
            deterministic=deterministic,
            max_running_requests=MOST_REQUESTS,
            max_step_tokens=MAX_STEP_TOKENS,
            prefix_cache=False,
        )
        engine = build_engine(config, read_checkpoint(directory))
        source = random.Random(0)
        target = _words(source, PROMPT_TOKENS)
        answers: list[Answer] = []
        while len(answers) < runs:
            answers += _answer_batch(engine, list(_random_batch(source, target)))
    return Promise(len(answers), len(set(answers)))


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A request, the step before which it comes, and whether it is the one whose answers are compared."""

    step: int
    request: AddRequest
    is_target: bool


def _random_batch(source: random.Random, target: tuple[int, ...]) -> Iterator[_Arrival]:
    """The target at least once; everything else about the batch is drawn."""
    for number in range(source.randint(1, MOST_REQUESTS)):
        is_target = number == 0 or source.random() < 0.3
        if is_target:
            prompt, sampling = target, SamplingParams(max_new_tokens=NEW_TOKENS, logprobs=True)
        else:
            prompt = _words(source, source.randint(1, LONGEST_PROMPT))
            temperature = source.choice((0.0, 0.7, 1.3))
            length = source.randint(1, LONGEST_ANSWER)
            sampling = SamplingParams(max_new_tokens=length, temperature=temperature, seed=number, logprobs=True)
        yield _Arrival(source.randint(0, LATEST_ARRIVAL), AddRequest(str(number), prompt, sampling), is_target)


def _answer_batch(engine: Engine, arrivals: Sequence[_Arrival]) -> list[Answer]:
    """The answers to the target. Raises ValueError where a request is refused."""
    ids: dict[str, list[int]] = {one.request.request_id: [] for one in arrivals}
    logprobs: dict[str, list[float]] = {one.request.request_id: [] for one in arrivals}
    step = 0
    while engine.has_work or step <= LATEST_ARRIVAL:
        for one in arrivals:
            if one.step == step:
                _refuse_rejected(engine.add(one.request))
        for message in engine.step():
            _refuse_rejected(message)
            if isinstance(message, Generated):
                ids[message.request_id] += message.token_ids
                logprobs[message.request_id] += message.logprobs
        step += 1
    targets = [one.request.request_id for one in arrivals if one.is_target]
    return [(tuple(ids[name]), tuple(logprobs[name])) for name in targets]


def _costs(rounds: int, threads: int) -> Iterator[Comparison]:
    checkpoint = str(language_model())
    engines = {
        WITH: Fanlight(checkpoint, threads, deterministic=True),
        WITHOUT: Fanlight(checkpoint, threads),
    }
    for load in LOADS:
        contenders = {name: partial(_decode_rate, engine, even_batches(load)) for name, engine in engines.items()}
        figures = take_turns(contenders, rounds, PASSES)
        sides = (Runs(name, figures[name, UNIT]) for name in (WITH, WITHOUT))
        yield Comparison(f"decode, {load} requests", UNIT, COST_GOAL, *sides, gates=False)


def _decode_rate(engine: Fanlight, batches: Iterator[Batch]) -> dict[str, float]:
    batch = next(batches)
    order = {"prompts": batch.prompts, "new_tokens": batch.new_tokens}
    return {UNIT: BatchFigures(**engine.run(order)).decode_rate}


def _refuse_rejected(message: object) -> None:
    if isinstance(message, Rejected):
        raise ValueError(f"the engine refused a request: {message.description}")


def _words(source: random.Random, count: int) -> tuple[int, ...]:
    return tuple(source.choices(range(SHAPE["vocab_size"]), k=count))


def _write_checkpoint(directory: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model: Any = LlamaForCausalLM(LlamaConfig(**SHAPE))
        model.to(torch.bfloat16).save_pretrained(directory)
    (directory / "generation_config.json").write_text(json.dumps({"do_sample": False}), encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = benchmark_parser("One answer in random batches, and what that costs.", ROUNDS)
    parser.add_argument("--runs", type=int, default=RUNS, help="times that the request is answered")
    parser.add_argument("--threads", type=int, default=THREADS, help="threads of the engine")
    arguments = parser.parse_args()
    result = measure(checked_rounds(arguments.rounds), arguments.runs, arguments.threads)
    deliver(result, "Decoding with the setting deterministic, and without", arguments)


if __name__ == "__main__":
    main()
