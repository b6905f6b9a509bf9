"""LLM and AsyncLLM answer as a server does: same prompts, same answers, same errors, nothing left behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

import fanlight_engine
from fanlight_engine import LLM, AsyncLLM, Completion, OutputOptions, RawPrompt, SamplingOptions, TextPart
from fanlight_engine.errors import (
    CheckpointError,
    ConfigError,
    EngineStoppedError,
    InvalidRequestError,
    UnknownModelError,
)
from fanlight_engine.events import Accepted, Finished, Usage
from fanlight_engine.request import FinishReason
from tests.engine.conversations import png
from tests.engine.lora_adapters import EVERY_LINEAR, make_lora

TEN = SamplingOptions(max_new_tokens=10, ignore_eos=True)
IDS = OutputOptions(token_ids=True)
PICTURE = png(100, 80)


@pytest.fixture(scope="module")
def llm(tiny_path: Path) -> Iterator[LLM]:
    with LLM(tiny_path, torch_threads=1, max_running_requests=4) as one:
        yield one


def test_one_prompt_gives_a_list_of_one(llm: LLM) -> None:
    (answer,) = llm.generate("Hello", TEN, output=IDS)
    assert isinstance(answer, Completion)
    assert len(answer.token_ids) == answer.usage.completion_tokens == 10
    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.text


def test_a_batch_comes_back_in_order_and_equal_to_each_prompt_alone(llm: LLM) -> None:
    prompts = ["Hello", "Describe the image.", [{"role": "user", "content": ["Is it", {"type": "image"}, "red?"]}]] * 3
    media = [None, {"image": PICTURE}, {"image": Image.new("RGB", (60, 60), "red")}] * 3
    together = llm.generate(prompts, TEN, media)
    alone = [llm.generate(prompt, TEN, own)[0] for prompt, own in zip(prompts[:3], media[:3], strict=True)]
    assert [one.text for one in together] == [one.text for one in alone] * 3
    assert together[1].usage.image_tokens > 0
    assert llm.generate([], TEN) == []


def test_each_prompt_may_have_a_sampling_of_its_own(llm: LLM) -> None:
    short, long = llm.generate(["Hello", "Hello"], [SamplingOptions(max_new_tokens=2, ignore_eos=True), TEN])
    assert (short.usage.completion_tokens, long.usage.completion_tokens) == (2, 10)
    with pytest.raises(ValueError, match="sampling for 1 prompts, there are 2"):
        llm.generate(["Hello", "Hello"], [TEN])
    with pytest.raises(TypeError, match="sampling is SamplingOptions"):
        llm.generate("Hello", {"temperature": 0})  # pyright: ignore[reportArgumentType] what is tested


def test_a_stream_says_what_the_whole_answer_says(llm: LLM) -> None:
    pieces = list(llm.stream("Describe the image.", TEN, {"image": PICTURE}))
    assert len(pieces) > 1
    assert "".join(pieces) == llm.generate("Describe the image.", TEN, {"image": PICTURE})[0].text


def test_events_are_those_of_the_engine(llm: LLM) -> None:
    events = list(llm.events("Hello", TEN))
    assert [type(events[0]), type(events[-2]), type(events[-1])] == [Accepted, Finished, Usage]


def test_a_stream_that_is_left_early_frees_its_request(llm: LLM) -> None:
    stream = llm.stream("Hello", SamplingOptions(ignore_eos=True))
    next(stream)
    stream.close()  # pyright: ignore[reportAttributeAccessIssue] it is a generator
    assert not llm._llm._front.running_ids
    llm._wait_for(llm._llm._front.client.check_integrity())


def test_a_request_is_refused_with_the_servers_words(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"config\.sampling\.top_p: got 2"):
        llm.generate("Hello", SamplingOptions(top_p=2))
    with pytest.raises(InvalidRequestError, match=r"^prompts\[1\]\[0\]: "):
        llm.generate(["Hello", [10**6]], TEN)
    assert not llm._llm._front.running_ids, "the others were cancelled"
    fine, refused = llm.generate(["Hello", [10**6]], TEN, return_errors=True)
    assert isinstance(fine, Completion)
    assert isinstance(refused, InvalidRequestError)


def test_a_picture_that_cannot_be_read_costs_its_own_prompt_alone(llm: LLM) -> None:
    prompts, media = ["Hello", "What is it?", "Hello"], [{"image": "to/be.png"}, {"image": b"no picture"}, None]
    missing, broken, fine = llm.generate(prompts, TEN, media, return_errors=True)
    assert isinstance(missing, InvalidRequestError)
    assert isinstance(broken, InvalidRequestError)
    assert [one.violations[0].field for one in (missing, broken)] == ["media[0].image", "media[1].image"]
    assert isinstance(fine, Completion)
    for prompt, own, told in (("Hello", media[0], "to/be.png"), ("Hello", media[1], r"^media\.image: ")):
        with pytest.raises(InvalidRequestError, match=told):
            llm.generate(prompt, TEN, own)
        with pytest.raises(InvalidRequestError, match=told):
            llm.count_tokens(prompt, own)
        with pytest.raises(InvalidRequestError, match=told):
            list(llm.stream(prompt, TEN, own))


def test_each_prompt_may_name_a_model_of_its_own(llm: LLM) -> None:
    fine, unknown = llm.generate(["Hello", "Hello"], TEN, model=["", "no-adapter"], return_errors=True)
    assert isinstance(fine, Completion)
    assert isinstance(unknown, UnknownModelError)
    assert unknown.violations[0].field.startswith("prompts[1]: ")
    with pytest.raises(ValueError, match="model for 1 prompts, there are 2"):
        llm.generate(["Hello", "Hello"], TEN, model=[""])
    with pytest.raises(TypeError, match="model is str or a list of them"):
        llm.generate("Hello", TEN, model=7)  # pyright: ignore[reportArgumentType] what is tested


def test_a_batch_may_mix_adapters_and_the_checkpoint_itself(llama_path: Path, tmp_path: Path) -> None:
    red = make_lora(tmp_path / "red", llama_path, seed=1, target_modules=list(EVERY_LINEAR))
    prompt, models = [5, 6, 7, 8], ["", "red", ""]
    with LLM(llama_path, torch_threads=1, lora=f"red={red}") as llm:
        mixed = [one.token_ids for one in llm.generate([prompt] * 3, TEN, model=models, output=IDS)]
        alone = [llm.generate(prompt, TEN, model=name, output=IDS)[0].token_ids for name in models]
    assert mixed == alone
    assert mixed[0] != mixed[1]


def test_more_prompts_than_can_run_or_wait_are_all_answered(tiny_path: Path) -> None:
    with LLM(tiny_path, torch_threads=1, max_running_requests=2, max_waiting_requests=1) as llm:
        answers = llm.generate(["Hello"] * 9, SamplingOptions(max_new_tokens=2, ignore_eos=True))
    assert {one.usage.completion_tokens for one in answers} == {2}


def test_prompts_can_be_counted_and_tokenised(llm: LLM) -> None:
    counted = llm.count_tokens("Describe the image.", {"image": PICTURE})
    (answer,) = llm.generate("Describe the image.", TEN, {"image": PICTURE})
    assert counted.prompt_tokens == answer.usage.prompt_tokens
    ids = [token.id for token in llm.tokenize("a red circle")]
    assert llm.detokenize(ids) == "a red circle"
    assert llm.generate(ids, TEN)[0].text == llm.generate(RawPrompt((TextPart("a red circle"),)), TEN)[0].text


def test_several_threads_may_ask(llm: LLM) -> None:
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(llm.generate("Hello", TEN)[0].text)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [llm.generate("Hello", TEN)[0].text] * 4


def test_settings_have_sources_and_wrong_ones_are_refused(llm: LLM, tiny_path: Path) -> None:
    sources = {one.name: one.source for one in llm.settings.settings}
    assert (sources["torch_threads"], sources["page_size"]) == ("flag", "default")
    with pytest.raises(ConfigError, match="did you mean"):
        LLM(tiny_path, page_sise=16)
    with pytest.raises(CheckpointError):
        LLM(tiny_path / "nothing_here")


def test_after_close_everything_is_refused(tiny_path: Path) -> None:
    threads = set(threading.enumerate())
    llm = LLM(tiny_path, torch_threads=1)
    stream = llm.stream("Hello", SamplingOptions(ignore_eos=True))
    next(stream)
    llm.close()
    llm.close()
    with pytest.raises(EngineStoppedError, match="closed"):
        llm.generate("Hello")
    with pytest.raises(EngineStoppedError):
        list(stream)
    assert set(threading.enumerate()) <= threads


async def test_asyncio_code_gets_one_completion_for_one_prompt_and_a_list_for_a_list(tiny_path: Path) -> None:
    async with AsyncLLM(tiny_path, torch_threads=1) as llm:
        one = await llm.generate("Hello", TEN)
        first, second = await llm.generate(["Hello", "Hello"], TEN)
        assert one.text == first.text == second.text
        pieces = [piece async for piece in llm.stream("Hello", TEN)]
        assert "".join(pieces) == one.text
        task = asyncio.ensure_future(llm.generate("Hello", SamplingOptions(ignore_eos=True)))
        await anext(llm.stream("Hello", TEN))  # by now the other one runs, too
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
    with pytest.raises(EngineStoppedError):
        await llm.generate("Hello", TEN)


def test_importing_the_package_is_cheap_and_tells_its_names() -> None:
    code = "import sys, fanlight_engine; fanlight_engine.SamplingOptions; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert set(fanlight_engine.__all__) <= set(dir(fanlight_engine))
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        from fanlight_engine import Nothing  # noqa: F401  # pyright: ignore[reportAttributeAccessIssue]
