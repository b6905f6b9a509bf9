"""What our server costs per message, beyond what gRPC itself costs: it has nothing to compute, and streams flat out.

    ours     the whole server: boundary, servicer, front, detokeniser, conversion, heartbeat, over a core that has the
             next token whenever somebody asks, one for each message
    theirs   a bare grpc.aio server, in the same process on the same event loop, that writes ready-made bytes, as many
             messages of the same sizes

The client is a process of its own and reads bytes in both cases. Compared are messages per second as it counts them,
and besides messages per second of this process's processor time, in which the client has no part. A further figure
shows coalescing: the same server over the ordinary client of a core in a thread, which steps flat out, whoever keeps
up; tokens then leave several to a message.

Both servers run on the event loop that `fanlight serve` takes, unless `--loop` names another. In a round each is asked
several times in turn, and its best counts, as in the other benchmarks.

    python -m benchmarks.grpc_overhead [--rounds N] [--streams N] [--loop asyncio] [--json FILE] [--svg FILE]
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import grpc.aio

from benchmarks.report import (
    Comparison,
    Runs,
    benchmark_parser,
    checked_rounds,
    deliver,
    machine_facts,
    machine_line,
)
from fanlight.v1 import generation_pb2, inference_pb2
from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.client import CoreFacts, CoreStatistics, EngineClient
from fanlight_engine.client_in_process import InProcessClient
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import (
    AddRequest,
    Admitted,
    Completed,
    CoreTimings,
    Encoded,
    EncodeRequest,
    FromCore,
    Generated,
    Prefilled,
)
from fanlight_engine.front import Front
from fanlight_engine.request import FinishReason
from fanlight_server.default_model import default_model_path
from fanlight_server.event_loop import loop_factory
from fanlight_server.server import FanlightServer, ServerSettings

THROUGHPUT_BAR = 0.7
ROUNDS, PASSES, STREAMS, TOKENS = 7, 3, 64, 400
OUR_METHOD, ECHO_METHOD = "/fanlight.v1.InferenceService/GenerateStream", "/benchmark.Echo/Stream"
PROMPT = (300, 301, 302)
SERVERS_LOOP = "uvloop" if loop_factory() else "asyncio"
"""What `fanlight serve` runs on here."""


@dataclass(frozen=True, slots=True)
class Coalescing:
    """What came of a core that steps flat out."""

    tokens_per_second: float
    messages_per_second: float

    @property
    def tokens_per_message(self) -> float:
        """How many tokens left together."""
        return self.tokens_per_second / self.messages_per_second

    def line(self) -> str:
        """The figures in one line of text."""
        rates = f"{self.tokens_per_second:.0f} tokens/s in {self.messages_per_second:.0f} messages/s"
        return f"a core that steps flat out: {rates}, {self.tokens_per_message:.1f} to each"


@dataclass(frozen=True, slots=True)
class OverheadBenchmark:
    """What was measured, and where."""

    comparisons: tuple[Comparison, ...]
    coalescing: Coalescing
    machine: dict[str, Any]
    rounds: int
    streams: int

    def text(self) -> str:
        """The result for people."""
        by_time = self.comparisons[1]
        ours, theirs = (1e6 / runs.median for runs in (by_time.ours, by_time.theirs))
        return "\n".join(
            [
                machine_line(self.machine),
                f"{self.rounds} rounds of {self.streams} streams",
                f"{'':36} {'ours':>8} {'theirs':>8}",
                *(comparison.line() for comparison in self.comparisons),
                f"processor time per message: {ours:.1f} us, of which gRPC itself takes {theirs:.1f}",
                self.coalescing.line(),
            ]
        )

    def facts(self) -> dict[str, Any]:
        """The result for machines."""
        return {
            "machine": self.machine,
            "rounds": self.rounds,
            "streams": self.streams,
            "comparisons": [comparison.facts() for comparison in self.comparisons],
            "flat_out_tokens_per_second": self.coalescing.tokens_per_second,
            "flat_out_tokens_per_message": self.coalescing.tokens_per_message,
        }


class NullCore:
    """An EngineClient whose core has the next token of every request at once."""

    def __init__(self, facts: CoreFacts) -> None:
        self.facts = facts
        self._stopped = asyncio.Event()

    async def start(self) -> None:
        """Nothing to load."""

    def submit(self, request: AddRequest) -> AsyncIterator[list[FromCore]]:
        """One token at a time, each when it is asked for."""
        return _one_by_one(request)

    async def encode(self, request: EncodeRequest) -> Encoded:
        """No request of this benchmark has media."""
        raise NotImplementedError(request.request_id)

    def abort(self, request_id: str) -> None:
        """Nothing is held."""

    async def statistics(self) -> CoreStatistics:
        """Nothing is counted."""
        return CoreStatistics()

    async def check_integrity(self) -> None:
        """There are no books."""

    async def wait_until_stopped(self) -> None:
        """Return once stopped."""
        await self._stopped.wait()

    async def stop(self) -> None:
        """End whoever waits for it."""
        self._stopped.set()


class NullEngine:
    """What InProcessClient drives: each step has a token for every request."""

    def __init__(self, facts: CoreFacts) -> None:
        self.facts = facts
        self._left: dict[str, int] = {}
        self._number = 0

    @property
    def has_work(self) -> bool:
        """Whether any request runs."""
        return bool(self._left)

    def add(self, request: AddRequest) -> FromCore:
        """Admit the request."""
        self._left[request.request_id] = request.sampling.max_new_tokens
        return Admitted(request.request_id, 0, 0)

    def abort(self, request_id: str) -> None:
        """Forget the request."""
        self._left.pop(request_id, None)

    def step(self) -> list[FromCore]:
        """A token for each."""
        self._number += 1
        token = (_word(self._number),)
        messages: list[FromCore] = [Generated(name, token) for name in self._left]
        for name in self._left:
            self._left[name] -= 1
        ended = [name for name, left in self._left.items() if not left]
        for name in ended:
            del self._left[name]
            messages.append(Completed(name, FinishReason.LENGTH, 0))
        return messages


def measure(loop: str = SERVERS_LOOP, rounds: int = ROUNDS, streams: int = STREAMS) -> OverheadBenchmark:
    """Measure on an event loop of this name. A minute on an idle machine."""
    return _run_on(loop, lambda: measure_here(rounds, streams, loop=loop))


async def measure_here(
    rounds: int = ROUNDS, streams: int = STREAMS, tokens: int = TOKENS, loop: str = SERVERS_LOOP
) -> OverheadBenchmark:
    """Measure on the running event loop, which is named `loop` in the result."""
    checkpoint = read_checkpoint(default_model_path())
    facts = CoreFacts(1 << 20, 16, 1 << 16, 1 << 20, 64)
    config = EngineConfig(max_running_requests=streams)
    flat_out: Any = InProcessClient(config, checkpoint, build=lambda *_: NullEngine(facts))  # pyright: ignore[reportArgumentType]
    async with _reader() as read, _serving(config, checkpoint, NullCore(facts)) as ours:
        request = _request(tokens)
        sizes = (await read(ours, OUR_METHOD, request, 1))["sizes"]
        async with _echoing(sizes) as theirs:
            figures = [await _round(read, ours, theirs, request, streams) for _ in range(rounds + 1)][1:]
        async with _serving(config, checkpoint, flat_out) as coalescing:
            found = await read(coalescing, OUR_METHOD, _request(10 * tokens), streams)
    flat_out_figures = Coalescing(10 * tokens * streams / found["seconds"], found["messages"] / found["seconds"])
    wall, processor = ([[pair[kind] for pair in one] for one in figures] for kind in (0, 1))
    return OverheadBenchmark(
        comparisons=(
            _compared("messages as the client counts them", wall, THROUGHPUT_BAR, gates=True),
            _compared("messages per second of processor", processor, THROUGHPUT_BAR, gates=False),
        ),
        coalescing=flat_out_figures,
        machine={**machine_facts(("grpcio", "protobuf", "msgspec"), 1), "loop": loop},
        rounds=rounds,
        streams=streams,
    )


Read = Callable[[str, str, bytes, int], Awaitable[dict[str, Any]]]


async def _round(read: Read, ours: str, theirs: str, request: bytes, streams: int) -> list[tuple[float, float]]:
    """Of us and of them, the best of some turns: messages per second, and per second of this process's processor."""
    sides = ((ours, OUR_METHOD), (theirs, ECHO_METHOD))
    turns = [[await _rates(read, *side, request, streams) for side in sides] for _ in range(PASSES)]
    return [(max(one[0] for one in of_side), max(one[1] for one in of_side)) for of_side in zip(*turns, strict=True)]


