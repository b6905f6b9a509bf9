"""Tokens per second through gRPC against the engine alone: the same requests, the same checkpoint, turn about.

    in process    the core of `fanlight serve`, stepped in a process of its own, with nothing around it
    through gRPC  `fanlight serve`, and a client on the same machine that reads as many streams

Server, client and engine share the machine's cores: what the path costs is taken from the engine, as it would be.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.checkpoints import ORDINARY_IDS
from benchmarks.peers.catalog import FANLIGHT
from benchmarks.peers.process import Batch, PeerProcess
from benchmarks.report import Comparison, Runs
from benchmarks.rounds import take_turns
from benchmarks.server_process import generation_of, running_server, tokens_and_seconds
from fanlight_server import event_loop

SHARE_BAR = 0.95
PROMPT_TOKENS, NEW_TOKENS = 64, 96
PASSES, THREADS = 2, 2
RATE = "tokens/s"


@dataclass(frozen=True, slots=True)
class GrpcShare:
    """What the path costs. `comparison` is of tokens per second, prompts included."""

    streams: int
    comparison: Comparison
    engine: dict[str, Any]
    """Versions and settings of the engine in process."""


def measure_grpc_share(
    model_directory: Path,
    streams: int = 16,
    rounds: int = 5,
    threads: int = THREADS,
    new_tokens: int = NEW_TOKENS,
    ids: range = ORDINARY_IDS,
) -> GrpcShare:
    """Measure both in turn. `ids` are those that prompts are drawn from.

    Raises ServerError or PeerError where one of them does not start.
    """
    arguments = ("--dtype", "bfloat16", "--torch-threads", str(threads), "--no-prefix-cache")
    limits = ("--max-running-requests", str(max(streams, 32)))
    source = random.Random(streams)

    def batch() -> Batch:
        prompts = tuple(tuple(source.choices(ids, k=PROMPT_TOKENS)) for _ in range(streams))
        return Batch(prompts, (new_tokens,) * streams)

    with (
        PeerProcess(FANLIGHT, model_directory, threads) as core,
        running_server(str(model_directory), *arguments, *limits) as address,
    ):
        figures = take_turns(
            {
                "through gRPC": lambda: {RATE: _rate_through_grpc(address, batch())},
                "in process": lambda: {RATE: core.run(batch()).rate},
            },
            rounds,
            PASSES,
        )
        facts = core.facts
    ours, theirs = (Runs(name, figures[name, RATE]) for name in ("through gRPC", "in process"))
    return GrpcShare(streams, Comparison(f"{streams} streams through gRPC", RATE, SHARE_BAR, ours, theirs), facts)


def _rate_through_grpc(address: str, batch: Batch) -> float:
    """From sending the first request to the last message of all. The client is as light as the server's own loop."""
    wanted = [generation_of(count, prompt) for prompt, count in zip(batch.prompts, batch.new_tokens, strict=True)]
    tokens, seconds = event_loop.run(tokens_and_seconds(address, wanted))
    if tokens != sum(batch.new_tokens):
        raise RuntimeError(f"the server sent {tokens} tokens, {sum(batch.new_tokens)} were asked for")
    return tokens / seconds
