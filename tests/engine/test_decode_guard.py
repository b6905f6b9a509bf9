"""Decode steps of every family can be captured as CUDA graphs, proven without a GPU.

A graph replays kernels at the addresses that they had. So a step must read nothing on the host, have no shape that
depends on data, touch nothing of the host, and leave nothing behind that it allocated: whatever it made is gone when it
ends, but for what lies in buffers that were there before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import AddRequest, SamplingParams
from fanlight_engine.model.adapter import ModelAdapter
from fanlight_engine.model.attention.reference import ReferenceAttention
from fanlight_engine.model.decode_step import Bucket, DecodeStep
from fanlight_engine.model.experts import CapturableExperts
from fanlight_engine.model.kv_cache import PagedKeyValueCache
from fanlight_engine.model.loading.loader import load_model
from fanlight_engine.model.penalties import TokenMarks
from fanlight_engine.model.sampler import SamplingMode
from tests.engine.builders import request as asking
from tests.engine.builders import words
from tests.engine.capture_guard import CaptureGuard, OneDeviceGuard
from tests.engine.driver import Driver
from tests.engine.parity import MODELS

EVERY_KIND_OF_SAMPLING = (
    SamplingMode(),
    SamplingMode(draws=True),
    SamplingMode(draws=True, filters=True, suppresses=True, logprobs=True, penalises=True),
)
NAMES = list(MODELS) if __debug__ else ["llama", "qwen2_5_vl", "gemma3", "qwen3_moe"]
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
AS_ON_A_GPU: dict[str, Any] = {"attention": "reference", "cpu_kernels": False}


@pytest.mark.parametrize("name", NAMES)
def test_decode_steps_of_a_core_leave_nothing_behind(name: str, checkpoint_of: Callable[[str], Checkpoint]) -> None:
    """Of real requests, planned, packed and loaded by a core; under guard is what would be captured."""
    config = EngineConfig(torch_threads=1, context_length=64, max_running_requests=4, **AS_ON_A_GPU)
    driver = Driver(config, checkpoint_of(name))
    for one in (
        asking("greedy", words(5), max_new_tokens=9),
        asking("drawn", words(9, seed=1), max_new_tokens=9, temperature=1.0, top_k=9, logprobs=True, seed=2),
        asking(
            "held back", words(17, seed=2), max_new_tokens=9, repetition_penalty=1.2, min_new_tokens=9, end_ids=(3,)
        ),
    ):
        driver.add(one)
    for _ in range(3):
        driver.step()
    guard = _guarded(driver)
    driver.run()
    assert guard.operators > 100
    assert all(len(answer.ids) == 9 for answer in driver.answers.values())


def _guarded(driver: Driver) -> CaptureGuard:
    """Runs what the runner's graphs would replay under the guard from now on."""
    runner: Any = driver.engine._runner
    guard, step, graphs = CaptureGuard(), runner._decode_step, runner.decode_graphs
    addresses = step.next_ids.data_ptr(), step.logprobs.data_ptr(), step._logits.data_ptr()

    def watched(work: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: Any) -> None:
            with graphs._plan.capturable(), guard:
                work(*arguments)
            assert guard.outliving == 0
            assert (step.next_ids.data_ptr(), step.logprobs.data_ptr(), step._logits.data_ptr()) == addresses

        return run

    graphs.forward, graphs.sample = watched(graphs.forward), watched(graphs.sample)
    return guard


@pytest.mark.parametrize("name", NAMES)
def test_a_decode_step_runs_on_a_cuda_device_that_is_only_thought(
    name: str, checkpoint_of: Callable[[str], Checkpoint]
) -> None:
    """Fake tensors have no data, so that whatever looks at values raises; and the device of each is known."""
    checkpoint = checkpoint_of(name)
    model = load_model(checkpoint, CPU, torch.bfloat16)
    with torch.no_grad(), FakeTensorMode():
        _move_to_thought(model)
        adapter = ModelAdapter(model, checkpoint)
        cache = PagedKeyValueCache(adapter.key_value_shape, 8, 16, CUDA)
        marks = TokenMarks(4, adapter.vocab_size, CUDA)
        step = DecodeStep(adapter, cache, ReferenceAttention(), marks, max_rows=4, max_pages=8)
        assert marks.tensor.device == step.next_ids.device == CUDA
        with OneDeviceGuard():
            for bucket in (Bucket(4, 8), Bucket(1, 2)):
                with CapturableExperts(model.get_decoder(), model.dtype, CUDA).capturable():
                    step.forward(bucket)
                for mode in EVERY_KIND_OF_SAMPLING:
                    step.sample(bucket, mode)


