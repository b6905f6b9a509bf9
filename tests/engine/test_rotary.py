"""Rotary factors of a sequence depend on its own length and on nobody beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import AddRequest, Completed, SamplingParams
from fanlight_engine.errors import CheckpointError, ConfigError
from fanlight_engine.model.packing import LONG_FACTORS
from fanlight_engine.model.rotary import (
    LongRopeByToken,
    long_factor_border,
    refuse_unservable_rotary,
    settle_rotary,
)
from tests.engine.builders import words
from tests.engine.driver import Answer, Driver
from tests.engine.text_checkpoints import LONGROPE_BORDER, make_phi3_longrope

PAGE = 4


@pytest.fixture(scope="module")
def phi_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_phi3_longrope(tmp_path_factory.mktemp("rotary") / "phi3_longrope")


@pytest.fixture(scope="module")
def phi(phi_path: Path) -> Checkpoint:
    return read_checkpoint(phi_path)


def with_rotary(path: Path, place: Path, parameters: dict[str, Any], **changes: Any) -> Path:
    """A copy of a checkpoint with other rotary parameters, and other values beside them."""
    copy = Path(shutil.copytree(path, place / "copy"))
    config = json.loads((copy / "config.json").read_text())
    theta = {} if "full_attention" in parameters else {"rope_theta": 10_000.0}
    (copy / "config.json").write_text(json.dumps({**config, "rope_parameters": {**theta, **parameters}, **changes}))
    return copy


def request(name: str, prompt: list[int], new_tokens: int) -> AddRequest:
    """For so many tokens, whatever ends are chosen before."""
    return AddRequest(name, tuple(prompt), SamplingParams(new_tokens, logprobs=True))


def answers(checkpoint: Checkpoint, *requests: AddRequest, **settings: Any) -> tuple[list[Answer], Driver]:
    """What a core of its own answers, all requests at once."""
    values = {"torch_threads": 1, "context_length": 128, "page_size": PAGE, "max_running_requests": 8, **settings}
    driver = Driver(EngineConfig(**values), checkpoint)
    for one in requests:
        driver.add(one)
    driver.run()
    return [driver.answers[one.request_id] for one in requests], driver


def generated(path: Path, prompt: list[int], new_tokens: int) -> list[int]:
    """What transformers' own `generate` answers when nothing ends it."""
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens)
    return output[0, len(prompt) :].tolist()


def test_every_token_is_rotated_as_transformers_rotates_a_sequence_of_its_length(phi_path: Path) -> None:
    rotary = AutoModelForCausalLM.from_pretrained(phi_path).model.rotary_emb
    ours = LongRopeByToken(rotary, LONGROPE_BORDER)
    hidden = torch.zeros(1)
    short, long = torch.arange(LONGROPE_BORDER), torch.arange(LONGROPE_BORDER + 7)
    packed = torch.cat([short, long + LONG_FACTORS, short[3:4]])[None]
    for ours_packed, of_short, of_long in zip(
        ours(hidden, packed), rotary(hidden, short[None]), rotary(hidden, long[None]), strict=True
    ):
        expected = torch.cat([of_short, of_long, of_short[:, 3:4]], dim=1)
        assert torch.equal(ours_packed, expected)
        assert not torch.allclose(of_short, of_long[:, :LONGROPE_BORDER]), "the two sets differ"


def test_a_sequence_that_crosses_the_border_is_computed_again_and_not_counted_as_preempted(
    phi: Checkpoint, phi_path: Path
) -> None:
    prompt = words(LONGROPE_BORDER - 4)
    (crossing,), driver = answers(phi, request("crossing", prompt, 12))
    assert crossing.ids == generated(phi_path, prompt, 12)
    assert isinstance(crossing.end, Completed)
    assert crossing.end.preemptions == 0
    statistics = driver.engine.statistics()
    assert statistics.preemptions == 0
    once = LONGROPE_BORDER + (len(prompt) + 11)  # up to the border under short factors, then everything under long ones
    assert statistics.computed_tokens == once


def test_an_answer_that_ends_at_the_border_is_computed_once(phi: Checkpoint, phi_path: Path) -> None:
    prompt = words(LONGROPE_BORDER - 4)
    (ending,), driver = answers(phi, request("ending", prompt, 5))
    assert ending.ids == generated(phi_path, prompt, 5)
    assert driver.engine.statistics().computed_tokens == LONGROPE_BORDER


def test_neighbours_of_every_length_change_nobody(phi: Checkpoint) -> None:
    requests = [request(f"of {length}", words(length, seed=length), 9) for length in (5, 12, 18, 23, 24, 25, 40, 70)]
    together, driver = answers(phi, *requests, prefix_cache=False)
    assert driver.largest_batch == len(requests)
    for one, answer in zip(requests, together, strict=True):
        (alone,), _ = answers(phi, one)
        assert alone.ids == answer.ids
        assert alone.logprobs == pytest.approx(answer.logprobs, abs=1e-4)


