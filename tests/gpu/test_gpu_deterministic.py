"""With --deterministic a request is answered the same, bit for bit, whatever is computed beside it."""

from __future__ import annotations

import random

import pytest

from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.core.messages import AddRequest, SamplingParams
from tests.engine.parity import MODELS
from tests.gpu.device import answers, core, needs_device, requests_of_every_kind

pytestmark = needs_device
RUNS = 40


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return read_checkpoint(MODELS[request.param](tmp_path_factory.mktemp("deterministic") / request.param))


def test_every_run_in_a_random_batch_gives_one_answer(checkpoint: Checkpoint) -> None:
    driver = core(checkpoint, dtype="bfloat16", deterministic=True, prefix_cache=False, max_step_tokens=96)
    prompt = tuple(random.Random(1).choices(range(10, 250), k=90))
    found = set()
    for run in range(RUNS):
        asked = AddRequest(f"asked-{run}", prompt, SamplingParams(max_new_tokens=24, logprobs=True))
        neighbours = requests_of_every_kind(checkpoint, random.Random(run).randint(0, 7), seed=100 + run)
        both = random.Random(run).sample([asked, *neighbours], len(neighbours) + 1)
        said = answers(driver, both, seed=run)[asked.request_id]
        found.add((said.ids, said.logprobs))
    assert len(found) == 1
