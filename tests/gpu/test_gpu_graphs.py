"""A decode step by CUDA graph gives what the eager step gives, in every bucket and with every kind of sampling."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.model.graphs import KINDS
from tests.engine.lora_adapters import EVERY_LINEAR, make_lora
from tests.engine.parity import MODELS
from tests.gpu.device import DEVICE, SETTINGS, answers, assert_same, core, needs_device, requests_of_every_kind

pytestmark = needs_device
NAMES = ("llama", "gemma2", "qwen2_5_vl", "qwen3_moe")
"""Plain, with windows and soft caps, with positions of three rows, with experts."""
REQUESTS = 24
BLOCK_BYTES = 20 << 20
"""What torch sets aside at once for a tensor of more than a megabyte."""


@pytest.fixture(scope="module", params=NAMES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return read_checkpoint(MODELS[request.param](tmp_path_factory.mktemp("graphs") / request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return read_checkpoint(MODELS["llama"](tmp_path_factory.mktemp("graphs") / "llama"))


def test_answers_by_graph_equal_eager_ones(checkpoint: Checkpoint) -> None:
    requests = requests_of_every_kind(checkpoint, REQUESTS)
    by_graph, eager = core(checkpoint), core(checkpoint, graphs=False)
    assert_same(answers(by_graph, requests), answers(eager, requests))
    assert by_graph.engine._runner.decode_graphs.counters.replayed > 0
    assert by_graph.engine._runner.decode_graphs.counters.replayed_samplings > 0
    assert eager.engine._runner.decode_graphs.counters.replayed == 0


def test_answers_with_penalties_by_graph_equal_eager_ones(llama: Checkpoint) -> None:
    """Where requests that say nothing have penalties, these are captured as well."""
    requests = requests_of_every_kind(llama, REQUESTS)
    by_graph = core(llama, default_repetition_penalty=1.2)
    assert_same(answers(by_graph, requests), answers(core(llama, graphs=False), requests))
    counters = by_graph.engine._runner.decode_graphs.counters
    assert counters.replayed_samplings > counters.eager_samplings


def test_answers_with_adapters_by_graph_equal_eager_ones(llama: Checkpoint, tmp_path: Path) -> None:
    for number, name in enumerate(("red", "blue")):
        make_lora(tmp_path / name, llama.path, seed=number, target_modules=list(EVERY_LINEAR))
    lora = f"red={tmp_path / 'red'},blue={tmp_path / 'blue'}"
    requests = [
        *requests_of_every_kind(llama, 8, seed=1),
        *requests_of_every_kind(llama, 8, seed=2, lora="red"),
        *requests_of_every_kind(llama, 8, seed=3, lora="blue"),
    ]
    by_graph = core(llama, lora=lora)
    assert_same(answers(by_graph, requests), answers(core(llama, lora=lora, graphs=False), requests))
    assert by_graph.engine._runner.decode_graphs.counters.replayed > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_graph_gives_the_logits_and_tokens_of_the_eager_step(checkpoint: Checkpoint, dtype: str) -> None:
    driver = core(checkpoint, dtype=dtype, async_scheduling=False)
    for request in requests_of_every_kind(checkpoint, SETTINGS["max_running_requests"]):
        driver.add(request)
    graphs, step = driver.engine._runner.decode_graphs, driver.engine._runner._decode_step
    while driver.engine.statistics().decode_steps < 2:
        driver.step()
    assert graphs._buckets, "nothing was captured"
    tolerance = 1e-4 if dtype == "float32" else 5e-2
    with torch.inference_mode():
        for bucket in graphs._buckets:
            step.forward(bucket)
            eager = step._logits[: bucket.rows].clone()
            step._logits.fill_(float("nan"))
            graphs.forward(bucket)
            torch.testing.assert_close(step._logits[: bucket.rows], eager, atol=tolerance, rtol=tolerance)
            for kind in KINDS:
                step.sample(bucket, kind)
                ids, logprobs = step.next_ids[: bucket.rows].clone(), step.logprobs[: bucket.rows].clone()
                step.next_ids[: bucket.rows] = -1
                graphs.sample(bucket, kind)
                assert torch.equal(step.next_ids[: bucket.rows], ids), (bucket, kind)
                torch.testing.assert_close(step.logprobs[: bucket.rows], logprobs, atol=1e-5, rtol=1e-5)


def test_captures_take_no_more_than_was_accounted(checkpoint: Checkpoint) -> None:
    if DEVICE != "cuda":
        pytest.skip("only CUDA counts what a process has reserved")
    drivers, reserved = [], []
    for graphs in (False, True):
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        drivers.append(core(checkpoint, graphs=graphs))
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved() - before)
    accounted = [driver.engine.facts.memory.decode_step_bytes for driver in drivers]
    assert accounted[0] == 0
    assert 0 < reserved[1] - reserved[0] <= accounted[1] + BLOCK_BYTES


def test_replaying_takes_no_memory(llama: Checkpoint) -> None:
    if DEVICE != "cuda":
        pytest.skip("only CUDA counts what a process has reserved")
    driver = core(llama)
    answers(driver, requests_of_every_kind(llama, REQUESTS, seed=1))
    torch.cuda.synchronize()
    reserved = torch.cuda.memory_reserved()
    answers(driver, requests_of_every_kind(llama, REQUESTS, seed=2), seed=9)
    torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() <= reserved + (32 << 20), "prefills may still grow it by a little"
