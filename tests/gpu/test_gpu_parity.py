"""On a GPU, in float32, answers are those of transformers on the CPU, and a decode step can be captured as a graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fanlight_engine.config import EngineConfig
from fanlight_engine.model.graphs import Bucket
from fanlight_engine.model.sampler import SamplingMode
from tests.engine.driver import Driver
from tests.engine.parity import MODELS, NEW_TOKENS, SHORT_ARRANGEMENTS, Arrangement, check_outcome, run_arrangement
from tests.engine.reference import Case, Reference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, torch sees none here")

PROMPTS = 14
NAMES = (
    "fanlight-tiny", "gemma2", "gemma3", "internvl", "llama", "llava", "llava_next", "llava_onevision", "mistral3",
    "paligemma2", "phi3_longrope", "qwen2_5_vl", "qwen3_moe", "qwen3_vl", "smolvlm",
)  # fmt: skip
"""One of each kind, so that all of it ends in a few minutes; the answers to compare with are computed on the CPU."""


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, list[Case]]:
    reference = Reference(MODELS[request.param](tmp_path_factory.mktemp("gpu") / request.param))
    return reference, reference.cases(PROMPTS, NEW_TOKENS)


@pytest.mark.parametrize("arrangement", SHORT_ARRANGEMENTS, ids=lambda one: one.name)
def test_answers_on_the_gpu_equal_those_of_transformers(
    model: tuple[Reference, list[Case]], arrangement: Arrangement
) -> None:
    reference, cases = model
    on_gpu = replace(arrangement, settings={**arrangement.settings, "device": "cuda"})
    outcome = run_arrangement(reference, cases, on_gpu)
    check_outcome(outcome, on_gpu, reference.checkpoint.takes_images)


def test_a_decode_step_can_be_captured_and_replayed(tmp_path: Path) -> None:
    checkpoint = Reference(MODELS["llama"](tmp_path / "llama")).checkpoint
    driver = Driver(EngineConfig(device="cuda", context_length=256, max_running_requests=4), checkpoint)
    step, bucket, mode = driver.engine._runner._decode_step, Bucket(4, 8), SamplingMode(draws=True, logprobs=True)
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode():
        step.forward(bucket)
        step.sample(bucket, mode)
        eager = step.next_ids.clone()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            step.forward(bucket)
            step.sample(bucket, mode)
        step.next_ids.zero_()
        graph.replay()
        torch.cuda.synchronize()
    assert torch.equal(step.next_ids, eager)
