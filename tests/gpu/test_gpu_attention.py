"""On the device, the fast attention backends equal the reference in every number type, and rows stay by themselves."""

from __future__ import annotations

import random

import pytest
import torch

from fanlight_engine.errors import ConfigError
from fanlight_engine.model.attention.choice import AttentionNeeds, choose_attention
from fanlight_engine.model.attention.interface import AttentionBackend
from fanlight_engine.model.kv_cache import KeyValueShape
from tests.gpu.attention_steps import (
    LONGEST,
    TOLERANCES,
    Form,
    decode_rows_that_depend_on_neighbours,
    random_forms,
    random_step,
)
from tests.gpu.device import DEVICE, needs_device

pytestmark = needs_device
FORMS = random_forms(40)
STEPS_OF_A_FORM = 4
FLASH_FORMS = [
    Form(torch.bfloat16, 8, 4, 128, 256, None, None),
    Form(torch.float16, 2, 7, 64, 256, None, None),
    Form(torch.bfloat16, 8, 1, 96, 256, 1000, None),
    Form(torch.bfloat16, 4, 2, 256, 256, 64, None),
    Form(torch.bfloat16, 8, 4, 128, 256, None, 30.0),
]
"""The last one has a soft cap, which Triton computes for it."""


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(20)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_triton_equals_the_reference(form: Form) -> None:
    _assert_equals_the_reference("triton", form)


@pytest.mark.parametrize("form", FLASH_FORMS, ids=str)
def test_flash_equals_the_reference(form: Form) -> None:
    _assert_equals_the_reference("flash", form)


@pytest.mark.parametrize("name", ["triton", "flash"])
def test_rows_of_a_deterministic_backend_do_not_depend_on_neighbours(name: str) -> None:
    form = FLASH_FORMS[0]
    backend = _backend(name, form, deterministic=True)
    assert [decode_rows_that_depend_on_neighbours(form, seed, backend) for seed in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("name", ["triton", "flash"])
def test_a_captured_kernel_follows_the_lengths_that_stand_in_its_memory(name: str) -> None:
    """What a decode step relies on: one graph, other contexts at every replay."""
    if DEVICE != "cuda":
        pytest.skip("graphs are CUDA's")
    form = FLASH_FORMS[0]
    backend = _backend(name, form)
    steps = (random_step(form, seed, backend, with_spans=False) for seed in range(100))
    step = next(one for one in steps if one.batch.decode_rows > 5)
    rows = step.batch.decode_rows
    graph = torch.cuda.CUDAGraph()
    backend.attend(step.queries, step.batch, form.layer)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        outputs = backend.attend(step.queries, step.batch, form.layer)
    for seed in range(3):
        rng = random.Random(seed)
        shorter = [rng.randint(1, length) for length in step.batch.context_lengths[:rows].tolist()]
        step.batch.context_lengths[:rows] = torch.tensor(shorter, dtype=torch.int32, device=DEVICE)
        graph.replay()
        torch.cuda.synchronize()
        expected = step.measure.backend.attend(step.queries.float(), step.measure, form.layer)
        torch.testing.assert_close(outputs[:rows].float(), expected[:rows], atol=4e-2, rtol=0)


def _assert_equals_the_reference(name: str, form: Form) -> None:
    backend = _backend(name, form)
    differences = [random_step(form, seed, backend).difference(form.layer) for seed in range(1, STEPS_OF_A_FORM + 1)]
    assert max(differences) <= TOLERANCES[form.dtype], differences


def _backend(name: str, form: Form, deterministic: bool = False) -> AttentionBackend:
    shape = KeyValueShape(2, form.kv_heads, form.head_dim, form.dtype)
    heads = form.kv_heads * form.group
    needs = AttentionNeeds(torch.device(DEVICE), shape, heads, form.page_size, LONGEST, deterministic)
    try:
        return choose_attention(name if DEVICE == "cuda" else "reference", needs)
    except ConfigError as error:
        pytest.skip(str(error))
