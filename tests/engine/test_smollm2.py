"""The real thing: SmolLM2-135M-Instruct out of its package, served as transformers reads the same file.

Takes a minute or two and is left out of the default run; `make show-families` runs it (`pytest -m real_model`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.checkpoints.sources import ModelSource, resolve_model
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import AddRequest, SamplingParams
from tests.engine.driver import Driver

pytestmark = pytest.mark.real_model
NEW_TOKENS = 24
QUESTIONS = ("What is the capital of France?", "Count from 7 to 12.", "Name three colours of the rainbow.")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return resolve_model("smollm2", tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def checkpoint(source: ModelSource) -> Checkpoint:
    return read_checkpoint(source.directory, source.name)


@pytest.fixture(scope="module")
def own(source: ModelSource) -> tuple[Any, Any]:
    """transformers' own reading of the file."""
    assert source.gguf_file is not None
    where = {"pretrained_model_name_or_path": source.gguf_file.parent, "gguf_file": source.gguf_file.name}
    return AutoModelForCausalLM.from_pretrained(**where).eval(), AutoTokenizer.from_pretrained(**where)


def prompts(tokenizer: Any) -> list[list[int]]:
    turns = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return [tokenizer.apply_chat_template(one, add_generation_prompt=True)["input_ids"] for one in turns]


def test_it_is_what_its_package_says(source: ModelSource, checkpoint: Checkpoint) -> None:
    assert source.name == "smollm2"
    assert checkpoint.context_length == 8192
    assert checkpoint.end_ids == (2,)


def test_conversations_become_the_same_ids(checkpoint: Checkpoint, own: tuple[Any, Any]) -> None:
    assert prompts(AutoTokenizer.from_pretrained(checkpoint.path)) == prompts(own[1])


def test_it_answers_as_transformers_does_together_and_alone(checkpoint: Checkpoint, own: tuple[Any, Any]) -> None:
    model, tokenizer = own
    theirs = [
        model.generate(torch.tensor([ids]), max_new_tokens=NEW_TOKENS, do_sample=False)[0, len(ids) :].tolist()
        for ids in prompts(tokenizer)
    ]
    assert "Paris" in tokenizer.decode(theirs[0])
    driver = Driver(EngineConfig(kv_pages=256), checkpoint)
    sampling = SamplingParams(max_new_tokens=NEW_TOKENS, end_ids=checkpoint.end_ids)
    for number, ids in enumerate(prompts(tokenizer)):
        driver.add(AddRequest(request_id=str(number), prompt_ids=tuple(ids), sampling=sampling))
    driver.run()
    assert [driver.answers[str(number)].ids for number in range(len(theirs))] == theirs


def test_a_second_start_converts_nothing(source: ModelSource) -> None:
    lines: list[str] = []
    assert resolve_model("smollm2", source.directory.parent, lines.append) == source
    assert lines == [f"using {source.directory}, which was converted from {Path(str(source.gguf_file)).name}"]
