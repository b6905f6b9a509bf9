"""What all workers share: orders come in as lines of JSON, figures go out so, and token times become figures.

    {"do": "load", "checkpoint": "...", "threads": 2}                     -> {"ok": {what was loaded}}
    {"do": "run", "prompts": [[ids], ...], "new_tokens": [48, ...]}       -> {"ok": {figures}}
    {"do": "quit"}

Whatever a library prints goes to standard error, so that it cannot be mistaken for an answer. A worker waits for its
next order without computing. Knows no engine.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Worker(Protocol):
    """An engine with a checkpoint loaded."""

    def facts(self) -> dict[str, Any]:
        """Versions and the settings that matter."""
        ...

    def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """Answer the batch of the order, greedily and without regard to end tokens; its figures."""
        ...


Loader = Callable[[str, int], Worker]
"""Checkpoint directory and threads to compute with."""


def serve(load: Loader) -> None:
    """Take orders until told to quit, or until whoever orders has gone."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker: Worker | None = None
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "quit":
            break
        try:
            if order["do"] == "load":
                worker = load(order["checkpoint"], order["threads"])
                answer = {"ok": worker.facts()}
            else:
                assert worker is not None, "load comes first"
                answer = {"ok": worker.run(order)}
        except Exception as error:  # whoever orders is told, and decides
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    # Engines have threads and native state that do not all end well; nothing of theirs is needed any more.
    os._exit(0)


@dataclass(slots=True)
class TokenTimes:
    """When each request of a batch got its tokens, in seconds since the batch was handed over."""

    requests: int
    begun: float = field(default_factory=time.perf_counter)
    times: list[list[float]] = field(init=False)

    def __post_init__(self) -> None:
        self.times = [[] for _ in range(self.requests)]

    def came(self, counts: Sequence[int]) -> None:
        """Just now request i has got counts[i] more tokens."""
        now = time.perf_counter() - self.begun
        for times, count in zip(self.times, counts, strict=True):
            times.extend([now] * count)

    def figures(self, new_tokens: Sequence[int]) -> dict[str, Any]:
        """Seconds and tokens of the whole, and of the time in which all requests decode at once.

        That time begins when the last request has its first token, and ends when the first request has its last one.
        Raises ValueError unless every request got what was asked for.
        """
        got = [len(times) for times in self.times]
        if got != list(new_tokens):
            raise ValueError(f"asked for {list(new_tokens)} tokens, got {got}")
        begin = max(times[0] for times in self.times)
        end = min(times[-1] for times in self.times)
        return {
            "seconds": max(times[-1] for times in self.times),
            "tokens": sum(got),
            "first_token_seconds": begin,
            "decode_seconds": max(end - begin, 0.0),
            "decode_tokens": sum(begin < one <= end for times in self.times for one in times),
        }
