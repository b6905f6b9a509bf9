"""LoRA adapters answer as peft does with them: alone, and in batches that mix adapters and the checkpoint itself."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torchao.quantization import Int8WeightOnlyConfig
from transformers import LlamaForCausalLM, TorchAoConfig

from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import AddRequest, Rejected, SamplingParams
from fanlight_engine.core.scheduler import Plan
from fanlight_engine.errors import CheckpointError
from fanlight_engine.model.decode_step import Bucket, DecodeStep
from fanlight_engine.model.loading.loader import load_model
from fanlight_engine.model.lora.files import CONFIG_FILE, WEIGHTS_FILE, read_lora_files
from fanlight_engine.model.lora.rows import add_loras
from fanlight_engine.model.lora.weights import read_low_rank
from fanlight_engine.model.runner import Launched
from tests.engine.capture_guard import CaptureGuard
from tests.engine.driver import Driver, compare, request_for
from tests.engine.lora_adapters import EVERY_LINEAR, LoraReference, decoder_modules, make_lora
from tests.engine.reference import Case, Reference
from tests.engine.test_decode_guard import EVERY_KIND_OF_SAMPLING

NEW_TOKENS = 10
PROMPTS = 7
"""A round over the kinds of a checkpoint with a tower."""
BASE, RED, BLUE = "", "red", "org/blue-2"


@dataclass(frozen=True, slots=True)
class Adapted:
    """A checkpoint with two adapters, and what each of the three answers to the same prompts, by name."""

    base: Path
    setting: str
    cases: dict[str, list[Case]]
    reference: Reference

    def driver(self, **settings: Any) -> Driver:
        """A core with both adapters."""
        return Driver(EngineConfig(**{"torch_threads": 1, "lora": self.setting, **settings}), self.reference.checkpoint)

    def requests(self, name: str) -> list[AddRequest]:
        """All prompts, asked under a name."""
        requests = [
            request_for(case, number, self.reference.checkpoint, NEW_TOKENS)
            for number, case in enumerate(self.cases[name])
        ]
        return [msgspec.structs.replace(one, request_id=f"{name} {one.request_id}", lora=name) for one in requests]

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and its answer."""
        return max(len(case.prompt_ids) for case in self.cases[BASE]) + NEW_TOKENS


def _adapted(directory: Path, base: Path, targets: Callable[..., Any]) -> Adapted:
    red = make_lora(directory / "red", base, seed=1, target_modules=targets(*EVERY_LINEAR))
    blue = make_lora(directory / "blue", base, seed=2, r=2, lora_alpha=6, target_modules=targets("q_proj", "down_proj"))
    reference = Reference(base)
    cases = {
        BASE: reference.cases(PROMPTS, NEW_TOKENS),
        RED: LoraReference(base, red).cases(PROMPTS, NEW_TOKENS),
        BLUE: LoraReference(base, blue).cases(PROMPTS, NEW_TOKENS),
    }
    return Adapted(base, f"{RED}={red},{BLUE}={blue}", cases, reference)


def _mixes_of_steps(driver: Driver) -> set[frozenset[str]]:
    """Filled with the names that were asked for together in one step."""
    mixes: set[frozenset[str]] = set()
    launch = driver.engine._runner.launch

    def watched(plan: Plan, after: Launched | None = None) -> Launched:
        mixes.add(frozenset(chunk.sequence.request.lora for chunk in plan.chunks))
        return launch(plan, after)

    driver.engine._runner.launch = watched
    return mixes


