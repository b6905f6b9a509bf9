"""Answers under penalties are those of transformers' `generate`, whatever is computed beside them, and in which way."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

from fanlight_engine import LLM, OutputOptions, SamplingOptions, TokenPrompt
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import AddRequest
from tests.engine.driver import Driver, compare, request_for
from tests.engine.reference import Case, Reference

NEW_TOKENS = 14
PROMPTS = {
    "llama_path": (("text", 2), ("multi_turn", 0)),
    "qwen_path": (("text", 1), ("one_image", 1), ("clip_and_images", 0)),
}
"""Kinds and seeds of prompts whose answers each penalty changes."""
PENALTIES: tuple[dict[str, float], ...] = (
    {},
    {"repetition_penalty": 1.05},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.9},
    {"presence_penalty": 2.0},
    {"presence_penalty": -1.5},
    {"frequency_penalty": -1.0},
    {"repetition_penalty": 1.2, "presence_penalty": 1.5, "frequency_penalty": -0.5},
)


@dataclass(frozen=True, slots=True)
class Way:
    """How the same prompts are computed; `presses` leaves little more room than the longest request needs."""

    name: str
    settings: dict[str, Any]
    at_once: int = 8
    presses: bool = False
    repeats: bool = False


WAYS = (
    Way("alone", {"max_running_requests": 1}, at_once=1),
    Way("together", {"max_running_requests": 8}),
    Way("in_chunks", {"max_running_requests": 8, "max_step_tokens": 23}),
    Way("preempted", {"max_running_requests": 8, "max_step_tokens": 96}, presses=True),
    Way("from_the_prefix_cache", {"max_running_requests": 8, "max_step_tokens": 96}, repeats=True),
)


class AnswerPenalties(LogitsProcessor):
    """Presence and frequency by OpenAI's definition, over what comes after the prompt, one token at a time."""

    def __init__(self, prompt_length: int, presence: float, frequency: float) -> None:
        self._prompt_length = prompt_length
        self._presence = presence
        self._frequency = frequency

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        scores = scores.clone()
        answer: list[int] = input_ids[0, self._prompt_length :].tolist()
        for token in set(answer):
            scores[0, token] -= self._presence + self._frequency * answer.count(token)
        return scores


@dataclass(frozen=True, slots=True)
class Asked:
    """A case with the penalties that it was answered under."""

    case: Case
    penalties: dict[str, float]

    def request(self, number: int, reference: Reference) -> AddRequest:
        """The case as a request."""
        made = request_for(self.case, number, reference.checkpoint, NEW_TOKENS)
        return msgspec.structs.replace(made, sampling=msgspec.structs.replace(made.sampling, **self.penalties))


def ask(reference: Reference, kind: str, seed: int, penalties: dict[str, float], min_new_tokens: int) -> Asked:
    """A prompt, answered by `generate` under the penalties."""
    generate = reference.model.generate

    def penalised(**inputs: Any) -> Any:
        presence, frequency = penalties.get("presence_penalty", 0.0), penalties.get("frequency_penalty", 0.0)
        ours = AnswerPenalties(inputs["input_ids"].shape[1], presence, frequency)
        repetition = penalties.get("repetition_penalty")
        return generate(**inputs, repetition_penalty=repetition, logits_processor=LogitsProcessorList([ours]))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reference.model, "generate", penalised)
        return Asked(reference.case(kind, random.Random(f"{kind} {seed}"), NEW_TOKENS, min_new_tokens), penalties)


@pytest.fixture(scope="module", params=list(PROMPTS))
def reference(request: pytest.FixtureRequest) -> Reference:
    path: Path = request.getfixturevalue(request.param)
    return Reference(path)


@pytest.fixture(scope="module")
def asked(reference: Reference) -> list[Asked]:
    """Every prompt under all penalties, so that equal prompts are answered differently; one kind holds the end back."""
    prompts = PROMPTS["qwen_path" if reference.checkpoint.takes_images else "llama_path"]
    return [
        ask(reference, kind, seed, penalties, NEW_TOKENS * (kind == "one_image"))
        for kind, seed in prompts
        for penalties in PENALTIES
    ]


def run(reference: Reference, asked: Sequence[Asked], way: Way) -> Driver:
    """Everything that was asked, in batches drawn from a fixed seed."""
    longest = max(len(one.case.prompt_ids) for one in asked) + NEW_TOKENS
    pages: dict[str, Any] = {"kv_pages": 1 + -(-longest // 16) + 1} if way.presses else {}
    config = EngineConfig(torch_threads=1, context_length=longest, **way.settings, **pages)
    driver = Driver(config, reference.checkpoint)
    requests = [one.request(number, reference) for number, one in enumerate(asked)]
    order = random.Random(way.name).sample(requests, len(requests))
    for _ in range(2 if way.repeats else 1):
        driver.run_in_random_batches(order, random.Random(3), way.at_once)
    compare([driver.answers[one.request_id] for one in requests], [one.case for one in asked])
    return driver


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_penalised_and_plain_answers_are_those_of_generate(reference: Reference, asked: list[Asked], way: Way) -> None:
    driver = run(reference, asked, way)
    statistics = driver.engine.statistics()
    assert (driver.largest_batch > 1) is (way.at_once > 1)
    assert (statistics.preemptions > 0) is way.presses
    if way.repeats:
        assert all(one.prefilled and one.prefilled.cached_tokens for one in driver.answers.values())


def test_these_penalties_change_answers(asked: list[Asked]) -> None:
    """Otherwise the comparison with `generate` would prove nothing."""
    plain = {one.case.prompt_ids: one.case.answer for one in asked if not one.penalties}
    for penalties in PENALTIES[1:]:
        changed = [one.case.answer != plain[one.case.prompt_ids] for one in asked if one.penalties == penalties]
        assert any(changed), penalties


def test_a_checkpoint_of_which_nobody_wants_penalties_marks_nothing(reference: Reference, asked: list[Asked]) -> None:
    plain = [one for one in asked if not one.penalties]
    assert run(reference, plain, WAYS[1]).engine._runner._marks._tensor is None


def test_a_checkpoint_that_ships_a_penalty_is_answered_under_it(llama_path: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(llama_path, tmp_path / "llama"))
    file = directory / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "repetition_penalty": 1.3}))
    kind, seed = PROMPTS["llama_path"][0]
    case = Reference(directory).case(kind, random.Random(f"{kind} {seed}"), NEW_TOKENS)
    plain = Reference(llama_path).case(kind, random.Random(f"{kind} {seed}"), NEW_TOKENS)
    assert case.answer != plain.answer, "generate reads the file as well"
    output = OutputOptions(token_ids=True)
    with LLM(directory, torch_threads=1) as llm:
        (unset,) = llm.generate(TokenPrompt(case.prompt_ids), SamplingOptions(max_new_tokens=NEW_TOKENS), output=output)
        off = SamplingOptions(max_new_tokens=NEW_TOKENS, repetition_penalty=1.0)
        (chosen,) = llm.generate(TokenPrompt(case.prompt_ids), off, output=output)
    assert tuple(unset.token_ids) == case.answer
    assert tuple(chosen.token_ids) == plain.answer
