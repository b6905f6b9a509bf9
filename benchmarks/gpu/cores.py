"""Cores over random models, and requests that decode in them: what is timed is `engine.step()`, as a server calls it.

A round is a number of steps with the same requests running; nobody begins and nobody ends in it.
"""

from __future__ import annotations

import gc
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.build import build_engine
from fanlight_engine.core.engine import Engine
from fanlight_engine.core.messages import AddRequest, Generated, Rejected, SamplingParams

PAGE_SIZE = 16
MAY_TAKE_SECONDS = 60.0
"""A step loop that gives no token for so long has come to a stand."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that decode together, and how they are timed."""

    requests: int
    prompt_tokens: int
    steps: int
    rounds: int


@dataclass(slots=True)
class Core:
    """An engine, and the requests that run in it."""

    engine: Engine
    reports: list[str]
    """What building it said: attention, memory, graphs."""
    vocabulary: int
    _numbers: int = 0
    _running: list[str] = field(default_factory=list)
    _rng: random.Random = field(default_factory=lambda: random.Random(5))

    def begin(self, requests: int, prompt_tokens: int) -> float:
        """Have exactly so many requests decode, each with a prompt of its own; seconds until all had a token."""
        self.end()
        most = self.engine.facts.context_length - prompt_tokens
        begun = time.perf_counter()
        for _ in range(requests):
            self._numbers += 1
            prompt = tuple(self._rng.choices(range(self.vocabulary), k=prompt_tokens))
            answer = self.engine.add(AddRequest(str(self._numbers), prompt, SamplingParams(max_new_tokens=most)))
            if isinstance(answer, Rejected):
                raise RuntimeError(f"the core refuses a request: {answer.description}")
            self._running.append(answer.request_id)
        waited_for = set(self._running)
        while waited_for:
            waited_for -= {message.request_id for message in self._step()}
            self._refuse_standstill(begun)
        return time.perf_counter() - begun

    def round(self, steps: int) -> float:
        """Seconds of one step, over so many with the running requests."""
        tokens, begun = 0, time.perf_counter()
        for _ in range(steps):
            tokens += sum(len(one.token_ids) for one in self._step())
        seconds = time.perf_counter() - begun
        if tokens != steps * len(self._running):
            raise RuntimeError(f"{steps} steps of {len(self._running)} requests gave {tokens} tokens")
        return seconds / steps

    def context(self) -> int:
        """Tokens of one running request, as many as its next step reads keys of."""
        return max(sequence.length for sequence in self.engine._sequences.values())

    def end(self) -> None:
        """Drop all requests, and let a step that is under way come to its end."""
        for request_id in self._running:
            self.engine.abort(request_id)
        self._running.clear()
        begun = time.perf_counter()
        while self.engine.has_work:
            self.engine.step()
            self._refuse_standstill(begun)

    def _step(self) -> list[Generated]:
        """A failed step ends its requests and is told in the log; nothing can be measured with it."""
        messages = self.engine.step()
        failed = [one for one in messages if isinstance(one, Rejected)]
        if failed:
            raise RuntimeError(f"{len(failed)} requests failed in a step: {failed[0].description}")
        return [one for one in messages if isinstance(one, Generated)]

    @staticmethod
    def _refuse_standstill(begun: float) -> None:
        if time.perf_counter() - begun > MAY_TAKE_SECONDS:
            raise RuntimeError(f"no request got through in {MAY_TAKE_SECONDS:.0f} s of steps")


def build_core(checkpoint: Checkpoint, device: str, model: Any, requests: int, context: int, **settings: Any) -> Core:
    """A core over a model that is made ready, with room for so many requests of so long a context."""
    page_size = settings.setdefault("page_size", PAGE_SIZE)
    pages = 1 + requests * -(-context // page_size)
    defaults: dict[str, Any] = {
        "dtype": str(model.dtype).removeprefix("torch."),
        "prefix_cache": False,
        "max_step_tokens": max(8192, requests),
    }
    config = EngineConfig(
        device=device,
        context_length=context,
        max_running_requests=requests,
        kv_pages=pages,
        **(defaults | settings),
    )
    reports: list[str] = []
    engine = build_engine(config, checkpoint, reports.append, load=lambda plan, report: model)
    return Core(engine, reports, checkpoint.vocab_size)


def free_memory(device: torch.device) -> None:
    """Give back what cores that nobody holds any more had taken."""
    gc.collect()
    if device.type == "cuda":
        with suppress(RuntimeError):  # a device that has failed is told by whoever uses it next
            torch.cuda.empty_cache()
