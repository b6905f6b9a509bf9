"""Triton's attention equals the reference in Triton's interpreter, a process of its own, and goes where no GPU is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

pytest.importorskip("triton", reason="needs the package triton")

from fanlight_engine.model.attention.interface import LayerAttention, PagedBatch, Segment
from fanlight_engine.model.attention.triton_backend import TritonAttention
from fanlight_engine.model.attention.triton_sizes import Processors
from fanlight_engine.model.kv_cache import KeyValueShape, PagedKeyValueCache

ROOT = Path(__file__).parents[2]
A_FEW = "40"
"""Random steps of a default run; all of them take a minute."""


@pytest.fixture(scope="module", params=[[A_FEW], pytest.param([], marks=pytest.mark.kernels)], ids=["few", "all"])
def outcome(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What `python -m tests.engine.triton_matrix` prints; it fails where one case differs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.engine.triton_matrix", *request.param]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_the_kernels_equal_the_reference_on_a_random_matrix_of_steps(outcome: dict[str, Any]) -> None:
    assert outcome["cases"] == int(A_FEW) or outcome["cases"] >= 300
    assert set(outcome["largest_difference"]) == {"float32", "float16", "bfloat16"}
    assert outcome["largest_difference"]["float32"] < 2e-5


@pytest.mark.parametrize(
    "trait",
    [
        "decodes", "chunks", "mixed", "dummy rows", "window", "spans", "spans bounded by a window", "cap",
        "grouped heads", "head_dim no power of two", "joined splits", "fixed splits", "float16", "bfloat16",
        "page size 16", "page size 32", "page size 64", "page size 128", "page size 256",
    ],
)  # fmt: skip
def test_every_way_through_the_kernels_is_in_the_matrix(outcome: dict[str, Any], trait: str) -> None:
    assert outcome["traits"][trait] >= (20 if outcome["cases"] >= 300 else 1)


@pytest.mark.parametrize("segments", [(), (Segment(4, 20, 300, ((290, 300),)), Segment(24, 7, 7))], ids=len)
def test_a_layer_takes_fake_tensors_on_a_device_that_is_not_there(segments: tuple[Segment, ...]) -> None:
    """They have no data: what would look at some raises."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
        device = torch.device("cuda", 0)
        tokens, sequences = 4 + sum(one.query_length for one in segments), 4 + len(segments)
        batch = PagedBatch(
            cache=PagedKeyValueCache(KeyValueShape(1, 2, 64, torch.bfloat16), 33, 16, device),
            backend=TritonAttention(Processors(132)),
            slots=torch.zeros(tokens, dtype=torch.int64, device=device),
            page_tables=torch.zeros(sequences, 32, dtype=torch.int32, device=device),
            context_lengths=torch.ones(sequences, dtype=torch.int32, device=device),
            decode_rows=4,
            prefill_segments=segments,
        )
        queries = torch.empty(tokens, 8, 64, dtype=torch.bfloat16, device=device)
        new = torch.empty(tokens, 2, 64, dtype=torch.bfloat16, device=device)
        batch.backend.write(batch, 0, new, new)
        outputs = batch.backend.attend(queries, batch, LayerAttention(0, 0.125, 100, soft_cap=30.0))
        assert (outputs.shape, outputs.dtype, outputs.device) == (queries.shape, torch.bfloat16, device)
