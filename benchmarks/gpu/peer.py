"""transformers' own `generate` beside us, on the same random model: static cache and compiled, its fastest way.

Only decode steps count on both sides: theirs are the difference of a long answer and a short one. Compiling takes its
time and comes first, in the calls that warm up; where it does not end in time, the section is ended and says so.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.cores import Core, build_core
from benchmarks.gpu.decode import random_model
from benchmarks.gpu.models import ONE_BILLION, TINY, draw_model
from benchmarks.gpu.workbench import Workbench
from benchmarks.report import Comparison, Runs

REQUESTS, TINY_REQUESTS = (1, 8), (2,)
PROMPT, TINY_PROMPT = 256, 16
SHORT, LONG = 8, 72
TINY_SHORT, TINY_LONG = 2, 6
ROUNDS = 5
BAR = 1.0


def measure(workbench: Workbench) -> None:
    """The section: ours and theirs turn about, for each number of requests."""
    shape, asked = (TINY, TINY_REQUESTS) if workbench.is_tiny else (ONE_BILLION, REQUESTS)
    prompt, short, long = (TINY_PROMPT, TINY_SHORT, TINY_LONG) if workbench.is_tiny else (PROMPT, SHORT, LONG)
    with tempfile.TemporaryDirectory() as directory:
        checkpoint, model = random_model(shape, Path(directory), workbench.device)
        core = build_core(checkpoint, workbench.device, model, max(asked), prompt + 8 * long)
        theirs = draw_model(checkpoint, torch.device(workbench.device), torch.bfloat16)
        theirs.set_attn_implementation("sdpa")
        for requests in asked:
            peer = Peer(theirs, requests, prompt, short, long)
            begun = time.monotonic()
            peer.warm_up()
            workbench.record(**{f"compile_seconds_{requests}": round(time.monotonic() - begun, 1)})
            workbench.record_comparison(_compared(core, peer, shape.name).facts())


class Peer:
    """`generate` with a static cache; on a CUDA device transformers compiles its decode step by itself."""

    def __init__(self, model: Any, requests: int, prompt: int, short: int, long: int) -> None:
        self.requests, self.prompt, self.steps = requests, prompt, long - short
        self._model, self._short, self._long = model, short, long
        self._ids = torch.randint(0, model.config.vocab_size, (requests, prompt), device=model.device)

    def warm_up(self) -> None:
        """Compile what is compiled, with the one length of cache that all calls share."""
        for tokens in (self._long, self._short, self._long):
            self._seconds(tokens)

    def rate(self) -> float:
        """Tokens per second of decode steps."""
        return self.requests * self.steps / (self._seconds(self._long) - self._seconds(self._short))

    @torch.inference_mode()
    def _seconds(self, tokens: int) -> float:
        begun = time.perf_counter()
        answer = self._model.generate(
            self._ids,
            attention_mask=torch.ones_like(self._ids),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            cache_implementation="static",
            pad_token_id=0,
            eos_token_id=None,
        )
        answer.cpu()
        return time.perf_counter() - begun


def _compared(core: Core, peer: Peer, name: str) -> Comparison:
    core.begin(peer.requests, peer.prompt)
    core.round(peer.steps // 2)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        theirs.append(peer.rate())
        ours.append(peer.requests / core.round(peer.steps))
    core.end()
    return Comparison(
        f"{name}, {peer.requests} requests, against generate",
        "tokens/s",
        BAR,
        Runs("fanlight", tuple(ours)),
        Runs("generate, static cache", tuple(theirs)),
    )
