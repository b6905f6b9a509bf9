"""Tokens per second on a CPU: ours against other engines, the same checkpoint in bfloat16 and the same threads.

    decode        1, 8 and 16 requests that all decode at once: prompts of 64 tokens, 48 new ones
    end to end    the same 16 requests with their prompts
    mixed         16 requests with prompts of 16 to 256 tokens and answers of 8 to 96, end to end
    bandwidth     weights that a step reads, against what the machine reads at best in the same minute

Everybody answers the same prompts greedily, without regard to end tokens and without a prefix cache, in a process of
its own. Peers that are not installed are named and left out: `make peers`.

    python -m benchmarks.cpu [--only CASE] [--rounds N] [--passes N] [--threads N] [--json FILE [--keep]] [--svg FILE]
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.bandwidth import ReadBandwidth
from benchmarks.checkpoints import ORDINARY_IDS, language_model
from benchmarks.peers.catalog import FANLIGHT, OPENVINO, TRANSFORMERS, VLLM, Peer
from benchmarks.peers.process import Batch, PeerProcess
from benchmarks.peers.result import AgainstPeers, machine_of, missing_of, running
from benchmarks.report import Comparison, Runs, benchmark_parser, checked_rounds, deliver
from benchmarks.rounds import Contender, Figures, take_turns

ROUNDS, THREADS = 5, 2
PEERS = (FANLIGHT, VLLM, OPENVINO, TRANSFORMERS)
MEMORY = "reading memory"
PROMPT_TOKENS, NEW_TOKENS = 64, 48
MIXED_REQUESTS, MIXED_PROMPTS, MIXED_ANSWERS = 16, (16, 256), (8, 96)
PARITY, ONE_REQUEST_BAR, MIXED_BAR, BANDWIDTH_BAR = 1.0, 1.8, 1.3, 0.65
DECODE, END_TO_END = "decode tokens/s", "tokens/s"
UNIT = "tokens/s"
SHARE = "share of the bandwidth, 1 request"

Batches = Iterator[Batch]


@dataclass(frozen=True, slots=True)
class Case:
    """Batches of one kind, which peers answer them, and how often each of them does in a round."""

    name: str
    batches: Callable[[], Batches]
    peers: tuple[Peer, ...]
    passes: int
    measures_bandwidth: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """What is compared in a case: ours to a peer's in one figure. Without `gates` it is a goal."""

    case: str
    name: str
    figure: str
    peer: Peer
    ratio: float
    gates: bool = True

    @property
    def title(self) -> str:
        """What its comparison is called."""
        return f"{self.name}, {self.peer.name}"


def even_batches(requests: int) -> Batches:
    """Requests of the reference case; another batch each time, the same in the same order for everybody."""
    source = random.Random(requests)
    while True:
        prompts = tuple(_words(source, PROMPT_TOKENS) for _ in range(requests))
        yield Batch(prompts, (NEW_TOKENS,) * requests)


def mixed_batches() -> Batches:
    """Requests of all lengths, each shortest and longest among them."""
    source = random.Random(0)
    spread = MIXED_REQUESTS - 2
    while True:
        prompts = [*MIXED_PROMPTS, *(source.randint(*MIXED_PROMPTS) for _ in range(spread))]
        answers = [*MIXED_ANSWERS, *(source.randint(*MIXED_ANSWERS) for _ in range(spread))]
        source.shuffle(answers)
        yield Batch(tuple(_words(source, length) for length in prompts), tuple(answers))


CASES = (
    Case("1 request", partial(even_batches, 1), PEERS, passes=4, measures_bandwidth=True),
    Case("8 requests", partial(even_batches, 8), (FANLIGHT, VLLM, OPENVINO), passes=3),
    Case("16 requests", partial(even_batches, 16), (FANLIGHT, VLLM, OPENVINO), passes=3),
    Case("mixed", mixed_batches, (FANLIGHT, OPENVINO, TRANSFORMERS), passes=2),
)
BARS = (
    Bar("1 request", "decode, 1 request", DECODE, VLLM, PARITY),
    Bar("8 requests", "decode, 8 requests", DECODE, VLLM, PARITY),
    Bar("16 requests", "decode, 16 requests", DECODE, VLLM, PARITY),
    Bar("1 request", "decode, 1 request", DECODE, OPENVINO, PARITY),
    Bar("8 requests", "decode, 8 requests", DECODE, OPENVINO, PARITY),
    Bar("16 requests", "decode, 16 requests", DECODE, OPENVINO, PARITY, gates=False),
    Bar("16 requests", "end to end, 16 requests", END_TO_END, OPENVINO, PARITY, gates=False),
    Bar("16 requests", "end to end, 16 requests", END_TO_END, VLLM, PARITY, gates=False),
    Bar("mixed", "end to end, 16 mixed requests", END_TO_END, OPENVINO, PARITY, gates=False),
    Bar("1 request", "decode, 1 request", DECODE, TRANSFORMERS, ONE_REQUEST_BAR),
    Bar("mixed", "end to end, 16 mixed requests", END_TO_END, TRANSFORMERS, MIXED_BAR),
)


