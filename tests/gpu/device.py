"""Which device these tests compute on, and requests and cores for them. Knows nothing of what is compared."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import AddRequest, Completed, SamplingParams
from tests.engine.driver import Driver

DEVICE = os.environ.get("FANLIGHT_GPU_TEST_DEVICE", "cuda")
"""cpu shows whether the tests themselves run; what needs graphs fails there."""

needs_device = pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a CUDA device, torch sees none here"
)

KINDS_OF_SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "logprobs": {"logprobs": True},
    "drawn": {"temperature": 0.8, "logprobs": True},
    "filtered": {"temperature": 1.1, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    "penalised": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2, "logprobs": True},
    "penalised and drawn": {"temperature": 0.9, "repetition_penalty": 1.2, "top_p": 0.95},
    "held back": {"min_new_tokens": 6, "end_ids": tuple(range(40)), "logprobs": True},
}
"""SamplingParams by name; a mixture of them runs all kinds of work in one step."""
SETTINGS: dict[str, Any] = {"context_length": 256, "max_running_requests": 8, "max_step_tokens": 64}
LOGPROB_TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class Said:
    """What a core answered to one request."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def core(checkpoint: Checkpoint, **settings: Any) -> Driver:
    """A core on the device, in float32 unless asked otherwise."""
    return Driver(EngineConfig(**{"device": DEVICE, "dtype": "float32", **SETTINGS, **settings}), checkpoint)


def requests_of_every_kind(checkpoint: Checkpoint, count: int, seed: int = 11, **fields: Any) -> list[AddRequest]:
    """Random prompts and lengths of answers, the kinds of sampling in turn; seeds of their own."""
    rng, kinds = random.Random(seed), list(KINDS_OF_SAMPLING.values())
    return [
        AddRequest(
            f"{seed}-{number}",
            tuple(rng.choices(range(10, min(250, checkpoint.vocab_size)), k=rng.randint(3, 150))),
            SamplingParams(**{"max_new_tokens": rng.randint(8, 32), "seed": number, **kinds[number % len(kinds)]}),
            **fields,
        )
        for number in range(count)
    ]


def answers(driver: Driver, requests: Sequence[AddRequest], seed: int = 4) -> dict[str, Said]:
    """Have all of them answered in random batches; every one must come to its end."""
    driver.run_in_random_batches(requests, random.Random(seed), most=SETTINGS["max_running_requests"])
    found = {}
    for request in requests:
        answer = driver.answers[request.request_id]
        if not isinstance(answer.end, Completed):
            raise AssertionError(f"{request.request_id} ended with {answer.end}")
        found[request.request_id] = Said(tuple(answer.ids), tuple(answer.logprobs))
    return found


def assert_same(ours: dict[str, Said], theirs: dict[str, Said], tolerance: float = LOGPROB_TOLERANCE) -> None:
    """Raise AssertionError unless all tokens are equal and logprobs close."""
    if ours.keys() != theirs.keys():
        raise AssertionError(f"answers to {ours.keys() ^ theirs.keys()} are missing on one side")
    for name, said in ours.items():
        if said.ids != theirs[name].ids:
            raise AssertionError(f"{name}: {said.ids} instead of {theirs[name].ids}")
        far = [abs(one - other) for one, other in zip(said.logprobs, theirs[name].logprobs, strict=True)]
        if max(far, default=0.0) > tolerance:
            raise AssertionError(f"{name}: logprobs differ by {max(far)}")
