"""At load, pictures of several sizes and a clip go all the way; what does not fit together is told by its files."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fanlight_engine import AsyncLLM, probe
from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.client import CoreStatistics
from fanlight_engine.client_in_process import InProcessClient
from fanlight_engine.config import EngineConfig
from fanlight_engine.core import build
from fanlight_engine.errors import CheckpointError, ConfigError
from fanlight_engine.front import Front
from fanlight_engine.model.pixel_forms import sized

Spoil = Callable[[dict[str, Any]], None]


@asynccontextmanager
async def started(checkpoint: Checkpoint, **settings: Any) -> AsyncIterator[Front]:
    config = EngineConfig(**{"torch_threads": 1, "kv_pages": 64, **settings})
    front = Front(config, checkpoint, InProcessClient(config, checkpoint))
    try:
        await front.start()
        yield front
    finally:
        await front.stop()


async def probed(checkpoint: Checkpoint, **settings: Any) -> CoreStatistics:
    async with started(checkpoint, **settings) as front:
        await front.probe()
        await front.client.check_integrity()
        return await front.client.statistics()


async def misfit(checkpoint: Checkpoint, **settings: Any) -> str:
    with pytest.raises(CheckpointError) as refused:
        await probed(checkpoint, **settings)
    return str(refused.value)


@pytest.fixture
def spoilt(llava_path: Path, tmp_path: Path) -> Callable[[str, Spoil], Checkpoint]:
    """A copy of a checkpoint with one of its JSON files changed."""

    def make(name: str, spoil: Spoil) -> Checkpoint:
        directory = tmp_path / "llava"
        shutil.copytree(llava_path, directory)
        content = json.loads((directory / name).read_text())
        spoil(content)
        (directory / name).write_text(json.dumps(content))
        return read_checkpoint(directory)

    return make


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava_next", "smolvlm", "gemma3", "internvl", "paligemma"])
async def test_every_size_and_a_clip_go_through_and_nothing_is_left(
    checkpoint_of: Callable[[str], Checkpoint], family: str
):
    checkpoint = checkpoint_of(family)
    async with started(checkpoint) as front:
        clips = "video" in front.modalities
        await front.probe()
        await front.client.check_integrity()
        held = await front.client.statistics()
        assert held.images_encoded == len(probe.SIZES) + 1 + clips
        assert (held.pinned_embeddings, held.waiting_encodes, held.running_requests) == (0, 0, 0)
        assert held.free_pages == held.total_pages
        assert not front.running_ids
        assert front._preparation is not None
        assert front._preparation.media is not None
        assert (front._preparation.media.cache.size, len(front._preparation.media.cache.entries)) == (0, 0)
        assert front.store._contents.used_bytes == 0


async def test_a_text_checkpoint_has_nothing_to_try(llama: Checkpoint):
    assert (await probed(llama)).steps == 0


async def test_sizes_that_are_not_allowed_are_left_out(llava: Checkpoint):
    sides = [max(size) for size in probe.SIZES]
    assert (await probed(llava, max_image_side=100)).images_encoded == sum(side <= 100 for side in sides) + 1 > 1
    with pytest.raises(ConfigError, match=rf"none of {len(sides)} images of ordinary sizes is taken .* may have 10;"):
        await probed(llava, max_image_side=10)


async def test_a_slow_tower_is_tried_with_the_first_and_the_least(llava: Checkpoint, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probe, "ENOUGH_SECONDS", 0.0)
    assert (await probed(llava)).images_encoded == 2


async def test_a_tower_that_fails_on_a_picture_of_one_row_is_found(
    checkpoint_of: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch
):
    checkpoint = checkpoint_of("mistral3")
    assert (await probed(checkpoint)).images_encoded == len(probe.SIZES) + 1
    monkeypatch.setattr(sized, "_takes_one_row", lambda *_: False)
    assert "a picture of 1 x 1 pixels takes 1 positions" in await misfit(checkpoint)


async def test_positions_that_the_tower_has_no_rows_for_are_told_with_both_counts(
    spoilt: Callable[[str, Spoil], Checkpoint], caplog: pytest.LogCaptureFixture
):
    """The processor believes in patches of half the size: four times as many."""
    with caplog.at_level(logging.INFO, "fanlight_engine"):
        told = await misfit(spoilt("processor_config.json", lambda config: config.update(patch_size=7)))
    for part in ("llava/processor_config.json", "config.json", "160 x 60 pixels", " 64 positions", "(16, 64)"):
        assert part in told
    assert "from one checkpoint" in told
    assert not [record for record in caplog.records if record.exc_info]


async def test_offline_callers_are_told_too(spoilt: Callable[[str, Spoil], Checkpoint]):
    checkpoint = spoilt("processor_config.json", lambda config: config.update(num_additional_image_tokens=3))
    with pytest.raises(CheckpointError, match="18 positions"):
        async with AsyncLLM(checkpoint.path, kv_pages=64, torch_threads=1):
            pass


async def test_a_tower_that_fails_is_told_without_a_traceback(
    llava: Checkpoint, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    def fail(self: object, media: object) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(build.ModelAdapter, "encode", fail)
    with caplog.at_level(logging.INFO, "fanlight_engine"):
        assert "the vision tower fails on it; the log says how" in await misfit(llava)
    (record,) = [record for record in caplog.records if "mat1 and mat2" in record.getMessage()]
    assert record.exc_info is None
    assert not logging.getLogger("fanlight_engine.model.runner").filters


async def test_a_decoder_that_fails_on_a_picture_is_told(llava: Checkpoint, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise ValueError("no positions")

    monkeypatch.setattr(build.ModelAdapter, "prompt_positions", fail)
    monkeypatch.setattr(build, "check_agreement", lambda *_: None)
    assert "a picture of 160 x 60 pixels" in await misfit(llava)


async def test_a_context_that_no_picture_fits_into_is_no_fault_of_the_checkpoint(llava: Checkpoint):
    assert (await probed(llava, context_length=8)).images_encoded == len(probe.SIZES) + 1