@pytest.fixture(scope="module", params=["llama", "qwen2_5_vl"])
def adapted(
    request: pytest.FixtureRequest, llama_path: Path, qwen_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Adapted:
    directory = tmp_path_factory.mktemp("adapters")
    if request.param == "llama":
        return _adapted(directory, llama_path, lambda *names: list(names))
    return _adapted(directory, qwen_path, decoder_modules)


ARRANGEMENTS = {
    "alone": {"max_running_requests": 1},
    "in random batches": {"max_running_requests": 16},
    "in chunks inside images": {"max_running_requests": 16, "max_step_tokens": 23},
    "under KV pressure": {"max_running_requests": 16, "max_step_tokens": 96},
}


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_batches_that_mix_adapters_and_the_base_answer_as_each_does_alone(adapted: Adapted, arrangement: str) -> None:
    settings = {"context_length": adapted.longest, **ARRANGEMENTS[arrangement]}
    if "pressure" in arrangement:
        settings["kv_pages"] = 1 + -(-adapted.longest // 16) + 2
    driver = adapted.driver(**settings)
    mixes = _mixes_of_steps(driver)
    requests = {name: adapted.requests(name) for name in adapted.cases}
    order = [one for of_name in requests.values() for one in of_name]
    random.Random(5).shuffle(order)
    driver.run_in_random_batches(order, random.Random(3), settings["max_running_requests"])
    for name, of_name in requests.items():
        compare([driver.answers[one.request_id] for one in of_name], adapted.cases[name])
    for pair in ({RED, BLUE}, {BASE, RED}, {BASE, BLUE}):
        assert any(pair <= mix for mix in mixes) == ("alone" not in arrangement)
    assert bool(driver.engine.statistics().preemptions) == ("pressure" in arrangement)
    if "inside images" in arrangement and adapted.reference.checkpoint.takes_images:
        assert driver.chunks_starting_inside_an_image


def test_the_adapters_change_answers(adapted: Adapted) -> None:
    """Otherwise nothing here would be proved."""
    for answers in zip(*adapted.cases.values(), strict=True):
        assert len({case.prompt_ids for case in answers}) == 1
        assert len({case.answer for case in answers}) == 3


def test_the_same_prompt_under_other_adapters_shares_no_pages(adapted: Adapted) -> None:
    driver = adapted.driver(context_length=adapted.longest)
    twice = {name: [adapted.requests(name)[-1]] * 2 for name in adapted.cases}
    for turn in range(2):
        for name, requests in twice.items():
            driver.add(requests[turn])
            driver.run()
            answer = driver.answers[requests[turn].request_id]
            compare([answer], adapted.cases[name][-1:])
            assert answer.prefilled is not None
            assert bool(answer.prefilled.cached_tokens) == (turn == 1), name


def test_adapters_of_the_same_content_share_pages_under_any_name(llama_path: Path, tmp_path: Path) -> None:
    path = make_lora(tmp_path / "one", llama_path, seed=4, target_modules=["q_proj"])
    checkpoint = Reference(llama_path).checkpoint
    driver = Driver(EngineConfig(torch_threads=1, context_length=128, lora=f"one={path},two={path}"), checkpoint)
    for name in ("one", "two"):
        driver.add(AddRequest(name, tuple(range(30, 80)), SamplingParams(4), lora=name))
        driver.run()
    assert driver.answers["two"].ids == driver.answers["one"].ids
    prefilled = driver.answers["two"].prefilled
    assert prefilled is not None
    assert prefilled.cached_tokens == 48


FORMS: dict[str, dict[str, Any]] = {
    "ranks and scalings by module": {
        "target_modules": ["q_proj", "v_proj", "up_proj"],
        "rank_pattern": {"up_proj": 7, "layers.0.self_attn.q_proj": 1},
        "alpha_pattern": {"v_proj": 40},
    },
    "rank-stabilised scaling": {"target_modules": ["o_proj"], "use_rslora": True, "r": 9},
    "one layer": {"target_modules": ["down_proj", "gate_proj"], "layers_to_transform": [1], "lora_alpha": 64},
    "but for some modules": {"target_modules": "all-linear", "exclude_modules": r".*layers\.0\..*"},
    "the head": {"target_modules": ["lm_head", "k_proj"], "lora_alpha": 32},
    "with dropout while it was trained": {"target_modules": ["q_proj"], "lora_dropout": 0.5, "lora_alpha": 64},
    "gaussian beginning": {"target_modules": ["v_proj"], "init_lora_weights": "gaussian", "lora_alpha": 64},
}


@pytest.fixture(scope="module")
def forms(llama_path: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, list[Case]]]:
    """The setting of an adapter of every form, and peft's answers with each."""
    directory = tmp_path_factory.mktemp("forms")
    adapters = [
        make_lora(directory / f"form-{number}", llama_path, seed=number, **options)
        for number, options in enumerate(FORMS.values())
    ]
    cases = {
        form: LoraReference(llama_path, adapter).cases(3, NEW_TOKENS)
        for form, adapter in zip(FORMS, adapters, strict=True)
    }
    setting = ",".join(f"{adapter.name}={adapter}" for adapter in adapters)
    return setting, cases


def test_every_form_of_adapter_answers_as_with_peft(
    forms: tuple[str, dict[str, list[Case]]], llama: Checkpoint
) -> None:
    """All in one batch, so that modules have other adapters beside each other than their neighbours have."""
    setting, by_form = forms
    driver = Driver(EngineConfig(torch_threads=1, context_length=512, max_running_requests=8, lora=setting), llama)
    requests: dict[str, list[AddRequest]] = {}
    for number, (form, cases) in enumerate(by_form.items()):
        made = [request_for(case, index, llama, NEW_TOKENS) for index, case in enumerate(cases)]
        requests[form] = [
            msgspec.structs.replace(one, request_id=f"{form} {one.request_id}", lora=f"form-{number}") for one in made
        ]
    driver.run_in_random_batches([one for made in requests.values() for one in made], random.Random(1), 8)
    for form, made in requests.items():
        compare([driver.answers[one.request_id] for one in made], by_form[form])


def test_an_unknown_adapter_is_refused_by_the_core(adapted: Adapted) -> None:
    driver = adapted.driver(context_length=64)
    refused = driver.add(AddRequest("r", (30, 31), SamplingParams(2), lora="green"))
    assert isinstance(refused, Rejected)
    assert (refused.reason, refused.field) == ("MODEL_NOT_FOUND", "model")
    assert not driver.engine.has_work


@pytest.fixture(scope="module")
def decode_step(adapted: Adapted) -> DecodeStep:
    """The decode step of a core in which adapters and the base have decoded together."""
    driver = adapted.driver(context_length=adapted.longest, max_running_requests=8)
    for name in adapted.cases:
        driver.add(adapted.requests(name)[0])
    driver.run()
    assert driver.engine.statistics().decode_steps > 0
    return driver.engine._runner._decode_step


@pytest.mark.parametrize("mode", EVERY_KIND_OF_SAMPLING[:1] + EVERY_KIND_OF_SAMPLING[-1:], ids=str)
def test_a_decode_step_with_adapters_reads_nothing_on_the_host(decode_step: DecodeStep, mode: Any) -> None:
    bucket = Bucket(4, pages=8, has_loras=True)
    with torch.inference_mode(), CaptureGuard():
        decode_step.forward(bucket)
        decode_step.sample(bucket, mode)


@pytest.mark.parametrize("fails", [False, True])
def test_reading_an_adapter_leaves_the_model_as_it_was(qwen: Checkpoint, tmp_path: Path, fails: bool) -> None:
    """peft and transformers put things into it, and may set up anew what is there."""
    model = load_model(qwen, torch.device("cpu"), torch.float32)
    before = {name: tensor.clone() for name, tensor in _tensors(model).items()}
    kinds = [type(module) for module in model.modules()]
    targets = ["up_proj"] if fails else decoder_modules("q_proj", "up_proj")  # the tower has an up_proj, too
    make_lora(tmp_path / "mine", qwen.path, seed=1, target_modules=targets)
    (files,) = read_lora_files(f"mine={tmp_path / 'mine'}", "base")
    if fails:
        with pytest.raises(CheckpointError):
            read_low_rank(model, files)
    else:
        assert len(read_low_rank(model, files)) == 4
    after = _tensors(model)
    assert after.keys() == before.keys()
    assert all(after[name].equal(tensor) for name, tensor in before.items())
    assert [type(module) for module in model.modules()] == kinds
    assert not any(tensor.requires_grad for tensor in after.values())
    assert not any(module.training for module in model.modules())


@pytest.mark.parametrize("fixture", ["llava_path", "llama_path"])
def test_adapters_whose_modules_have_the_names_of_an_older_release_are_read(
    fixture: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """peft writes whole paths of modules where a pattern or an exclusion chose them."""
    base = read_checkpoint(request.getfixturevalue(fixture))
    model = load_model(base, torch.device("cpu"), torch.float32)
    targets = decoder_modules("q_proj", "v_proj") if base.takes_images else ["q_proj", "v_proj"]
    today = make_lora(tmp_path / "today", base.path, seed=1, target_modules=targets)
    older = Path(shutil.copytree(today, tmp_path / "older"))
    above = "language_model.model" if base.takes_images else "model"
    paths = [f"{above}.layers.{layer}.self_attn.{name}" for layer in (0, 1) for name in ("q_proj", "v_proj")]
    config = json.loads((older / CONFIG_FILE).read_text())
    (older / CONFIG_FILE).write_text(json.dumps({**config, "target_modules": paths}))
    weights = load_file(older / WEIGHTS_FILE)
    renamed = {key.replace("model.model.language_model.", f"model.{above}."): one for key, one in weights.items()}
    assert (renamed.keys() == weights.keys()) is not base.takes_images
    save_file(renamed, older / WEIGHTS_FILE)
    read = {files.lora.name: read_low_rank(model, files) for files in read_lora_files(f"a={today},b={older}", "base")}
    assert len(read["a"]) == 4
    assert read["a"].keys() == read["b"].keys()
    assert all(
        one.down.equal(read["b"][path].down) and one.up.equal(read["b"][path].up) for path, one in read["a"].items()
    )


@torch.inference_mode()
def test_quantised_modules_are_added_to_as_with_peft(llama: Checkpoint, tmp_path: Path) -> None:
    path = make_lora(tmp_path / "mine", llama.path, seed=1, target_modules=list(EVERY_LINEAR))
    model = _in_int8(llama.path)
    rows = add_loras(model, read_lora_files(f"mine={path}", "base"))
    ids = torch.arange(30, 60)[None]
    with rows.taking(torch.ones(30, dtype=torch.int64)):
        ours = model(ids).logits
    theirs = PeftModel.from_pretrained(_in_int8(llama.path), str(path)).eval()(input_ids=ids).logits
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    assert not torch.allclose(model(ids).logits, theirs, atol=1.0)


def _in_int8(path: Path) -> Any:
    quantized = TorchAoConfig(Int8WeightOnlyConfig())
    return LlamaForCausalLM.from_pretrained(path, dtype=torch.float32, quantization_config=quantized).eval()


def _tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())
