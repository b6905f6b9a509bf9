"""Checkpoints and drivers that the engine's tests share; one torch thread, so that tests disturb nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.client import CoreStatistics
from fanlight_engine.config import EngineConfig
from tests.engine.answers import MakeDriver
from tests.engine.checkpoints import make_llama, make_llava, make_qwen2_5_vl
from tests.engine.driver import Driver
from tests.engine.layered_checkpoints import make_llava_onevision, make_qwen3_vl
from tests.engine.parity import MODELS
from tests.engine.vision_checkpoints import make_llava_next, make_qwen2_vl

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def llama_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("checkpoints") / "llama")


@pytest.fixture(scope="session")
def qwen_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen2_5_vl(tmp_path_factory.mktemp("checkpoints") / "qwen2_5_vl")


@pytest.fixture(scope="session")
def llava_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llava(tmp_path_factory.mktemp("checkpoints") / "llava")


@pytest.fixture(scope="session")
def qwen2_vl_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen2_vl(tmp_path_factory.mktemp("checkpoints") / "qwen2_vl")


@pytest.fixture(scope="session")
def llava_next_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llava_next(tmp_path_factory.mktemp("checkpoints") / "llava_next")


@pytest.fixture(scope="session")
def qwen3_vl_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen3_vl(tmp_path_factory.mktemp("checkpoints") / "qwen3_vl")


@pytest.fixture(scope="session")
def llava_onevision_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llava_onevision(tmp_path_factory.mktemp("checkpoints") / "llava_onevision")


@pytest.fixture(scope="session")
def tiny_path() -> Path:
    return Path(__file__).parents[2] / "models" / "fanlight-tiny"


@pytest.fixture(scope="session")
def llama(llama_path: Path) -> Checkpoint:
    return read_checkpoint(llama_path)


@pytest.fixture(scope="session")
def qwen(qwen_path: Path) -> Checkpoint:
    return read_checkpoint(qwen_path)


@pytest.fixture(scope="session")
def llava(llava_path: Path) -> Checkpoint:
    return read_checkpoint(llava_path)


@pytest.fixture(scope="session")
def qwen2_vl(qwen2_vl_path: Path) -> Checkpoint:
    return read_checkpoint(qwen2_vl_path)


@pytest.fixture(scope="session")
def llava_next(llava_next_path: Path) -> Checkpoint:
    return read_checkpoint(llava_next_path)


@pytest.fixture(scope="session")
def qwen3_vl(qwen3_vl_path: Path) -> Checkpoint:
    return read_checkpoint(qwen3_vl_path)


@pytest.fixture(scope="session")
def checkpoint_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    """Any checkpoint of the parity tests by its name, made once."""

    @cache
    def make(name: str) -> Checkpoint:
        return read_checkpoint(MODELS[name](tmp_path_factory.mktemp("checkpoints") / name))

    return make


@pytest.fixture(scope="module")
def drivers() -> dict[Any, Driver]:
    return {}


@pytest.fixture
def make_driver(drivers: dict[Any, Driver]) -> Iterator[MakeDriver]:
    """Drivers by checkpoint and settings, built once; whatever a test did, all must be idle and clean after it."""
    used: list[Driver] = []

    def make(checkpoint: Checkpoint, runs_ahead: bool | None = None, **settings: Any) -> Driver:
        key = (checkpoint.name, runs_ahead, *sorted(settings.items()))
        if key not in drivers:
            defaults = {"torch_threads": 1, "kv_pages": 64, "context_length": 512}
            drivers[key] = Driver(EngineConfig(**{**defaults, **settings}), checkpoint, runs_ahead)
        used.append(drivers[key])
        return drivers[key]

    yield make
    for driver in used:
        driver.run()
        statistics = driver.engine.statistics()
        assert _gauges(statistics) == (0, 0, 0, statistics.total_pages, 0)
        assert not driver.engine._runner._positions


def _gauges(statistics: CoreStatistics) -> tuple[int, ...]:
    return (
        statistics.running_requests,
        statistics.waiting_requests,
        statistics.waiting_encodes,
        statistics.free_pages,
        statistics.pinned_embeddings,
    )