def measure(
    rounds: int = ROUNDS, threads: int = THREADS, cases: Sequence[str] = (), passes: int | None = None
) -> AgainstPeers:
    """Measure all cases, or those named. Six minutes; the first time peers compile and convert, too.

    `passes` is how often an engine runs in a round; None takes each case's own number.
    """
    torch.set_num_threads(threads)
    checkpoint = language_model()
    memory = ReadBandwidth()
    machine = machine_of(memory, threads)
    chosen = [case for case in CASES if not cases or case.name in cases]
    peers = [peer for peer in PEERS if any(peer in case.peers for case in chosen)]
    with running(peers, checkpoint, threads) as processes:
        figures = {
            case.name: take_turns(_contenders(case, processes, memory), rounds, passes or case.passes)
            for case in chosen
        }
        engines = {name: process.facts for name, process in processes.items()}
    comparisons = (*_compared(figures), *_share_of_bandwidth(figures, checkpoint))
    names = ", ".join(case.name for case in chosen)
    return AgainstPeers(names, comparisons, machine, rounds, missing_of(peers), engines)


def with_other_cases(result: AgainstPeers, earlier: Mapping[str, Any]) -> AgainstPeers:
    """The result, and what an earlier one has of cases that were not measured now. Told is the machine as it is now."""
    now = {one.name for one in result.comparisons}
    kept = [one for one in map(Comparison.of, earlier["comparisons"]) if one.name not in now]
    cases = dict.fromkeys([*cases_of(kept), *result.case.split(", ")])
    order = [*(bar.title for bar in BARS), SHARE]
    return replace(
        result,
        case=", ".join(case.name for case in CASES if case.name in cases),
        comparisons=tuple(sorted([*kept, *result.comparisons], key=lambda one: order.index(one.name))),
        missing=tuple(dict.fromkeys([*earlier["missing"], *result.missing])),
        engines={**earlier["engines"], **result.engines},
    )


def _contenders(case: Case, processes: Mapping[str, PeerProcess], memory: ReadBandwidth) -> dict[str, Contender]:
    contenders: dict[str, Contender] = {
        peer.name: partial(_answer, processes[peer.name], case.batches())
        for peer in case.peers
        if peer.name in processes
    }
    if case.measures_bandwidth:
        contenders[MEMORY] = lambda: {MEMORY: memory.gigabytes_per_second()}
    return contenders


def _answer(process: PeerProcess, batches: Batches) -> dict[str, float]:
    figures = process.run(next(batches))
    return {DECODE: figures.decode_rate, END_TO_END: figures.rate}


def _compared(figures: Mapping[str, Figures]) -> Iterator[Comparison]:
    for bar in BARS:
        measured = figures.get(bar.case, {})
        ours, theirs = measured.get((FANLIGHT.name, bar.figure)), measured.get((bar.peer.name, bar.figure))
        if ours is not None and theirs is not None:
            sides = Runs(FANLIGHT.name, ours), Runs(bar.peer.name, theirs)
            yield Comparison(bar.title, UNIT, bar.ratio, *sides, gates=bar.gates)


def _share_of_bandwidth(figures: Mapping[str, Figures], checkpoint: Path) -> Iterator[Comparison]:
    measured = figures.get(CASES[0].name)
    if measured is None:
        return
    read = weight_bytes(checkpoint) / 1e9
    ours = Runs(FANLIGHT.name, tuple(rate * read for rate in measured[FANLIGHT.name, DECODE]))
    limit = Runs(MEMORY, measured[MEMORY, MEMORY])
    yield Comparison(SHARE, "GB/s", BANDWIDTH_BAR, ours, limit)


def cases_of(comparisons: Sequence[Comparison]) -> list[str]:
    """The names of the cases that these come from."""
    names = {one.name for one in comparisons}
    cases = {bar.case for bar in BARS if bar.title in names}
    return [case.name for case in CASES if case.name in cases or (case.measures_bandwidth and SHARE in names)]


def weight_bytes(checkpoint: Path) -> int:
    """Bytes of all weights, which a decode step of the language model reads once."""
    return sum(_tensor_bytes(file) for file in checkpoint.glob("*.safetensors"))


def _tensor_bytes(file: Path) -> int:
    """All of the file but its header, whose length its first eight bytes tell."""
    with file.open("rb") as opened:
        return file.stat().st_size - 8 - int.from_bytes(opened.read(8), "little")


def _words(source: random.Random, count: int) -> tuple[int, ...]:
    return tuple(source.choices(ORDINARY_IDS, k=count))


def main() -> None:
    """The command line."""
    parser = benchmark_parser("Tokens per second on a CPU, against other engines.", ROUNDS)
    parser.add_argument("--passes", type=int, help="runs of each engine in a round, of which the best counts")
    parser.add_argument("--threads", type=int, default=THREADS, help="threads of each engine")
    names = [case.name for case in CASES]
    parser.add_argument("--only", action="append", choices=names, help="a case; may be given several times")
    parser.add_argument("--keep", action="store_true", help="keep what the --json file has of other cases")
    arguments = parser.parse_args()
    rounds = checked_rounds(arguments.rounds)
    result = measure(rounds, arguments.threads, arguments.only or names, arguments.passes)
    if arguments.keep and arguments.json and arguments.json.is_file():
        result = with_other_cases(result, json.loads(arguments.json.read_text(encoding="utf-8")))
    deliver(result, "Tokens per second on a CPU", arguments)


if __name__ == "__main__":
    main()
