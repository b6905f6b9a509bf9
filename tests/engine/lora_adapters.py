"""LoRA adapters with random weights, made and saved by peft on a checkpoint; and peft's own answers with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from fanlight_engine.checkpoints.checkpoint import read_checkpoint
from tests.engine.reference import Reference

EVERY_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def decoder_modules(*names: str) -> str:
    """A pattern of modules in the decoder of a checkpoint with a tower, whose modules may have the same names."""
    return rf".*language_model.*\.({'|'.join(names)})"


def make_lora(directory: Path, base: Path, seed: int, **options: Any) -> Path:
    """An adapter drawn wide enough that it changes answers; `options` are those of peft's LoraConfig."""
    model = _model_class(base).from_pretrained(base, dtype=torch.float32)
    adapted: Any = get_peft_model(model, LoraConfig(**{"r": 4, "lora_alpha": 8, **options}))
    generator = torch.Generator().manual_seed(seed)
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            fan_in = weight.shape[-1]
            weight.data.normal_(0.0, fan_in**-0.5, generator=generator)
    adapted.save_pretrained(directory, save_embedding_layers=False)
    return directory


class LoraReference(Reference):
    """transformers' `generate` with one adapter, which peft has put in."""

    def __init__(self, base: Path, adapter: Path) -> None:
        super().__init__(base)
        self.model = PeftModel.from_pretrained(self.model, str(adapter)).eval()


def _model_class(base: Path) -> Any:
    return AutoModelForImageTextToText if read_checkpoint(base).takes_images else AutoModelForCausalLM
