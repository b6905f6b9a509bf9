"""Sampling options are judged field by field, filled from the checkpoint and fitted to the context."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fanlight_engine import sampling
from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import SamplingParams
from fanlight_engine.errors import InvalidRequestError, Reason
from fanlight_engine.request import SamplingOptions


def resolve(
    checkpoint: Checkpoint,
    prompt_tokens: int = 10,
    context_length: int = 100,
    config: EngineConfig | None = None,
    **options: Any,
) -> SamplingParams:
    asked = SamplingOptions(**options)
    return sampling.resolve(asked, checkpoint, prompt_tokens, context_length, logprobs=False, config=config)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", -0.1),
        ("temperature", 100.5),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("top_k", -5),
        ("top_k", 10_000_000),
        ("min_p", -0.01),
        ("min_p", 1.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", 0.06),
        ("repetition_penalty", 16.1),
        ("repetition_penalty", math.nan),
        ("presence_penalty", -2.1),
        ("presence_penalty", math.inf),
        ("frequency_penalty", 2.1),
        ("frequency_penalty", True),
        ("seed", -1),
        ("seed", 1 << 64),
        ("max_new_tokens", 0),
        ("max_new_tokens", 2**31),
        ("max_new_tokens", True),
        ("min_new_tokens", -1),
        ("stop", ("",)),
        ("stop", ("ok", "x" * 257)),
        ("stop", ("x",) * 10_000),
        ("stop_token_ids", (1,) * 33),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(llama: Checkpoint, name: str, value: Any):
    with pytest.raises(InvalidRequestError) as caught:
        resolve(llama, **{name: value})
    (violation,) = caught.value.violations
    assert violation.field.startswith(f"config.sampling.{name}")
    assert caught.value.reason is Reason.SAMPLING_OUT_OF_RANGE


def test_the_refusal_says_what_was_got_and_the_range(llama: Checkpoint):
    with pytest.raises(
        InvalidRequestError, match=r"config\.sampling\.top_p: got 1\.5, the range is above 0\.0 to 1\.0"
    ):
        resolve(llama, top_p=1.5)


def test_min_new_tokens_may_not_exceed_max_new_tokens(llama: Checkpoint):
    with pytest.raises(InvalidRequestError, match="max_new_tokens = 5"):
        resolve(llama, min_new_tokens=6, max_new_tokens=5)


def test_stop_token_ids_lie_within_the_vocabulary(llama: Checkpoint):
    assert resolve(llama, stop_token_ids=(llama.vocab_size - 1,)).stop_token_ids == (llama.vocab_size - 1,)
    with pytest.raises(InvalidRequestError) as caught:
        resolve(llama, stop_token_ids=(1, llama.vocab_size))
    assert caught.value.reason is Reason.TOKEN_OUT_OF_RANGE
    assert caught.value.violations[0].field == "config.sampling.stop_token_ids[1]"


def test_bounds_themselves_are_allowed(llama: Checkpoint):
    resolve(llama, temperature=100, top_p=1, top_k=llama.vocab_size, min_p=1, seed=(1 << 64) - 1)
    resolve(llama, temperature=0, top_k=0, min_p=0, seed=0, stop=("x" * 256,) * 16, max_new_tokens=1)
    resolve(llama, repetition_penalty=1 / 16, presence_penalty=-2, frequency_penalty=2)
    resolve(llama, repetition_penalty=16, presence_penalty=2, frequency_penalty=-2)


def test_unset_options_take_the_defaults_of_the_configuration(llama: Checkpoint):
    assert resolve(llama).temperature == 0.0
    config = EngineConfig(default_temperature=0.7, default_top_p=0.8, default_top_k=20, default_min_p=0.1)
    resolved = resolve(llama, config=config)
    assert (resolved.temperature, resolved.top_p, resolved.top_k, resolved.min_p) == (0.7, 0.8, 20, 0.1)
    asked = resolve(llama, config=config, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
    assert (asked.temperature, asked.top_p, asked.top_k, asked.min_p) == (0.0, 1.0, 0, 0.0)


def test_unset_penalties_take_the_defaults_of_the_configuration(llama: Checkpoint):
    assert not resolve(llama).has_penalties
    config = EngineConfig(
        default_repetition_penalty=1.05, default_presence_penalty=0.5, default_frequency_penalty=-0.25
    )
    resolved = resolve(llama, config=config)
    assert (resolved.repetition_penalty, resolved.presence_penalty, resolved.frequency_penalty) == (1.05, 0.5, -0.25)
    off = resolve(llama, config=config, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0)
    assert not off.has_penalties
    assert resolve(llama, repetition_penalty=1.5).has_penalties
    assert resolve(llama, presence_penalty=1.5).has_penalties
    assert resolve(llama, frequency_penalty=1.5).has_penalties


def test_an_unset_length_takes_the_default_of_the_configuration(llama: Checkpoint):
    config = EngineConfig(default_max_new_tokens=50)
    unset = resolve(llama, config=config)
    assert (unset.max_new_tokens, unset.context_limited) == (50, False)
    near_the_end = resolve(llama, prompt_tokens=60, config=config)
    assert (near_the_end.max_new_tokens, near_the_end.context_limited) == (40, True)
    assert resolve(llama, config=config, max_new_tokens=7).max_new_tokens == 7


def test_a_default_length_gives_way_to_a_request_that_wants_at_least_more(llama: Checkpoint):
    resolved = resolve(llama, config=EngineConfig(default_max_new_tokens=50), min_new_tokens=60)
    assert (resolved.min_new_tokens, resolved.max_new_tokens) == (60, 60)


def test_a_temperature_too_small_to_divide_by_is_greedy(llama: Checkpoint):
    assert resolve(llama, temperature=1e-6).temperature == 0.0


def test_an_unset_seed_is_drawn_anew(llama: Checkpoint):
    seeds = {resolve(llama).seed for _ in range(5)}
    assert len(seeds) == 5
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    assert resolve(llama, seed=7).seed == 7


def test_the_answer_is_fitted_to_the_context(llama: Checkpoint):
    unset = resolve(llama)
    assert (unset.max_new_tokens, unset.context_limited) == (90, True)
    too_long = resolve(llama, max_new_tokens=91)
    assert (too_long.max_new_tokens, too_long.context_limited) == (90, True)
    fits = resolve(llama, max_new_tokens=90, min_new_tokens=80)
    assert (fits.max_new_tokens, fits.min_new_tokens, fits.context_limited) == (90, 80, False)


def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(llama: Checkpoint):
    assert resolve(llama, prompt_tokens=99).max_new_tokens == 1
    with pytest.raises(InvalidRequestError) as caught:
        resolve(llama, prompt_tokens=100)
    assert caught.value.reason is Reason.PROMPT_TOO_LONG
    assert caught.value.violations[0].field == "prompt"
    assert "100 tokens" in caught.value.violations[0].description
    assert "holds 100" in caught.value.violations[0].description
    assert "media" not in caught.value.violations[0].description, "it takes text only"


def test_a_prompt_that_leaves_no_room_may_show_less_where_it_can_show_anything(qwen: Checkpoint):
    with pytest.raises(InvalidRequestError, match=r"with its media.* or show less of its media"):
        resolve(qwen, prompt_tokens=100)


def test_end_ids_are_the_checkpoints_unless_ignored(llama: Checkpoint):
    assert resolve(llama).end_ids == llama.end_ids != ()
    assert resolve(llama, ignore_eos=True).end_ids == ()


def test_limits_come_from_the_configuration(llama: Checkpoint):
    config = EngineConfig(max_stop_strings=1, max_stop_string_characters=3, max_stop_token_ids=0)
    for options in (
        SamplingOptions(stop=("a", "b")),
        SamplingOptions(stop=("abcd",)),
        SamplingOptions(stop_token_ids=(1,)),
    ):
        with pytest.raises(InvalidRequestError):
            sampling.check(options, llama, config)
