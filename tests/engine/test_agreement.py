"""Logits come from the model's own head, and a model that does more than our way through it is never served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GraniteConfig

from fanlight_engine.checkpoints.checkpoint import read_checkpoint
from fanlight_engine.errors import CheckpointError
from fanlight_engine.model.adapter import ModelAdapter
from fanlight_engine.model.attention.interface import ATTENTION_NAME
from fanlight_engine.model.attention.reference import ReferenceAttention
from fanlight_engine.model.head import Head
from fanlight_engine.model.loading.agreement import check_agreement
from fanlight_engine.model.loading.loader import load_model
from tests.engine import text_checkpoints
from tests.engine.checkpoints import make_llama, make_llava, make_qwen2_5_vl

MAKERS: dict[str, Callable[[Path], Path]] = {
    "llama": make_llama,
    "llava": make_llava,
    "qwen2_5_vl": make_qwen2_5_vl,
    **text_checkpoints.MODELS,
}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Checkpoints by name, each made once."""
    place, paths = tmp_path_factory.mktemp("agreement"), {}

    def make(name: str) -> Path:
        if name not in paths:
            paths[name] = MAKERS[name](place / name)
        return paths[name]

    return make


class Loaded:
    """A checkpoint as the core loads it, up to the check."""

    def __init__(self, path: Path, dtype: torch.dtype = torch.float32) -> None:
        self.checkpoint = read_checkpoint(path)
        self.model: Any = load_model(self.checkpoint, CPU, dtype)

    def check(self) -> None:
        adapter = ModelAdapter(self.model, self.checkpoint)
        check_agreement(self.model, adapter, ReferenceAttention(), self.checkpoint, page_size=8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_every_family_agrees_in_every_number_type(name: str, dtype: torch.dtype, made: Callable[[str], Path]) -> None:
    Loaded(made(name), dtype).check()


def test_the_check_leaves_the_model_as_it_was(made: Callable[[str], Path]) -> None:
    loaded = Loaded(made("llava"))
    before = loaded.model.config._attn_implementation, loaded.model.config.vision_config._attn_implementation
    loaded.check()
    assert loaded.model.get_decoder().config._attn_implementation == ATTENTION_NAME
    assert (loaded.model.config._attn_implementation, loaded.model.config.vision_config._attn_implementation) == before
    assert not loaded.model.get_decoder()._forward_hooks


def test_a_head_without_the_final_soft_cap_is_found_out(made: Callable[[str], Path]) -> None:
    loaded = Loaded(made("gemma2"))
    loaded.checkpoint.config.final_logit_softcapping = None
    with pytest.raises(
        CheckpointError, match=r"gemma2 \(gemma2\) needs more than the family table says: its own logits"
    ):
        loaded.check()


def test_a_head_that_scales_logits_in_a_way_of_its_own_is_found_out(made: Callable[[str], Path]) -> None:
    loaded = Loaded(made("llama"))
    forward = loaded.model.forward

    def doubled(*given: Any, **named: Any) -> Any:
        output = forward(*given, **named)
        output.logits = output.logits * 2
        return output

    loaded.model.forward = doubled
    with pytest.raises(
        CheckpointError, match=r"its own logits differ from those of its head by 0\.5 of the largest one"
    ):
        loaded.check()


def test_embeddings_that_the_models_own_forward_changes_are_found_out(made: Callable[[str], Path]) -> None:
    loaded = Loaded(made("mistral"))
    decoder = loaded.model.get_decoder()

    def scale_what_is_no_embedding_yet(_: Any, given: Any, named: dict[str, Any]) -> Any:
        if named.get("input_ids") is None:
            return None
        embeddings = decoder.get_input_embeddings()(named["input_ids"]) * 3
        return given, {**named, "input_ids": None, "inputs_embeds": embeddings}

    decoder.register_forward_pre_hook(scale_what_is_no_embedding_yet, with_kwargs=True)
    with pytest.raises(CheckpointError, match="its own hidden states differ from those of its decoder"):
        loaded.check()


def test_attention_of_another_kind_is_found_out(made: Callable[[str], Path]) -> None:
    """A model whose tokens see those behind them, as those that make embeddings do."""
    loaded = Loaded(made("gemma3_text"))
    loaded.model.config.use_bidirectional_attention = True
    with pytest.raises(CheckpointError, match="its own hidden states differ from those of its decoder"):
        loaded.check()


def test_a_model_that_cannot_be_run_in_our_way_is_found_out(made: Callable[[str], Path]) -> None:
    loaded = Loaded(made("llama"))

    def with_sinks(module: Any, given: Any, named: dict[str, Any]) -> Any:
        return given, {**named, "s_aux": torch.zeros(1)}

    for layer in loaded.model.get_decoder().layers:
        layer.self_attn.register_forward_pre_hook(with_sinks, with_kwargs=True)
    with pytest.raises(CheckpointError, match=r"fails: a decoder asks its attention for \['s_aux'\]"):
        loaded.check()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [2.0, -40.0]),
        ({"final_logit_softcapping": 10.0}, [10 * 0.19737532, 10 * -0.99932930]),
        ({"logits_scaling": 8.0}, [0.25, -5.0]),
        ({"logit_scale": 0.5}, [1.0, -20.0]),
        ({"logits_scaling": 0.5, "final_logit_softcapping": 100.0}, [100 * 0.03997868, 100 * -0.66403677]),
    ],
)
def test_scales_and_soft_caps_of_the_configuration_are_applied(config: dict[str, float], expected: list[float]) -> None:
    projection = torch.nn.Linear(1, 2, bias=False)
    projection.weight.data = torch.tensor([[2.0], [-40.0]])
    text_config = GraniteConfig()
    text_config.logits_scaling = 1.0
    for name, value in config.items():
        setattr(text_config, name, value)
    logits = Head(projection, text_config).logits(torch.ones(1, 1))
    assert logits.tolist()[0] == pytest.approx(expected, rel=1e-5)


def test_logits_are_capped_in_full_precision() -> None:
    """In bfloat16 two large logits close to each other would become one."""
    projection = torch.nn.Linear(1, 2, bias=False, dtype=torch.bfloat16)
    projection.weight.data = torch.tensor([[64.0], [64.5]], dtype=torch.bfloat16)
    text_config = GraniteConfig()
    text_config.final_logit_softcapping = 30.0
    first, second = Head(projection, text_config).logits(torch.ones(1, 1, dtype=torch.bfloat16))[0].tolist()
    assert first < second
