"""Cores of families with spans: what they refuse, and that answers are the same however the prefix cache is filled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.build import build_engine
from fanlight_engine.core.messages import AddRequest, MediaInput
from fanlight_engine.errors import CheckpointError, ConfigError, Reason
from tests.engine.answers import MakeDriver, assert_rejected, prefill_of
from tests.engine.builders import Part, digest_of, picture, request, words
from tests.engine.driver import Driver
from tests.engine.span_checkpoints import ROWS, make_gemma3, make_paligemma, make_paligemma2


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return read_checkpoint(make_gemma3(tmp_path_factory.mktemp("spans") / "gemma3"))


@pytest.fixture(scope="module", params=[make_paligemma, make_paligemma2])
def paligemma(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path: Path = request.param(tmp_path_factory.mktemp("spans") / request.param.__name__)
    return read_checkpoint(path)


def shown(name: str, side: int = 48) -> MediaInput:
    """A picture of this many pixels on a side, drawn from its name."""
    seed = int.from_bytes(digest_of(name)[:4], "little")
    pixels = np.random.default_rng(seed).standard_normal((1, 3, side, side)).astype(np.float32)
    return picture(name, ROWS, pixel_values=pixels)


def logprobs(driver: Driver, asked: AddRequest) -> list[float]:
    driver.add(asked)
    driver.run()
    assert len(driver.answers[asked.request_id].logprobs) == 4
    return driver.answers[asked.request_id].logprobs


def assert_as_from_scratch(make_driver: MakeDriver, checkpoint: Checkpoint, used: Driver, *parts: Part) -> None:
    """The request's answer in a core that has seen others is that in one that keeps nothing of them."""
    fresh = make_driver(checkpoint, prefix_cache=False)
    asked = [request(f"{len(driver.answers)}", *parts, logprobs=True) for driver in (used, fresh)]
    seen, unseen = logprobs(used, asked[0]), logprobs(fresh, asked[1])
    assert seen == pytest.approx(unseen, abs=1e-5)


def test_a_picture_is_not_shared_with_one_that_touches_another_picture(
    make_driver: MakeDriver, gemma3: Checkpoint
) -> None:
    driver = make_driver(gemma3)
    beginning = words(10, seed=1)
    for other in ("dog", "bird"):
        assert_as_from_scratch(make_driver, gemma3, driver, beginning, shown("cat"), shown(other), words(5))
    assert_as_from_scratch(make_driver, gemma3, driver, beginning, shown("cat"), words(5))


def test_a_picture_whose_beginning_is_cached_is_completed_as_if_it_were_not(
    make_driver: MakeDriver, gemma3: Checkpoint
) -> None:
    driver = make_driver(gemma3)
    beginning = words(10, seed=2)
    assert_as_from_scratch(make_driver, gemma3, driver, beginning, shown("owl"), words(5))
    before = driver.chunks_starting_inside_an_image
    assert_as_from_scratch(make_driver, gemma3, driver, beginning, shown("owl"), words(6, seed=3))
    assert driver.chunks_starting_inside_an_image == before + 1


def test_prompts_that_see_all_of_themselves_share_only_as_a_whole(
    make_driver: MakeDriver, paligemma: Checkpoint
) -> None:
    driver = make_driver(paligemma)
    cat, question = shown("cat", side=24), words(30, seed=4)
    logprobs(driver, request("first", cat, question, logprobs=True))
    assert_as_from_scratch(make_driver, paligemma, driver, cat, question[:-1])
    assert_as_from_scratch(make_driver, paligemma, driver, cat, question, driver.answers["first"].ids)
    logprobs(driver, request("again", cat, question, logprobs=True))
    assert prefill_of(driver, "again").cached_tokens == 32
    assert driver.answers["again"].logprobs == pytest.approx(driver.answers["first"].logprobs, abs=1e-5)


def test_a_prompt_without_a_picture_sees_all_of_itself_as_well(make_driver: MakeDriver, paligemma: Checkpoint) -> None:
    driver = make_driver(paligemma, max_step_tokens=40)
    driver.add(request("fits", words(9)))
    assert_rejected(driver.add(request("long", words(10))), Reason.PROMPT_TOO_LONG)
    driver.run()


def test_pictures_that_touch_and_are_too_long_for_a_step_are_refused(
    make_driver: MakeDriver, gemma3: Checkpoint
) -> None:
    driver = make_driver(gemma3, max_step_tokens=2 * ROWS + 30)
    touching = (words(3), shown("a"), shown("b"), shown("c"))
    refusal = assert_rejected(driver.add(request("touching", *touching)), Reason.IMAGE_TOO_LARGE)
    assert f"{3 * ROWS} of embeddings from position 3 on" in refusal.description
    driver.add(request("apart", words(3), shown("a"), [1], shown("b"), [1], shown("c")))
    driver.run()


def test_pictures_that_touch_and_do_not_fit_the_vision_cache_together_are_refused(
    make_driver: MakeDriver, gemma3: Checkpoint
) -> None:
    row_bytes = 4 * gemma3.hidden_size
    driver = make_driver(gemma3, vision_cache_bytes=2 * ROWS * row_bytes)
    touching = (words(3), shown("a"), shown("b"), shown("c"))
    assert_rejected(driver.add(request("touching", *touching)), Reason.IMAGE_TOO_LARGE)
    driver.add(request("apart", words(3), shown("a"), [1], shown("b"), [1], shown("c")))
    driver.run()


def test_an_encoder_with_the_name_of_a_decoder_is_refused(tmp_path: Path) -> None:
    path = make_gemma3(tmp_path / "encoder")
    config = json.loads((path / "config.json").read_text())
    config["text_config"]["use_bidirectional_attention"] = True
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"encoder/config\.json has use_bidirectional_attention"):
        read_checkpoint(path)


@pytest.mark.parametrize("make", [make_gemma3, make_paligemma])
def test_a_core_whose_steps_hold_no_picture_does_not_start(make: Callable[[Path], Path], tmp_path: Path) -> None:
    config = EngineConfig(torch_threads=1, max_running_requests=8, max_step_tokens=8 + ROWS - 2)
    with pytest.raises(ConfigError, match=f"max_step_tokens is {8 + ROWS - 2}, but the {ROWS} embeddings of a picture"):
        build_engine(config, read_checkpoint(make(tmp_path / "model")))
