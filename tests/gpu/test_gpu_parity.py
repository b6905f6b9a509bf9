"""On a GPU, in float32, answers are those of transformers on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.engine.parity import MODELS, NEW_TOKENS, SHORT_ARRANGEMENTS, Arrangement, check_outcome, run_arrangement
from tests.engine.reference import Case, Reference
from tests.gpu.device import DEVICE, needs_device

pytestmark = needs_device

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
    on_gpu = replace(arrangement, settings={**arrangement.settings, "device": DEVICE})
    outcome = run_arrangement(reference, cases, on_gpu)
    check_outcome(outcome, on_gpu, reference.checkpoint.takes_images)
