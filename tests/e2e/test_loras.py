"""A server with two LoRA adapters: each is a model with a name of its own, and answers as peft does with it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from peft import PeftModel

from fanlight import Answer, AsyncClient, NotFound
from tests.e2e.comparison import differing
from tests.e2e.made_models import model_path
from tests.e2e.pictures import picture
from tests.e2e.plain_transformers import PlainModel, PlainPrompt, compared_with_plain, upright
from tests.e2e.serving import PATIENCE_SECONDS, Served, serving
from tests.engine.lora_adapters import EVERY_LINEAR, decoder_modules, make_lora

BASE, RED, BLUE = "qwen2_5_vl", "red", "org/blue-2"
NAMES = (BASE, RED, BLUE)
QUESTIONS = ("What is in the picture?", "the cat looks at the river.", "seven birds")
TOKENS = 12
ASKED: Any = {"temperature": 0.0, "max_new_tokens": TOKENS, "ignore_eos": True, "token_ids": True, "logprobs": True}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory, base = tmp_path_factory.mktemp("adapters"), model_path(BASE)
    return {
        RED: make_lora(directory / "red", base, seed=1, target_modules=decoder_modules(*EVERY_LINEAR)),
        BLUE: make_lora(directory / "blue", base, seed=2, r=2, target_modules=decoder_modules("q_proj", "down_proj")),
    }


@pytest_asyncio.fixture(scope="module")
async def served(adapters: dict[str, Path]) -> AsyncIterator[Served]:
    setting = ",".join(f"{name}={path}" for name, path in adapters.items())
    async with serving(model_path(BASE), lora=setting, context_length=512) as one:
        yield one


async def ask(client: AsyncClient, name: str | None, number: int) -> Answer:
    return await client.generate(QUESTIONS[number], images=picture(number), model=name, **ASKED)


async def test_questions_asked_by_name_at_the_same_time_are_answered_as_with_peft(
    served: Served, adapters: dict[str, Path]
) -> None:
    asked = [(name, number) for name in NAMES for number in range(len(QUESTIONS))]
    answers = await asyncio.gather(*(ask(served.client, name, number) for name, number in asked))
    rows = []
    for name in NAMES:
        plain = PlainModel(model_path(BASE))
        if name in adapters:
            plain.model = PeftModel.from_pretrained(plain.model, str(adapters[name])).eval()
        for number, question in enumerate(QUESTIONS):
            content = [{"type": "image"}, {"type": "text", "text": question}]
            prompt = PlainPrompt([{"role": "user", "content": content}], [upright(picture(number))])
            answer = answers[asked.index((name, number))]
            rows.append(compared_with_plain(f"{name} {number}", plain.answer(prompt, TOKENS), answer))
    assert differing(rows) == []
    for number in range(len(QUESTIONS)):
        assert len({answer.text for (_, one), answer in zip(asked, answers, strict=True) if one == number}) == 3


async def test_the_default_is_the_checkpoint_itself(served: Served) -> None:
    assert (await ask(served.client, None, 0)).text == (await ask(served.client, BASE, 0)).text


async def test_the_same_prompt_under_another_name_finds_nothing_in_the_cache(served: Served) -> None:
    question = "a question that nobody has asked before, long enough for whole pages of the cache " * 2
    cached = []
    for name in (*NAMES, *NAMES):
        answer = await served.client.generate(question, model=name, **ASKED)
        assert answer.usage is not None
        cached.append(answer.usage.cached_tokens)
    begins_as_others_do = max(cached[: len(NAMES)])
    assert begins_as_others_do < min(cached[len(NAMES) :])
    assert begins_as_others_do <= 16, "a page of the template's beginning"


async def test_adapters_are_listed_after_the_checkpoint(served: Served) -> None:
    base, *others = await served.client.models()
    assert [one.name for one in (base, *others)] == list(NAMES)
    assert not base.HasField("base_model")
    assert [one.base_model for one in others] == [BASE, BASE]
    assert len({one.fingerprint for one in (base, *others)}) == 3
    for one in others:
        assert await served.client.model(one.name) == one
        told: Any = type(one)()
        told.CopyFrom(one)
        told.name, told.fingerprint = base.name, base.fingerprint
        told.ClearField("base_model")
        assert told == base
    assert list((await served.client.server_info()).models) == list(NAMES)


async def test_every_door_takes_the_name_of_an_adapter(served: Served) -> None:
    client = served.client
    counted = await client.count_tokens(QUESTIONS[0], images=picture(0), model=RED)
    assert counted.prompt_tokens == (await client.count_tokens(QUESTIONS[0], images=picture(0))).prompt_tokens
    assert await client.tokenize("seven birds", model=RED) == await client.tokenize("seven birds")
    encoded = await client.encode_images(picture(0), model=RED)
    assert encoded[0].model_fingerprint == (await client.model(BASE)).fingerprint
    turn_texts = []
    for name in (RED, BASE):
        async with client.chat(model=name, temperature=0.0, max_new_tokens=TOKENS, ignore_eos=True) as chat:
            turn = chat.send(QUESTIONS[0], images=picture(0))
            async for _ in turn:
                pass
            assert chat.model == name
            turn_texts.append(turn.text)
    assert turn_texts == [(await ask(client, name, 0)).text for name in (RED, BASE)]


async def test_an_unknown_name_is_not_found_and_the_answer_says_what_is_served(served: Served) -> None:
    client = served.client

    async def chat() -> None:
        async with client.chat(model="green") as one:
            one.send("anyone?")

    for call in (
        ask(client, "green", 0),
        client.count_tokens("anyone?", model="green"),
        client.tokenize("anyone?", model="green"),
        client.detokenize([5], model="green"),
        client.encode_images(picture(0), model="green"),
        client.model("green"),
    ):
        with pytest.raises(NotFound, match=r"'green'.*'qwen2_5_vl' or 'red' or 'org/blue-2'"):
            await call
    with pytest.raises(NotFound, match=r"'green'.*'qwen2_5_vl' or 'red' or 'org/blue-2'"):
        await chat()


def test_an_adapter_that_cannot_be_served_ends_the_command_with_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fanlight", "serve", "--port", "0", "--lora", f"mine={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 4, done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"fanlight serve: {tmp_path} has no adapter_config.json: give the directory of an adapter that peft has saved "
        "(adapter_config.json, adapter_model.safetensors)"
    )
    assert "Traceback" not in done.stderr
