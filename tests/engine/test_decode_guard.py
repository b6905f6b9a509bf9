"""The decode step is capturable: it reads nothing on the host, has no data-dependent shape, stays at its addresses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import AddRequest, SamplingParams
from fanlight_engine.model.graphs import Bucket, DecodeStep
from fanlight_engine.model.sampler import SamplingMode
from tests.engine.driver import Driver, request_for
from tests.engine.reference import Reference

EVERY_KIND_OF_SAMPLING = (
    SamplingMode(),
    SamplingMode(draws=True),
    SamplingMode(draws=True, filters=True, suppresses=True, logprobs=True, penalises=True),
)

HOST_READS = {"_local_scalar_dense", "item", "equal", "is_nonzero", "_unique2", "unique_dim", "unique_consecutive"}
DATA_DEPENDENT_SHAPES = {"nonzero", "nonzero_static", "masked_select", "bincount", "repeat_interleave"}


class CaptureGuard(TorchDispatchMode):
    """Fails on the operators that no CUDA graph can capture."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.__name__.split(".")[0]
        if name in HOST_READS | DATA_DEPENDENT_SHAPES or (name == "index" and _indexes_by_boolean(args[1])):
            raise RuntimeError(f"{func} cannot be captured")
        return func(*args, **(kwargs or {}))


def _indexes_by_boolean(indices: list[torch.Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


CHECKPOINTS = {
    "llama": "float32",
    "qwen2_5_vl": "float32",
    "qwen3_vl": "float32",
    "llava": "float32",
    "fanlight-tiny": "float32",
    "gemma2": "float32",
    "phi3_longrope": "float32",
    "qwen3_moe": "bfloat16",
}
"""Checkpoints, and the number type that their decode steps have; fake tensors multiply experts in half precision."""


@pytest.fixture(scope="module", params=list(CHECKPOINTS))
def decode_step(request: pytest.FixtureRequest, checkpoint_of: Callable[[str], Checkpoint]) -> DecodeStep:
    """The decode step of a core that has prefilled and decoded several requests, images and penalties included."""
    reference = Reference(checkpoint_of(request.param).path)
    settings: dict[str, Any] = {"context_length": 512, "max_running_requests": 8, "dtype": CHECKPOINTS[request.param]}
    driver = Driver(EngineConfig(torch_threads=1, **settings), reference.checkpoint)
    for number, case in enumerate(reference.cases(5, new_tokens=1)):
        asked = request_for(case, number, reference.checkpoint, new_tokens=4)
        sampling = msgspec.structs.replace(asked.sampling, repetition_penalty=1.0 + 0.1 * number)
        driver.add(msgspec.structs.replace(asked, sampling=sampling))
    driver.run()
    assert driver.engine.statistics().decode_steps > 0
    return driver.engine._runner._decode_step


@pytest.mark.parametrize("mode", EVERY_KIND_OF_SAMPLING, ids=str)
@pytest.mark.parametrize("rows", [1, 4, 8])
def test_a_decode_step_reads_nothing_on_the_host(decode_step: DecodeStep, rows: int, mode: SamplingMode) -> None:
    bucket = Bucket(rows, pages=8)
    with torch.inference_mode(), CaptureGuard():
        decode_step.forward(bucket)
        decode_step.sample(bucket, mode)


@pytest.mark.parametrize("mode", EVERY_KIND_OF_SAMPLING, ids=str)
def test_a_decode_step_has_no_data_dependent_shape(decode_step: DecodeStep, mode: SamplingMode) -> None:
    """Fake tensors have no data: anything that looks at values raises."""
    bucket = Bucket(rows=4, pages=8)
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        decode_step.forward(bucket)
        decode_step.sample(bucket, mode)


def test_results_stay_at_fixed_addresses(decode_step: DecodeStep) -> None:
    bucket = Bucket(rows=2, pages=4)
    addresses = decode_step.next_ids.data_ptr(), decode_step.logprobs.data_ptr()
    with torch.inference_mode():
        decode_step.forward(bucket)
        decode_step.sample(bucket, SamplingMode(logprobs=True))
    assert (decode_step.next_ids.data_ptr(), decode_step.logprobs.data_ptr()) == addresses


@pytest.mark.parametrize(
    "offence",
    [
        lambda values: values.max().item(),
        lambda values: values[values > 0],
        lambda values: values.nonzero(),
        lambda values: bool((values > 0).any()),
    ],
)
def test_the_guards_themselves_catch_offences(offence: Callable[[torch.Tensor], object]) -> None:
    with CaptureGuard(), pytest.raises(RuntimeError, match="cannot be captured"):
        offence(torch.ones(3))
    fake_mode = FakeTensorMode()
    with fake_mode, pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        offence(torch.ones(3))


def test_padding_a_bucket_does_not_change_answers(llama_path: Path) -> None:
    """Three requests decode in a bucket of four, alone they decode in a bucket of one."""
    checkpoint = Reference(llama_path).checkpoint
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