def _move_to_thought(model: nn.Module) -> None:
    """Puts fake tensors of a CUDA device in the place of parameters and buffers."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(_thought(parameter), requires_grad=False)
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else _thought(buffer)


def _thought(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=CUDA)


@pytest.mark.parametrize("mode", EVERY_KIND_OF_SAMPLING, ids=str)
@pytest.mark.parametrize("rows", [1, 4, 8])
def test_every_kind_of_sampling_leaves_nothing_behind(
    rows: int, mode: SamplingMode, checkpoint_of: Callable[[str], Checkpoint]
) -> None:
    config = EngineConfig(torch_threads=1, context_length=64, max_running_requests=8, **AS_ON_A_GPU)
    step = Driver(config, checkpoint_of("llama")).engine._runner._decode_step
    bucket, guard = Bucket(rows, pages=4), CaptureGuard()
    with torch.inference_mode():
        step.sample(bucket, mode)
        with guard:
            step.forward(bucket)
            step.sample(bucket, mode)
    assert guard.outliving == 0


class TestExperts:
    """What a captured step of experts computes is what an eager one does."""

    @pytest.mark.parametrize("name", ["qwen3_moe", "mixtral", "qwen3_vl_moe"])
    def test_give_the_same_logits_either_way(self, name: str, checkpoint_of: Callable[[str], Checkpoint]) -> None:
        config = EngineConfig(torch_threads=1, context_length=64, max_running_requests=4, **AS_ON_A_GPU)
        runner = Driver(config, checkpoint_of(name)).engine._runner
        step, bucket = runner._decode_step, Bucket(4, 4)
        step._rows.known_ids[:] = torch.tensor(words(4))
        step._rows.sources[:] = torch.arange(4)
        logits: list[torch.Tensor] = []
        with torch.inference_mode():
            for within in (nullcontext, runner.decode_graphs._plan.capturable, nullcontext):
                with within():
                    step.forward(bucket)
                logits.append(step._logits.clone())
        assert torch.allclose(logits[0], logits[1], atol=1e-5)
        assert torch.equal(logits[0], logits[2]), "and afterwards all is as before"

    def test_are_worth_capturing_for_as_many_rows_as_there_are_experts_for(
        self, checkpoint_of: Callable[[str], Checkpoint]
    ) -> None:
        for name in ("qwen3_moe", "mixtral", "qwen3_vl_moe"):
            checkpoint = checkpoint_of(name)
            text = checkpoint.config.get_text_config()
            model = load_model(checkpoint, CPU, torch.float32)
            experts = getattr(text, "num_experts", None) or text.num_local_experts
            most = CapturableExperts(model.get_decoder(), torch.float32, CUDA).most_rows
            assert most == experts // text.num_experts_per_tok

    def test_do_not_limit_a_decoder_that_has_none(self, checkpoint_of: Callable[[str], Checkpoint]) -> None:
        model = load_model(checkpoint_of("llama"), CPU, torch.float32)
        assert CapturableExperts(model.get_decoder(), torch.float32, CUDA).most_rows is None


@pytest.mark.parametrize(
    "offence",
    [
        lambda values: values.max().item(),
        lambda values: values[values > 0],
        lambda values: values.nonzero(),
        lambda values: bool((values > 0).any()),
        lambda values: values.repeat_interleave(values.long()),
    ],
)
def test_the_guards_themselves_catch_offences(offence: Callable[[torch.Tensor], object]) -> None:
    values = torch.ones(3)
    for guard in (CaptureGuard(), OneDeviceGuard()):
        with guard, pytest.raises(RuntimeError, match=r"cannot be captured|touches the host"):
            offence(values)
    with FakeTensorMode(), pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        offence(torch.ones(3))


def test_the_guard_catches_what_a_step_keeps() -> None:
    buffer, kept = torch.zeros(4), []
    guard = CaptureGuard()
    with guard:
        buffer[:2] = torch.arange(2) * 2.0
        buffer.view(2, 2).add_(1)
    assert guard.outliving == 0
    with guard:
        kept.append(buffer + 1)
    assert guard.outliving == 1


def test_the_guard_of_one_device_catches_what_comes_from_the_host() -> None:
    with FakeTensorMode():
        with OneDeviceGuard():
            assert (torch.arange(3, device=CUDA) + 1).device == CUDA
        with OneDeviceGuard(), pytest.raises(RuntimeError, match="touches the host"):
            torch.tensor([1.0, 2.0], device=CUDA)


def test_padding_a_bucket_does_not_change_answers(checkpoint_of: Callable[[str], Checkpoint]) -> None:
    """Three requests decode together in a step of three rows, alone each in a step of one."""
    checkpoint = checkpoint_of("llama")
    requests = [AddRequest(f"r{start}", tuple(range(start, start + 9)), SamplingParams(6)) for start in (30, 50, 70)]
    config = EngineConfig(torch_threads=1, context_length=64, max_running_requests=8)
    together, alone = Driver(config, checkpoint), Driver(config, checkpoint)
    for request in requests:
        together.add(request)
    together.run()
    for request in requests:
        alone.add(request)
        alone.run()
    assert {key: one.ids for key, one in together.answers.items()} == {
        key: one.ids for key, one in alone.answers.items()
    }
