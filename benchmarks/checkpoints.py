"""The checkpoints that benchmarks measure with: random weights of a real size, made once and kept on disk.

Each is what a hub download would be, so that every peer can load it: config.json, safetensors in bfloat16, a tokenizer
file, and for the one that sees a chat template and a processor. Seeded: everybody measures the same numbers. Knows
nothing of what is measured.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from fanlight_engine.checkpoints.gguf.cache import ConvertedCheckpoints, default_cache_directory

SEED = 1
RECIPE = 1
"""Raised whenever checkpoints of the same shape are written in another way."""
VOCABULARY = 32_000
CONTEXT = 2048
LANGUAGE_MODEL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
}
"""A Llama of 100 million parameters, all of which a decode step reads."""
VISION_TOWER: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "projection_dim": 512,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "image_size": 224,
    "patch_size": 14,
}
"""A CLIP tower of 38 million parameters, which gives 256 embeddings of a picture."""
IMAGE_TOKENS = (VISION_TOWER["image_size"] // VISION_TOWER["patch_size"]) ** 2
SPECIALS = ("<s>", "</s>", "<unk>", "<pad>", "<image>")
BEGIN, END, UNKNOWN, PADDING, IMAGE = SPECIALS
ORDINARY_IDS = range(1000, VOCABULARY - 1000)
"""Ids that prompts are drawn from: whole words, no special token."""
CHAT_TEMPLATE = """\
{%- for message in messages %}
    {{- 'USER: ' if message['role'] == 'user' else 'ASSISTANT: ' }}
    {%- for part in message['content'] %}
        {{- '<image>\\n' if part['type'] == 'image' else part['text'] }}
    {%- endfor %}
    {{- ' ' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- 'ASSISTANT:' }}
{%- endif %}
"""


def language_model() -> Path:
    """The directory of the language model. Raises CheckpointError where there is no room to keep it."""
    return _made("llama-100m", LANGUAGE_MODEL, _write_language_model)


def vision_language_model() -> Path:
    """The directory of the model that sees: a LLaVA, the same decoder behind a CLIP tower."""
    return _made("llava-140m", {**LANGUAGE_MODEL, "vision": VISION_TOWER}, _write_vision_language_model)


def _made(name: str, shape: dict[str, Any], write: Callable[[Path], None]) -> Path:
    """The directory, written now unless it was before; another shape or another way of writing makes another one."""
    recipe = json.dumps([RECIPE, shape], sort_keys=True)
    key = f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"
    kept = ConvertedCheckpoints(default_cache_directory() / "benchmarks")
    return kept.find(key) or kept.store(key, write, expected_bytes=1 << 29)


def _write_language_model(directory: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        _save(LlamaForCausalLM(LlamaConfig(**LANGUAGE_MODEL, **_special_ids())), directory)
    _tokenizer().save_pretrained(directory)


def _write_vision_language_model(directory: Path) -> None:
    ids = _special_ids()
    tokenizer = _tokenizer()
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**VISION_TOWER),
        text_config=LlamaConfig(**LANGUAGE_MODEL, **ids),
        image_token_index=SPECIALS.index(IMAGE),
        image_seq_length=IMAGE_TOKENS,
        tie_word_embeddings=True,
        **ids,
    )
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        _save(LlavaForConditionalGeneration(config), directory)
    side = VISION_TOWER["image_size"]
    image_processor = CLIPImageProcessor(size={"shortest_edge": side}, crop_size={"height": side, "width": side})
    LlavaProcessor(
        image_processor=image_processor,
        tokenizer=tokenizer,
        patch_size=VISION_TOWER["patch_size"],
        vision_feature_select_strategy="default",
        chat_template=CHAT_TEMPLATE,
        num_additional_image_tokens=1,
    ).save_pretrained(directory)
    # What transformers wrote before there was processor_config.json, and OpenVINO GenAI still reads.
    image_processor.save_pretrained(directory)


def _save(model: Any, directory: Path) -> None:
    model.to(torch.bfloat16).save_pretrained(directory)
    generation: dict[str, Any] = {"do_sample": False, **_special_ids()}
    (directory / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")


def _special_ids() -> dict[str, Any]:
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {name: SPECIALS.index(token) for name, token in zip(names, (BEGIN, END, PADDING), strict=True)}


def _tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level pieces, and above them combinations of letters in the order of the alphabet until all ids are used."""
    pieces = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges: list[tuple[str, str]] = []
    for length in (2, 3, 4):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            if len(pieces) == VOCABULARY:
                break
            word = "".join(letters)
            merges.append((word[:-1], word[-1]))
            pieces.append(word)
    ids = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END, unk_token=UNKNOWN, pad_token=PADDING
    )
