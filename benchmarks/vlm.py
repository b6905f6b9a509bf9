"""Requests per second with a picture each: ours against transformers' generate and OpenVINO GenAI, on a CPU.

Eight requests come at once, with different pictures and the same question; the time runs from encoded pictures to
texts. transformers may answer them one by one or in a padded batch: the way that is better here is taken. A random
LLaVA of 140 million parameters in bfloat16, and the same threads for everybody.

    python -m benchmarks.vlm [--rounds N] [--passes N] [--threads N] [--json FILE] [--svg FILE]
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial

import numpy as np
from PIL import Image

from benchmarks.bandwidth import ReadBandwidth
from benchmarks.checkpoints import vision_language_model
from benchmarks.peers.catalog import FANLIGHT_PICTURES, OPENVINO_PICTURES, TRANSFORMERS_PICTURES
from benchmarks.peers.process import PeerError, PeerProcess
from benchmarks.peers.result import AgainstPeers, machine_of, missing_of, running
from benchmarks.peers.workers.pictures import PictureFigures, PictureOrder
from benchmarks.report import Comparison, Runs, benchmark_parser, checked_rounds, deliver
from benchmarks.rounds import Figures, take_turns

ROUNDS, PASSES, THREADS = 5, 3, 2
REQUESTS, NEW_TOKENS = 8, 48
WIDTH, HEIGHT = 640, 480
QUESTION = "what is to be seen here and what is it doing"
TRANSFORMERS_BAR, OPENVINO_GOAL = 1.5, 1.0
FIGURE = "requests/s"
PEERS = (FANLIGHT_PICTURES, TRANSFORMERS_PICTURES, OPENVINO_PICTURES)
WAYS = {"one by one": 1, "in a padded batch": REQUESTS}
"""Requests in one call of transformers."""


def measure(rounds: int = ROUNDS, threads: int = THREADS, passes: int = PASSES) -> AgainstPeers:
    """Measure everybody. About three minutes; the first time a checkpoint is made and converted, too."""
    checkpoint = vision_language_model()
    machine = machine_of(ReadBandwidth(), threads)
    with running(PEERS, checkpoint, threads) as processes:
        way = _better_way(processes[TRANSFORMERS_PICTURES.name])
        contenders = {
            name: partial(_answer, process, orders(WAYS[way] if name == TRANSFORMERS_PICTURES.name else 1))
            for name, process in processes.items()
        }
        figures = take_turns(contenders, rounds, passes)
        engines = {name: process.facts for name, process in processes.items()}
    case = f"{REQUESTS} requests, {WIDTH} x {HEIGHT} JPEG, {NEW_TOKENS} new tokens"
    return AgainstPeers(case, tuple(_compared(figures, way)), machine, rounds, missing_of(PEERS), engines)


def orders(at_once: int = 1) -> Iterator[PictureOrder]:
    """Eight new pictures each time, the same in the same order for everybody."""
    random = np.random.default_rng(0)
    while True:
        yield PictureOrder(tuple(_picture(random) for _ in range(REQUESTS)), QUESTION, NEW_TOKENS, at_once)


def _better_way(transformers: PeerProcess) -> str:
    """How it answers most requests per second, each way tried twice."""
    rates = {way: max(_answer(transformers, orders(size))[FIGURE] for _ in range(2)) for way, size in WAYS.items()}
    return max(rates, key=rates.__getitem__)


def _answer(process: PeerProcess, source: Iterator[PictureOrder]) -> dict[str, float]:
    figures = PictureFigures(**process.ask(next(source).order()))
    if figures.tokens != REQUESTS * NEW_TOKENS:
        raise PeerError(f"{process.peer.name} was asked for {REQUESTS} x {NEW_TOKENS} tokens, gave {figures.tokens}")
    return {FIGURE: figures.rate}


def _compared(figures: Figures, way: str) -> Iterator[Comparison]:
    measured = {name: rounds for (name, _), rounds in figures.items()}
    ours = Runs(FANLIGHT_PICTURES.name, measured[FANLIGHT_PICTURES.name])
    for peer, note, bar, gates in (
        (TRANSFORMERS_PICTURES, f" {way}", TRANSFORMERS_BAR, True),
        (OPENVINO_PICTURES, "", OPENVINO_GOAL, False),
    ):
        if peer.name in measured:
            theirs = Runs(f"{peer.name}{note}", measured[peer.name])
            yield Comparison(f"{REQUESTS} pictures, {theirs.name}", FIGURE, bar, ours, theirs, gates)


def _picture(random: np.random.Generator) -> bytes:
    """Large smooth blots, as compressible as a photograph."""
    blots = random.integers(0, 256, (HEIGHT // 40, WIDTH // 40, 3), dtype=np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(blots).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(encoded, "JPEG", quality=90)
    return encoded.getvalue()


def main() -> None:
    """The command line."""
    parser = benchmark_parser("Requests per second with a picture each, against other engines.", ROUNDS)
    parser.add_argument("--passes", type=int, default=PASSES, help="runs of each engine in a round; its best counts")
    parser.add_argument("--threads", type=int, default=THREADS, help="threads of each engine")
    arguments = parser.parse_args()
    result = measure(checked_rounds(arguments.rounds), arguments.threads, arguments.passes)
    deliver(result, "Requests with a picture each per second on a CPU", arguments)


if __name__ == "__main__":
    main()
