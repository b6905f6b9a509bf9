"""How long somebody waits who asks something short while a prompt of 4,000 tokens is computed.

The real engine steps as its thread does. Some streams decode; the long prompt comes; just when one of its chunks begins
the short request arrives, which is the worst moment, and its first token is waited for. Decode steps of the same
streams, and chunks, are measured in the same round, and the time is told in these.

    limit    3 decode steps + one chunk
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.checkpoints import ORDINARY_IDS
from benchmarks.report import Comparison, Runs
from fanlight_engine.checkpoints.checkpoint import read_checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.build import build_engine
from fanlight_engine.core.engine import Engine
from fanlight_engine.core.messages import AddRequest, Generated, SamplingParams

DECODE_STEPS_ALLOWED = 3
LONG_PROMPT, SHORT_PROMPT = 4_000, 16
STREAMS = 8
DECODE_STEPS_MEASURED = 12
CONTEXT = 6_144


@dataclass(frozen=True, slots=True)
class Wait:
    """One round, in seconds: the short request's wait for its first token, a decode step, and a chunk."""

    first_token: float
    decode_step: float
    chunk: float
    place: int
    """In which chunk of the long prompt the short request came."""

    @property
    def limit(self) -> float:
        """What is allowed."""
        return DECODE_STEPS_ALLOWED * self.decode_step + self.chunk

    @property
    def decode_steps_beside_the_chunk(self) -> float:
        """The wait less the chunk that it fell into, in decode steps."""
        return (self.first_token - self.chunk) / self.decode_step


@dataclass(frozen=True, slots=True)
class ShortRequests:
    """What was measured."""

    waits: tuple[Wait, ...]

    @property
    def comparison(self) -> Comparison:
        """The limit against the wait, as waits that fit into a second; more is better."""
        ours = Runs("first token", tuple(1 / wait.first_token for wait in self.waits))
        theirs = Runs("limit", tuple(1 / wait.limit for wait in self.waits))
        return Comparison(f"short request beside {LONG_PROMPT} tokens", "1/s", 1.0, ours, theirs)

    def text(self) -> str:
        """For people."""
        wait, step, chunk, beside = (
            statistics.median(values)
            for values in zip(
                *(
                    (one.first_token, one.decode_step, one.chunk, one.decode_steps_beside_the_chunk)
                    for one in self.waits
                ),
                strict=True,
            )
        )
        return (
            f"first token after {wait * 1e3:.0f} ms: one chunk ({chunk * 1e3:.0f} ms) and {beside:.1f} decode steps of "
            f"{step * 1e3:.1f} ms, {DECODE_STEPS_ALLOWED} are allowed"
        )


def measure_short_requests(
    model_directory: Path,
    rounds: int = 5,
    threads: int = 2,
    dtype: str = "bfloat16",
    long_prompt: int = LONG_PROMPT,
    ids: range = ORDINARY_IDS,
) -> ShortRequests:
    """Measure a text model, whose context is taken to be long enough: what it says is nobody's concern here.

    `ids` are those that prompts are drawn from.
    """
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = read_checkpoint(_with_context(model_directory, Path(directory), max(CONTEXT, long_prompt + 2048)))
        config = EngineConfig(dtype=dtype, torch_threads=threads, prefix_cache=False, max_running_requests=STREAMS + 2)
        bench = _Bench(build_engine(config, checkpoint), long_prompt, ids)
        bench.wait(0)  # warms up
        chunks = -(-long_prompt // config.max_step_tokens)
        return ShortRequests(tuple(bench.wait(number % max(1, chunks - 1)) for number in range(rounds)))


class _Bench:
    """One engine, and requests with words of their own."""

    def __init__(self, engine: Engine, long_prompt: int, ids: range) -> None:
        self._engine = engine
        self._long_prompt = long_prompt
        self._ids = ids
        self._words = random.Random(1)
        self._number = 0

    def wait(self, place: int) -> Wait:
        """One round, in which the short request comes when chunk number `place` begins."""
        streams = [self._add(SHORT_PROMPT, 1_000) for _ in range(STREAMS)]
        self._engine.step()
        decode_step = statistics.median(self._step()[0] for _ in range(DECODE_STEPS_MEASURED))
        long = self._add(self._long_prompt, 2)
        for _ in range(place):
            self._step()
        begun = time.perf_counter()
        chunk, _ = self._step()
        short = self._add(SHORT_PROMPT, 2)
        while short not in self._step()[1]:
            pass
        first_token = time.perf_counter() - begun
        for request_id in (*streams, long, short):
            self._engine.abort(request_id)
        return Wait(first_token, decode_step, chunk, place)

    def _step(self) -> tuple[float, set[str]]:
        """Its seconds, and whose tokens came."""
        begun = time.perf_counter()
        messages = self._engine.step()
        seconds = time.perf_counter() - begun
        return seconds, {message.request_id for message in messages if isinstance(message, Generated)}

    def _add(self, tokens: int, new_tokens: int) -> str:
        self._number += 1
        prompt = tuple(self._words.choices(self._ids, k=tokens))
        self._engine.add(AddRequest(str(self._number), prompt, SamplingParams(new_tokens)))
        return str(self._number)


def _with_context(model_directory: Path, directory: Path, context: int) -> Path:
    """The same checkpoint with another context in its config.json; the other files are links."""
    for file in model_directory.iterdir():
        if file.name != "config.json":
            (directory / file.name).symlink_to(file.resolve())
    config = json.loads((model_directory / "config.json").read_text(encoding="utf-8"))
    config["max_position_embeddings"] = max(context, config["max_position_embeddings"])
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory
