"""Writes a checkpoint of the training run as an ordinary Hugging Face folder: no auxiliary heads, half precision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, Qwen2_5_VLProcessor, Qwen2VLImageProcessor, Qwen2VLVideoProcessor

from tools.train_tiny.card import record_training
from tools.train_tiny.model import FRAMES, MERGE, PATCH, TinyModel, tiny_config
from tools.train_tiny.tokenizer import CHAT_TEMPLATE, END_OF_TEXT, TURN_END
from tools.train_tiny.training import load_checkpoint, open_tokenizer

FEWEST_PIXELS = 48 * 48  # 9 image tokens
MOST_PIXELS = 160 * 160  # 100 image tokens, as large as the pictures it was trained on
PRECISION = torch.float16  # three more bits of each weight than bfloat16, and none of them is near its limits


def export(run: Path, model_folder: Path) -> int:
    """Writes the newest checkpoint of a run into a model folder and returns the step it was taken at."""
    checkpoint = load_checkpoint(run)
    plan = json.loads((run / "plan.json").read_text())
    tokenizer = open_tokenizer(run, plan["seed"])
    model = TinyModel(tiny_config(tokenizer))
    model.load_state_dict(checkpoint["model"])
    network: Any = model.network.half()
    for part in (network.config, network.config.text_config, network.config.vision_config):
        part.dtype = PRECISION
    network.generation_config = _generation_config(tokenizer)
    network.save_pretrained(model_folder)
    _processor(tokenizer).save_pretrained(model_folder)
    (model_folder / "model.safetensors").chmod(0o644)
    facts = {
        "parameters": sum(weight.numel() for weight in network.parameters()) / 1e6,
        "precision": str(PRECISION).removeprefix("torch."),
        "steps": checkpoint["step"],
        "vision_steps": plan["vision_steps"],
        "minutes": round(checkpoint["seconds"] / 60, 1),
        "seed": plan["seed"],
    }
    record_training(model_folder, facts)
    return checkpoint["step"]


def _generation_config(tokenizer) -> GenerationConfig:
    """Greedy unless asked otherwise; ends with the turn."""
    return GenerationConfig(
        do_sample=False,
        eos_token_id=tokenizer.convert_tokens_to_ids(TURN_END),
        pad_token_id=tokenizer.convert_tokens_to_ids(END_OF_TEXT),
        max_new_tokens=128,
    )


def _processor(tokenizer) -> Qwen2_5_VLProcessor:
    pictures = {
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": FRAMES,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "size": {"shortest_edge": FEWEST_PIXELS, "longest_edge": MOST_PIXELS},
    }
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(**pictures),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(**pictures),
        chat_template=CHAT_TEMPLATE,
    )
