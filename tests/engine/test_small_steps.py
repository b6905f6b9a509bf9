"""A small step of text is computed like a decode step, and gives the same answers."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.client import CoreFacts
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.build import _runner_limits
from fanlight_engine.core.messages import AddRequest, Completed
from fanlight_engine.core.scheduler import Chunk
from fanlight_engine.model.packing import as_rows, pack
from tests.engine.answers import MakeDriver
from tests.engine.builders import request, sequence, words
from tests.engine.driver import Driver
from tests.engine.test_packing import PAGE, placed, positions_of

SETTINGS = {"max_step_tokens": 64, "max_running_requests": 6, "kv_pages": 120, "attention": "reference"}


def answers_of(driver: Driver, most_tokens_as_rows: int) -> dict[str, tuple[list[int], list[float]]]:
    """Ids and logprobs of texts of many lengths that come while others run; each token of a small step is a row."""
    runner = driver.engine._runner
    before, runner._max_tokens_as_rows = runner._max_tokens_as_rows, most_tokens_as_rows
    name = f"{most_tokens_as_rows} rows"
    driver.run_in_random_batches(_texts(name), random.Random(7), most=6)
    runner._max_tokens_as_rows = before
    own = {request_id: one for request_id, one in driver.answers.items() if request_id.startswith(name)}
    assert all(isinstance(one.end, Completed) for one in own.values())
    return {request_id.removeprefix(name): (one.ids, one.logprobs) for request_id, one in own.items()}


def _texts(name: str) -> list[AddRequest]:
    lengths = [5, 150, 8, 3, 90, 1, 7, 40, 200, 8, 2, 16]
    return [
        request(f"{name} {place}", words(length, seed=place, vocabulary=90), max_new_tokens=6, logprobs=True)
        for place, length in enumerate(lengths)
    ]


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen2_5_vl"])
def test_answers_do_not_depend_on_what_computes_small_steps(
    name: str, checkpoint_of: Callable[[str], Checkpoint], make_driver: MakeDriver
) -> None:
    """Also where layers look at a window of what is before them, and where positions have three rows."""
    driver = make_driver(checkpoint_of(name), cpu_kernels=False, prefix_cache=False, **SETTINGS)
    usual = answers_of(driver, 0)
    steps = driver.engine.statistics().decode_steps
    as_rows_of_decodes = answers_of(driver, 24)
    assert driver.engine.statistics().decode_steps > steps
    for place, (ids, logprobs) in usual.items():
        assert as_rows_of_decodes[place][0] == ids
        assert as_rows_of_decodes[place][1] == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.parametrize(
    ("has_cpu_kernels", "deterministic", "most"), [(True, False, 14), (False, False, 0), (True, True, 0)]
)
def test_short_steps_are_computed_as_rows_where_kernels_are_and_answers_may_differ_by_rounding(
    has_cpu_kernels: bool, deterministic: bool, most: int
) -> None:
    config = EngineConfig(max_step_tokens=64, max_running_requests=6, deterministic=deterministic)
    adapter: Any = SimpleNamespace(has_cpu_kernels=has_cpu_kernels)
    limits = _runner_limits(config, CoreFacts(512, 16, 64, 0, 0), adapter)
    assert limits.max_tokens_as_rows == most, "a token of each stream, and an eighth of the step for prompts"


def test_each_token_of_a_chunk_becomes_a_row_that_sees_what_is_before_it() -> None:
    stream = placed(sequence("stream", words(6)), [3, 9], generated=1)
    prompt = placed(sequence("prompt", words(7, seed=1)), [5, 2])
    chunks = [Chunk(stream, 6, 1, is_decode=True), Chunk(prompt, 2, 4)]
    step = pack(chunks, [positions_of(chunk.sequence) for chunk in chunks], PAGE, 4)
    rows = as_rows(step)
    assert rows.page_tables.tolist() == [[3, 9, 0, 0], *[[5, 2, 0, 0]] * 4]
    assert rows.context_lengths.tolist() == [7, 3, 4, 5, 6]
    assert rows.context_lengths.dtype == np.int32
    assert (rows.decode_rows, rows.prefill_segments) == (5, ())
    for name in ("ids", "positions", "slots", "sampled_rows", "loras"):
        assert getattr(rows, name) is getattr(step, name)
