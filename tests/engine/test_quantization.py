"""int8 weights answer as transformers' generate does with the same ones; what cannot be loaded here says so before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torchao.quantization import Int8Tensor, Int8WeightOnlyConfig
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, TorchAoConfig

from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.build import build_engine
from fanlight_engine.errors import CheckpointError, ConfigError
from fanlight_engine.model.loading import loader
from fanlight_engine.model.loading.loader import load_planned, plan_loading
from tests.engine.driver import Driver, compare, request_for
from tests.engine.reference import Reference

CPU = torch.device("cpu")
NEW_TOKENS = 16
INT8 = EngineConfig(quantization="int8", kv_pages=256)


def with_quantization(path: Path, directory: Path, **values: Any) -> Checkpoint:
    """The checkpoint, saying that its weights are quantised."""
    copy = Path(shutil.copytree(path, directory))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "quantization_config": values}))
    return read_checkpoint(copy)


@pytest.mark.parametrize("fixture", ["llama_path", "qwen_path"])
def test_answers_are_those_of_generate_with_the_same_weights(fixture: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(fixture)
    reference = Reference(path)
    auto_class = AutoModelForImageTextToText if reference.checkpoint.takes_images else AutoModelForCausalLM
    kept = [name for name, module in reference.model.named_modules() if "visual" in name or name == "lm_head"]
    reference.model = auto_class.from_pretrained(
        path,
        dtype=torch.float32,
        quantization_config=TorchAoConfig(Int8WeightOnlyConfig(), modules_to_not_convert=kept),
    )
    cases = reference.cases(len(reference.kinds), NEW_TOKENS)
    driver = Driver(INT8, reference.checkpoint)
    requests = [request_for(case, number, reference.checkpoint, NEW_TOKENS) for number, case in enumerate(cases)]
    for one in requests:
        driver.add(one)
    driver.run()
    assert compare([driver.answers[one.request_id] for one in requests], cases).compared == len(cases)


@pytest.mark.parametrize("fixture", ["llama_path", "qwen_path", "llava_path"])
def test_only_the_decoders_linear_layers_are_quantised(fixture: str, request: pytest.FixtureRequest) -> None:
    plan = plan_loading(read_checkpoint(request.getfixturevalue(fixture)), CPU, torch.float32, "int8")
    model: Any = load_planned(plan)
    decoder = {id(module) for module in model.get_decoder().modules()}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            assert isinstance(module.weight.data, Int8Tensor) == (id(module) in decoder), name
    assert not isinstance(model.get_output_embeddings().weight.data, Int8Tensor)


def test_memory_is_counted_as_int8_takes_it(llama: Checkpoint) -> None:
    plain = build_engine(EngineConfig(kv_pages=8), llama).facts.memory
    small = build_engine(EngineConfig(kv_pages=8, quantization="int8"), llama).facts.memory
    model: Any = load_planned(plan_loading(llama, CPU, torch.float32, "int8"))
    taken = sum(
        one.qdata.nbytes + one.scale.nbytes if isinstance(one, Int8Tensor) else one.nbytes
        for one in (parameter.data for parameter in model.get_decoder().layers.parameters())
    )
    norm = model.get_decoder().norm.weight.nbytes
    assert small.decoder_bytes == taken + norm
    assert small.decoder_bytes < plain.decoder_bytes / 3
    assert small.embeddings_bytes == plain.embeddings_bytes


def test_another_word_than_int8_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"quantization is 'int2'.*, it must be int8, or empty$"):
        EngineConfig(quantization="int2")


# Checkpoints that bring quantised weights


def test_weights_that_torchao_stored_are_served_as_they_are(llama_path: Path, tmp_path: Path) -> None:
    quantised = AutoModelForCausalLM.from_pretrained(
        llama_path, dtype=torch.float32, quantization_config=TorchAoConfig(Int8WeightOnlyConfig())
    )
    stored = Path(shutil.copytree(llama_path, tmp_path / "stored", ignore=shutil.ignore_patterns("*.safetensors")))
    quantised.save_pretrained(stored)
    reference = Reference(stored)
    assert reference.checkpoint.quantization == "torchao"
    cases = reference.cases(6, NEW_TOKENS)
    driver = Driver(EngineConfig(kv_pages=256), reference.checkpoint)
    requests = [request_for(case, number, reference.checkpoint, NEW_TOKENS) for number, case in enumerate(cases)]
    for one in requests:
        driver.add(one)
    driver.run()
    assert compare([driver.answers[one.request_id] for one in requests], cases).compared == len(cases)


@pytest.mark.parametrize(
    ("values", "method"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"load_in_8bit": True}, "bitsandbytes"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors"),
    ],
)
def test_methods_that_need_a_gpu_are_refused_on_a_cpu_before_weights_are_read(
    values: dict[str, Any], method: str, llama_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = with_quantization(llama_path, tmp_path / "copy", **values)
    monkeypatch.setattr(loader, "find_weight_files", not_to_be_called)
    told = rf"copy/config.json has weights quantised with {method} .* need a GPU, and the device is cpu: serve the"
    with pytest.raises(CheckpointError, match=told):
        build_engine(EngineConfig(), checkpoint)


def not_to_be_called(*_: object) -> None:
    raise AssertionError("weights were looked at")


@pytest.mark.parametrize("values", [{"quant_method": "aqlm"}, {"bits": 3}])
def test_methods_that_nobody_loads_are_named_with_those_that_are(
    values: dict[str, Any], llama_path: Path, tmp_path: Path
) -> None:
    checkpoint = with_quantization(llama_path, tmp_path / "copy", **values)
    method = values.get("quant_method", "unknown")
    with pytest.raises(CheckpointError, match=rf"quantised with {method} .*supported: torchao, gptq, awq"):
        plan_loading(checkpoint, CPU, torch.float32)


def test_quantising_what_is_quantised_already_is_a_contradiction(llama_path: Path, tmp_path: Path) -> None:
    checkpoint = with_quantization(llama_path, tmp_path / "copy", quant_method="torchao")
    with pytest.raises(ConfigError, match=r"quantization is 'int8', and the weights of copy are quantised already"):
        plan_loading(checkpoint, CPU, torch.float32, "int8")
