"""A `fanlight serve` under load that does not wait for it, and what its path and its policy cost.

goodput      requests come at random times (a Poisson process) at given rates, whatever the server does: text, and
             questions about pictures, mixed. Told are time to first token and time between tokens, and how many
             requests of a second were served within the service level: first token and mean time between tokens
gRPC share   tokens per second through gRPC at 16 streams against the engine alone (grpc_share)
short        somebody who asks something short beside a prompt of 4,000 tokens (short_requests)

python -m benchmarks.serve [--model DIRECTORY] [--rates 2,4] [--seconds N] [--pictures SHARE] [--only PART]
                           [--ttft SECONDS] [--itl SECONDS] [--rounds N] [--json FILE] [--svg FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
from PIL import Image

from benchmarks.checkpoints import language_model
from benchmarks.grpc_share import GrpcShare, measure_grpc_share
from benchmarks.report import Comparison, Runs, benchmark_parser, checked_rounds, deliver, machine_facts, machine_line
from benchmarks.server_process import Answer, generation_of, running_server, stream_answer
from benchmarks.short_requests import ShortRequests, measure_short_requests
from fanlight.v1 import generation_pb2, inference_pb2_grpc
from fanlight_server.default_model import default_model_path

__all__ = ["Load", "ServeBenchmark", "ServiceLevel", "measure_grpc_share", "measure_load", "measure_short_requests"]

GOODPUT_GOAL = 0.95
ROUNDS, SECONDS, RATES = 5, 6.0, (2.0, 6.0)
PICTURE_SHARE, PICTURE_SIDE = 0.3, 224
QUESTION_WORDS, ANSWER_TOKENS = (4, 60), (8, 64)
PERCENTILES = (50, 95, 99)
PARTS = ("load", "share", "short")
_WORDS = ("red", "blue", "circle", "square", "left", "right", "above", "many", "what", "is", "the", "of", "a", "number")


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """Seconds within which a request must be served to count."""

    first_token: float = 0.5
    between_tokens: float = 0.1

    def holds(self, answer: Answer) -> bool:
        """Whether an answer is whole and came in time."""
        return (
            not answer.refused
            and bool(answer.times)
            and answer.first_token_seconds <= self.first_token
            and answer.token_seconds <= self.between_tokens
        )


@dataclass(frozen=True, slots=True)
class Load:
    """What a server did at one rate: `offered` and `good` are requests per second of each round."""

    rate: float
    offered: Runs
    good: Runs
    answers: int
    refused: int
    first_token: tuple[float, ...]
    """Seconds to the first token at PERCENTILES."""
    between_tokens: tuple[float, ...]
    """Seconds between two tokens of a request at PERCENTILES: 0 for tokens that came in one message."""

    @property
    def comparison(self) -> Comparison:
        """Served in time against offered."""
        return Comparison(f"in time at {self.rate:g} requests/s", "req/s", GOODPUT_GOAL, self.good, self.offered, False)

    def line(self) -> str:
        """The times in one line of text."""
        shown = zip(PERCENTILES, self.first_token, self.between_tokens, strict=True)
        times = ", ".join(f"p{one} {first * 1e3:.0f} / {between * 1e3:.1f}" for one, first, between in shown)
        counts = f"{self.answers} answers, {self.refused} refused"
        return f"{self.rate:g}/s: first token / between tokens in ms: {times}; {counts}"

    def facts(self) -> dict[str, Any]:
        """The times as JSON values."""
        names = [f"p{one}" for one in PERCENTILES]
        return {
            "rate": self.rate,
            "answers": self.answers,
            "refused": self.refused,
            "first_token_seconds": dict(zip(names, self.first_token, strict=True)),
            "between_tokens_seconds": dict(zip(names, self.between_tokens, strict=True)),
        }


@dataclass(slots=True)
class ServeBenchmark:
    """What was measured, and where; a part that was not asked for is empty."""

    level: ServiceLevel
    machine: dict[str, Any]
    rounds: int
    model: str
    loads: tuple[Load, ...] = ()
    share: GrpcShare | None = None
    short: ShortRequests | None = None
    comparisons: tuple[Comparison, ...] = field(init=False)

    def __post_init__(self) -> None:
        share = () if self.share is None else (self.share.comparison, self.share.with_python_client)
        short = () if self.short is None else (self.short.comparison,)
        self.comparisons = (*(load.comparison for load in self.loads), *share, *short)

    def text(self) -> str:
        """The result for people."""
        level = f"{self.level.first_token:g} s to the first token, {self.level.between_tokens:g} s between tokens"
        lines = [machine_line(self.machine), f"{self.rounds} rounds; {self.model}; in time: {level}"]
        lines += [load.line() for load in self.loads]
        lines += [self.short.text()] if self.short is not None else []
        return "\n".join([*lines, f"{'':36} {'ours':>8} {'theirs':>8}", *(one.line() for one in self.comparisons)])

    def facts(self) -> dict[str, Any]:
        """The result for machines."""
        return {
            "machine": self.machine,
            "rounds": self.rounds,
            "model": self.model,
            "service_level": {"first_token": self.level.first_token, "between_tokens": self.level.between_tokens},
            "loads": [load.facts() for load in self.loads],
            "engine": {} if self.share is None else self.share.engine,
            "comparisons": [comparison.facts() for comparison in self.comparisons],
        }


def measure_load(
    address: str, rates: Sequence[float], seconds: float, rounds: int, pictures: float, level: ServiceLevel
) -> tuple[Load, ...]:
    """Offer each rate for `seconds` in each round; requests that are under way at its end are waited for."""
    source = random.Random(1)
    answered: dict[float, list[list[Answer]]] = {rate: [] for rate in rates}
    asyncio.run(_offer(address, _schedule(source, rates[0], seconds / 2, pictures)))  # warms up
    for _ in range(rounds):
        for rate in rates:
            answered[rate].append(asyncio.run(_offer(address, _schedule(source, rate, seconds, pictures))))
    return tuple(_load(rate, answered[rate], seconds, level) for rate in rates)


Schedule = list[tuple[float, generation_pb2.Generation]]


def _schedule(source: random.Random, rate: float, seconds: float, pictures: float) -> Schedule:
    """When which request comes: gaps of a Poisson process, from 0 on; at least one."""
    at, wanted = source.expovariate(rate), []
    while at < seconds or not wanted:
        picture = _picture(source) if source.random() < pictures else b""
        question = " ".join(source.choices(_WORDS, k=source.randint(*QUESTION_WORDS)))
        wanted.append((at, generation_of(source.randint(*ANSWER_TOKENS), question=question, picture=picture)))
        at += source.expovariate(rate)
    return wanted


async def _offer(address: str, schedule: Schedule) -> list[Answer]:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)

        async def send(at: float, wanted: generation_pb2.Generation) -> Answer:
            await asyncio.sleep(at)
            return await stream_answer(stub, wanted)

        return list(await asyncio.gather(*(send(at, wanted) for at, wanted in schedule)))


def _load(rate: float, rounds: list[list[Answer]], seconds: float, level: ServiceLevel) -> Load:
    answers = [answer for one in rounds for answer in one]
    whole = [answer for answer in answers if not answer.refused and answer.times]
    gaps = [gap for answer in whole for gap in np.diff(answer.times).tolist()]
    return Load(
        rate=rate,
        offered=Runs("offered", tuple(len(one) / seconds for one in rounds)),
        good=Runs("in time", tuple(sum(map(level.holds, one)) / seconds for one in rounds)),
        answers=len(answers),
        refused=sum(bool(answer.refused) for answer in answers),
        first_token=_percentiles([answer.first_token_seconds for answer in whole]),
        between_tokens=_percentiles(gaps),
    )


def _percentiles(values: list[float]) -> tuple[float, ...]:
    """At PERCENTILES; zeros where there is nothing."""
    return tuple(np.percentile(values, PERCENTILES).tolist()) if values else (0.0,) * len(PERCENTILES)


def _picture(source: random.Random) -> bytes:
    """A PNG of noise: another one each time, so that nothing is known of it."""
    pixels = np.random.default_rng(source.getrandbits(32)).integers(0, 256, (PICTURE_SIDE, PICTURE_SIDE, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def measure(arguments: argparse.Namespace) -> ServeBenchmark:
    """Measure the parts that were asked for."""
    rounds, parts = checked_rounds(arguments.rounds), arguments.only or PARTS
    level = ServiceLevel(arguments.ttft, arguments.itl)
    loads: tuple[Load, ...] = ()
    if "load" in parts:
        with running_server(str(arguments.model)) as address:
            loads = measure_load(address, arguments.rates, arguments.seconds, rounds, arguments.pictures, level)
    return ServeBenchmark(
        level=level,
        machine=machine_facts(("grpcio", "torch"), 0),
        rounds=rounds,
        model=arguments.model.name,
        loads=loads,
        share=measure_grpc_share(language_model(), rounds=rounds) if "share" in parts else None,
        short=measure_short_requests(language_model(), rounds) if "short" in parts else None,
    )


def main() -> None:
    """The command line."""
    parser = benchmark_parser("A server under open-loop load, and what its path and its policy cost.", ROUNDS)
    parser.add_argument("--model", type=Path, default=default_model_path(), help="checkpoint that is put under load")
    parser.add_argument("--rates", type=_rates, default=RATES, help="requests per second, separated by commas")
    parser.add_argument("--seconds", type=_positive, default=SECONDS, help="how long a rate is offered in a round")
    parser.add_argument("--pictures", type=_share, default=PICTURE_SHARE, help="share of requests with a picture")
    parser.add_argument("--ttft", type=_positive, default=0.5, help="seconds to the first token that are in time")
    parser.add_argument("--itl", type=_positive, default=0.1, help="mean seconds between tokens that are in time")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this part; may be given several times")
    arguments = parser.parse_args()
    deliver(measure(arguments), "A server under load", arguments)


def _number(text: str, allowed: Callable[[float], bool], words: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not allowed(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no {words}")
    return value


def _positive(text: str) -> float:
    return _number(text, lambda value: 0 < value < float("inf"), "number above 0")


def _share(text: str) -> float:
    return _number(text, lambda value: 0 <= value <= 1, "share from 0 to 1")


def _rates(text: str) -> tuple[float, ...]:
    return tuple(_positive(one) for one in text.split(","))


if __name__ == "__main__":
    main()
