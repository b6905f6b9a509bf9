"""Runs our own engine: the core with its real scheduler, stepped as its thread does, without a server."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch

from benchmarks.peers.workers.serving import TokenTimes, serve
from fanlight_engine.checkpoints.checkpoint import read_checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.build import build_engine
from fanlight_engine.core.messages import AddRequest, FromCore, Generated, Rejected, SamplingParams


class Fanlight:
    """A core as `fanlight serve --dtype bfloat16` makes it, prefix cache off as everywhere here.

    `settings` are those that shall be other than they are by default.
    """

    def __init__(self, checkpoint: str, threads: int, **settings: Any) -> None:
        self._report: list[str] = []
        config = EngineConfig(dtype="bfloat16", torch_threads=threads, prefix_cache=False, **settings)
        self._engine = build_engine(config, read_checkpoint(checkpoint), self._report.append)
        self._number = 0

    def facts(self) -> dict[str, Any]:
        """Versions and settings."""
        return {
            **{name: version(name) for name in ("fanlight-server", "torch")},
            "threads": torch.get_num_threads(),
            "start": [line for line in self._report if not line.startswith(("memory", "allocating"))],
        }

    def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """Step until all are answered."""
        prompts, new_tokens = order["prompts"], order["new_tokens"]
        times = TokenTimes(len(prompts))
        place = {self._add(ids, count): row for row, (ids, count) in enumerate(zip(prompts, new_tokens, strict=True))}
        while self._engine.has_work:
            counts = [0] * len(prompts)
            for message in self._engine.step():
                if isinstance(message, Generated):
                    counts[place[message.request_id]] += len(message.token_ids)
                _refuse_rejected(message)
            times.came(counts)
        return times.figures(new_tokens)

    def _add(self, ids: list[int], count: int) -> str:
        self._number += 1
        request = AddRequest(str(self._number), tuple(ids), SamplingParams(max_new_tokens=count))
        _refuse_rejected(self._engine.add(request))
        return request.request_id


def _refuse_rejected(message: FromCore) -> None:
    if isinstance(message, Rejected):
        raise ValueError(f"the engine refused a request: {message.description}")


if __name__ == "__main__":
    serve(Fanlight)
