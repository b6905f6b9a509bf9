"""Random-weight checkpoints of further text decoders, which need nothing but a row; made as those in `checkpoints` are.

Each has what tells its family from a Llama: layers without positions, scales of scores and logits, windows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    Glm4Config,
    Glm4ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from tests.engine.checkpoints import DECODER, QWEN_ENDS, QWEN_TEMPLATE, padded, qwen_tokenizer, save_model

SLIDING_WINDOW = 24
MINISTRAL_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 64.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.5,
}
"""Scores grow with every 32 positions, so that all prompts meet several scales."""


def make_smollm3(directory: Path) -> Path:
    """A SmolLM3: its second layer has no positions."""
    return _save(directory, SmolLM3ForCausalLM, SmolLM3Config, no_rope_layers=[1, 0])


def make_granite(directory: Path) -> Path:
    """A Granite: scales of embeddings, residuals, scores and logits."""
    scales = {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.1}
    return _save(directory, GraniteForCausalLM, GraniteConfig, logits_scaling=2.0, **scales)


def make_olmo2(directory: Path) -> Path:
    """An OLMo 2: queries and keys are normalised over all heads, layers behind their sublayers."""
    return _save(directory, Olmo2ForCausalLM, Olmo2Config)


def make_glm4(directory: Path) -> Path:
    """A GLM-4: half of a head is rotated, in pairs of neighbours."""
    rotary = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
    return _save(directory, Glm4ForCausalLM, Glm4Config, head_dim=16, attention_bias=True, rope_parameters=rotary)


def make_cohere2(directory: Path) -> Path:
    """A Command R7B: a sliding layer, a full one without positions, and a scale of logits."""
    windows = {"sliding_window": SLIDING_WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
    return _save(directory, Cohere2ForCausalLM, Cohere2Config, logit_scale=0.5, **windows)


def make_ministral3(directory: Path) -> Path:
    """A Ministral 3: YaRN, and scores that grow with the position."""
    return _save(directory, Ministral3ForCausalLM, Ministral3Config, head_dim=16, rope_parameters=MINISTRAL_ROPE)


def _save(directory: Path, model_class: Any, config_class: Any, **values: Any) -> Path:
    tokenizer = qwen_tokenizer()
    tokenizer.chat_template = QWEN_TEMPLATE
    tokenizer.save_pretrained(directory)
    ids = {
        "bos_token_id": tokenizer.convert_tokens_to_ids("<|endoftext|>"),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = config_class(**{**DECODER, "vocab_size": padded(len(tokenizer)), **ids, **values})
    save_model(model_class, config, directory, eos=QWEN_ENDS, tokenizer=tokenizer)
    return Path(directory)


MODELS: dict[str, Callable[[Path], Path]] = {
    "smollm3": make_smollm3,
    "granite": make_granite,
    "olmo2": make_olmo2,
    "glm4": make_glm4,
    "cohere2": make_cohere2,
    "ministral3": make_ministral3,
}
"""How to make each, given a place to make it in."""
