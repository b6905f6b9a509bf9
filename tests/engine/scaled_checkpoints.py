"""Random-weight checkpoints whose own forward leaves out the scale of logits, made as those in `checkpoints` are.

The scales are far from 1, so that logprobs tell whether they are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken
from transformers import (
    AyaVisionConfig,
    AyaVisionForConditionalGeneration,
    AyaVisionProcessor,
    Cohere2Config,
    GotOcr2ImageProcessor,
    GraniteConfig,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessor,
    LlavaNextProcessor,
    SiglipVisionConfig,
)

from tests.engine.checkpoints import (
    DECODER,
    LLAVA_TEMPLATE,
    QWEN_ENDS,
    llava_tokenizer,
    padded,
    qwen_tokenizer,
    save_model,
)
from tests.engine.vision_checkpoints import TILE_LAYOUTS

AYA_TAGS = (
    "<image>",
    "<|START_OF_IMG|>",
    "<|END_OF_IMG|>",
    "<|IMG_PATCH|>",
    "<|IMG_LINE_BREAK|>",
    "TILE_GLOBAL",
    *(f"TILE_{number}" for number in range(1, 13)),
)

# Roles between marks of turns, an image token for every picture.
AYA_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' }}
    {%- for part in message['content'] %}
        {{- part['text'] if part['type'] == 'text' else '<image>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def make_llava_next_granite(directory: Path) -> Path:
    """What Granite Vision is published as: a LLaVA-NeXT with features of several layers of a SigLIP, and a Granite."""
    tokenizer = llava_tokenizer()
    layouts: Any = TILE_LAYOUTS
    scales: Any = {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.1}
    config = LlavaNextConfig(
        text_config=GraniteConfig(**_of_decoder(tokenizer), **scales, logits_scaling=4.0),
        vision_config=_siglip(size=56, patch=14),
        image_token_index=cast(int, tokenizer.convert_tokens_to_ids("<image>")),
        image_seq_length=16,
        image_grid_pinpoints=layouts,
        vision_feature_select_strategy="full",
        vision_feature_layer=[-3, -1],
    )
    LlavaNextProcessor(
        image_processor=LlavaNextImageProcessor(
            size={"height": 56, "width": 56}, crop_size={"height": 56, "width": 56}, image_grid_pinpoints=layouts
        ),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="full",
        num_additional_image_tokens=0,
        chat_template=LLAVA_TEMPLATE,
    ).save_pretrained(directory)
    save_model(LlavaNextForConditionalGeneration, config, directory, eos=("</s>",), tokenizer=tokenizer)
    return Path(directory)


def make_aya_vision(directory: Path) -> Path:
    """An Aya Vision: numbered tiles with the whole picture last, four patches to a row, and a Cohere 2."""
    tokenizer: Any = qwen_tokenizer()
    tokenizer.add_tokens([AddedToken(tag, special=True, normalized=False) for tag in AYA_TAGS])
    windows: Any = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]}
    config = AyaVisionConfig(
        text_config=Cohere2Config(**_of_decoder(tokenizer), **windows, logit_scale=0.25),
        vision_config=_siglip(size=32, patch=8),
        image_token_index=tokenizer.convert_tokens_to_ids("<|IMG_PATCH|>"),
        downsample_factor=2,
        tie_word_embeddings=False,
    )
    size: Any = {"height": 32, "width": 32}
    AyaVisionProcessor(
        image_processor=GotOcr2ImageProcessor(size=size, min_patches=1, max_patches=6),
        tokenizer=tokenizer,
        patch_size=8,
        img_size=32,
        downsample_factor=2,
        chat_template=AYA_TEMPLATE,
    ).save_pretrained(directory)
    save_model(AyaVisionForConditionalGeneration, config, directory, eos=QWEN_ENDS, tokenizer=tokenizer)
    return Path(directory)


def _of_decoder(tokenizer: Any) -> Any:
    ids = {"bos_token_id": 1, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return {**DECODER, **ids, "vocab_size": padded(len(tokenizer))}


def _siglip(size: int, patch: int) -> SiglipVisionConfig:
    return SiglipVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=size,
        patch_size=patch,
        vision_use_head=False,
    )


MODELS: dict[str, Callable[[Path], Path]] = {
    "aya_vision": make_aya_vision,
    "llava_next_granite": make_llava_next_granite,
}
"""How to make each of them, given a place to make it in."""
