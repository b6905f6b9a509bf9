"""Tokens per second through gRPC against the engine alone: the same requests, the same checkpoint, turn about.

    in process    the core of `fanlight serve`, stepped in a process of its own, with nothing around it
    through gRPC  `fanlight serve`, and a client on the same machine that reads as many streams

Server and engine share the machine's cores: what the path costs is taken from the engine, as it would be. The client is
on them too, but would be elsewhere; so the one that counts only takes bytes off a connection (http2_reader), and a
client in Python, which costs as much as the server, is measured beside it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.checkpoints import ORDINARY_IDS
from benchmarks.peers.catalog import FANLIGHT
from benchmarks.peers.process import Batch, PeerProcess
from benchmarks.report import Comparison, Runs
from benchmarks.rounds import take_turns
from benchmarks.server_process import generation_of, running_server, tokens_and_seconds, tokens_and_seconds_of_grpc
from fanlight.v1.generation_pb2 import Generation
from fanlight_server import event_loop

SHARE_BAR = 0.95
PROMPT_TOKENS, NEW_TOKENS = 64, 96
PASSES, THREADS = 2, 2
RATE = "tokens/s"
LIGHT, PYTHON, ENGINE = "through gRPC", "through gRPC, grpc.aio", "in process"


@dataclass(frozen=True, slots=True)
class GrpcShare:
    """What the path costs, of tokens per second, prompts included."""

    streams: int
    comparison: Comparison
    """With a client that takes hardly anything."""
    with_python_client: Comparison
    """With one of grpc.aio on the same cores: not a bar."""
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
                LIGHT: lambda: {RATE: _rate_through_grpc(batch(), partial(tokens_and_seconds, address))},
                PYTHON: lambda: {RATE: _rate_through_grpc(batch(), partial(_read_by_python, address))},
                ENGINE: lambda: {RATE: core.run(batch()).rate},
            },
            rounds,
            PASSES,
        )
        facts = core.facts
    light, python, engine = (Runs(name, figures[name, RATE]) for name in (LIGHT, PYTHON, ENGINE))
    name = f"{streams} streams through gRPC"
    return GrpcShare(
        streams,
        Comparison(name, RATE, SHARE_BAR, light, engine),
        Comparison(f"{name}, a client of grpc.aio", RATE, SHARE_BAR, python, engine, gates=False),
        facts,
    )


def _rate_through_grpc(batch: Batch, read: Callable[[list[Generation]], tuple[int, float]]) -> float:
    """From sending the first request to the last message of all."""
    tokens, seconds = read(
        [generation_of(count, ids) for ids, count in zip(batch.prompts, batch.new_tokens, strict=True)]
    )
    if tokens != sum(batch.new_tokens):
        raise RuntimeError(f"the server sent {tokens} tokens, {sum(batch.new_tokens)} were asked for")
    return tokens / seconds


def _read_by_python(address: str, wanted: list[Generation]) -> tuple[int, float]:
    """The client's event loop is the server's, too."""
    return event_loop.run(tokens_and_seconds_of_grpc(address, wanted))