def test_a_preempted_sequence_crosses_the_border_too(phi: Checkpoint) -> None:
    requests = [request(f"seed {seed}", words(LONGROPE_BORDER - 6, seed=seed), 14) for seed in range(4)]
    pressed, driver = answers(phi, *requests, kv_pages=18, context_length=64)
    assert driver.engine.statistics().preemptions > 0
    assert [one.ids for one in pressed] == [answers(phi, one)[0][0].ids for one in requests]


def test_pages_are_shared_under_the_same_factors_only(phi: Checkpoint) -> None:
    prompt = words(60)
    driver = Driver(EngineConfig(torch_threads=1, context_length=128, page_size=PAGE), phi)
    cached = []
    for number, length in enumerate((20, 21, 40, 44, 21)):
        name = f"request {number}"
        driver.add(request(name, prompt[:length], 1))
        driver.run()
        prefilled = driver.answers[name].prefilled
        assert prefilled is not None
        cached.append(prefilled.cached_tokens)
    assert cached == [0, 20, 0, 40, 20]


def test_phi_configurations_are_read_as_they_are_published(phi_path: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(phi_path, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    rotary = config.pop("rope_parameters")
    factors = {name: rotary[name] for name in ("short_factor", "long_factor")}
    published = {
        "auto_map": {
            "AutoConfig": "configuration_phi3.Phi3Config",
            "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
        },
        "rope_theta": 10_000.0,
        "rope_scaling": {**factors, "type": "longrope"},
    }
    (copy / "config.json").write_text(json.dumps({**config, **published}))
    found = read_checkpoint(copy)
    assert long_factor_border(found) == LONGROPE_BORDER
    prompt = words(LONGROPE_BORDER - 3)
    (answer,), _ = answers(found, request("any", prompt, 8))
    assert answer.ids == generated(phi_path, prompt, 8)


def test_dynamic_positions_are_transformers_own_up_to_the_context_they_were_made_for(
    llama_path: Path, tmp_path: Path
) -> None:
    path = with_rotary(llama_path, tmp_path, {"rope_type": "dynamic", "factor": 4.0}, max_position_embeddings=64)
    checkpoint = read_checkpoint(path)
    requests = [request("full", words(50), 14), request("short", words(9, seed=1), 6)]
    found, driver = answers(checkpoint, *requests, context_length=0)
    assert driver.engine.facts.context_length == 64
    assert found[0].ids == generated(path, words(50), 14)
    assert found[1].ids == generated(path, words(9, seed=1), 6)


def test_a_context_beyond_that_of_dynamic_positions_is_refused_with_the_numbers(
    llama_path: Path, tmp_path: Path
) -> None:
    path = with_rotary(llama_path, tmp_path, {"rope_type": "dynamic", "factor": 4.0}, max_position_embeddings=64)
    with pytest.raises(ConfigError, match=r"context_length is 65, .* was made for 64; lower it"):
        answers(read_checkpoint(path), context_length=65)


def test_dynamic_factors_stay_whatever_positions_a_step_has(llama_path: Path, tmp_path: Path) -> None:
    path = with_rotary(llama_path, tmp_path, {"rope_type": "dynamic", "factor": 4.0}, max_position_embeddings=64)
    decoder = AutoModelForCausalLM.from_pretrained(path).model
    settle_rotary(decoder, 0)
    before = decoder.rotary_emb(torch.zeros(1), torch.arange(8)[None])
    after = decoder.rotary_emb(torch.zeros(1), torch.tensor([[*range(8), 5000]]))
    assert torch.equal(before[0], after[0][:, :8])


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"rope_type": "from_next_year"}, "rotary type 'from_next_year', which is not supported; supported: default, "),
        ({"rope_type": "longrope", "original_max_position_embeddings": 0}, "which must be at least 1"),
        (
            {"full_attention": {"rope_type": "longrope"}, "sliding_attention": {"rope_type": "default"}},
            "for some of its layers",
        ),
    ],
)
def test_rotary_types_that_would_be_wrong_are_refused(llama: Checkpoint, parameters: dict[str, Any], why: str) -> None:
    before = llama.config.rope_parameters
    llama.config.rope_parameters = parameters
    try:
        with pytest.raises(CheckpointError, match=why):
            refuse_unservable_rotary(llama)
    finally:
        llama.config.rope_parameters = before


def test_long_factors_with_three_rows_of_positions_are_refused(qwen: Checkpoint) -> None:
    text_config = qwen.config.get_text_config()
    before = text_config.rope_parameters
    text_config.rope_parameters = {"rope_type": "longrope", "original_max_position_embeddings": 32}
    try:
        with pytest.raises(CheckpointError, match="of its position rows"):
            refuse_unservable_rotary(qwen)
    finally:
        text_config.rope_parameters = before


@pytest.mark.parametrize("name", ["llama", "qwen"])
def test_checkpoints_with_one_set_of_factors_have_no_border(name: str, request: pytest.FixtureRequest) -> None:
    assert long_factor_border(request.getfixturevalue(name)) == 0