async def _rates(read: Read, address: str, method: str, request: bytes, streams: int) -> tuple[float, float]:
    begun = time.process_time()
    found = await read(address, method, request, streams)
    return found["messages"] / found["seconds"], found["messages"] / (time.process_time() - begun)


def _compared(name: str, figures: list[list[float]], bar: float, gates: bool) -> Comparison:
    ours, theirs = (tuple(one[side] for one in figures) for side in (0, 1))
    return Comparison(name, "messages/s", bar, Runs("our server", ours), Runs("bare grpc.aio", theirs), gates)


@asynccontextmanager
async def _serving(config: EngineConfig, checkpoint: Checkpoint, core: EngineClient) -> AsyncIterator[str]:
    """Our server over this core, without lines for its calls; gives its address."""
    calls = logging.getLogger("fanlight.access")
    level = calls.level
    calls.setLevel(logging.WARNING)
    front = Front(config, checkpoint, core)
    server = FanlightServer(front, ServerSettings(port=0, drain_seconds=0.0))
    server.bind()
    await server.start()
    try:
        await front.start()
        server.lifecycle.mark_serving()
        yield server.address
    finally:
        await server.stop()
        calls.setLevel(level)


@asynccontextmanager
async def _echoing(sizes: list[int]) -> AsyncIterator[str]:
    """A bare server that answers each call with messages of these sizes; gives its address."""
    messages = [bytes(size) for size in sizes]

    async def stream(_request: bytes, context: Any) -> None:
        for message in messages:
            await context.write(message)

    server = grpc.aio.server()
    handlers = {"Stream": grpc.unary_stream_rpc_method_handler(stream)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("benchmark.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def _reader() -> AsyncIterator[Read]:
    """The client's process; gives what asks it to read."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.grpc_reader"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None, "a pipe"
    assert stdout is not None, "a pipe"

    async def read(address: str, method: str, request: bytes, streams: int) -> dict[str, Any]:
        order = {"address": address, "method": method, "request": request.hex(), "streams": streams}
        stdin.write(json.dumps(order).encode() + b"\n")
        return json.loads(await stdout.readline())

    try:
        yield read
    finally:
        stdin.close()
        await process.wait()


def _request(tokens: int) -> bytes:
    generation = generation_pb2.Generation(tokens=generation_pb2.TokensPrompt(ids=PROMPT))
    generation.config.sampling.max_new_tokens = tokens
    return inference_pb2.GenerateStreamRequest(generation=generation).SerializeToString()


async def _one_by_one(request: AddRequest) -> AsyncIterator[list[FromCore]]:
    name, tokens = request.request_id, request.sampling.max_new_tokens
    yield [Admitted(name, 0, 0)]
    yield [Prefilled(name, 0, (), CoreTimings()), Generated(name, (_word(0),))]
    for number in range(1, tokens):
        yield [Generated(name, (_word(number),))]
    yield [Completed(name, FinishReason.LENGTH, 0)]


def _word(number: int) -> int:
    """An id of ordinary text; another one each time."""
    return 300 + number % 100


def _run_on(loop: str, make: Callable[[], Any]) -> OverheadBenchmark:
    """Run on the event loop of this name. Raises SystemExit where uvloop is asked for and missing."""
    if loop == "asyncio":
        return asyncio.run(make())
    if find_spec("uvloop") is None:
        raise SystemExit("--loop uvloop needs uvloop, which is not installed: pip install uvloop")
    import uvloop

    return uvloop.run(make())


def main() -> None:
    """The command line."""
    parser = benchmark_parser("What our server costs per message, against a bare grpc.aio stream.", ROUNDS)
    parser.add_argument("--streams", type=int, default=STREAMS, help="streams that are open at once")
    parser.add_argument(
        "--loop", choices=("asyncio", "uvloop"), default=SERVERS_LOOP, help="event loop of both servers"
    )
    arguments = parser.parse_args()
    result = measure(arguments.loop, checked_rounds(arguments.rounds), arguments.streams)
    deliver(result, "Messages per second of a server with nothing to compute", arguments)


if __name__ == "__main__":
    main()
