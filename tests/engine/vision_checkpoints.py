"""Further random-weight checkpoints with a vision tower, made as those in `checkpoints` are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from transformers import (
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessor,
    LlavaNextProcessor,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
)

from tests.engine.checkpoints import (
    DECODER,
    LLAVA_TEMPLATE,
    QWEN_ENDS,
    QWEN_TEMPLATE,
    clip_config,
    llava_text_config,
    llava_tokenizer,
    qwen_pixels,
    qwen_special_ids,
    qwen_text_config,
    qwen_tokenizer,
    save_model,
)

TILE_LAYOUTS = [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]
"""(height, width) that the LLaVA-NeXT fits pictures into, in tiles of 56 x 56 pixels."""


def make_qwen2_vl(directory: Path, patch_size: int = 14) -> Path:
    """A Qwen2-VL (M-RoPE, native resolution, full attention in its tower)."""
    tokenizer = qwen_tokenizer()
    config = Qwen2VLConfig(
        text_config=qwen_text_config(tokenizer),
        vision_config={
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": DECODER["hidden_size"],
            "num_heads": 2,
            "patch_size": patch_size,
        },
        **qwen_special_ids(tokenizer),
    )
    Qwen2VLProcessor(
        image_processor=Qwen2VLImageProcessor(patch_size=patch_size, merge_size=2, **qwen_pixels(patch_size, 64)),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(patch_size=patch_size, merge_size=2, **qwen_pixels(patch_size, 16)),
        chat_template=QWEN_TEMPLATE,
    ).save_pretrained(directory)
    save_model(Qwen2VLForConditionalGeneration, config, directory, eos=QWEN_ENDS, tokenizer=tokenizer)
    return Path(directory)


def make_llava_next(directory: Path) -> Path:
    """A LLaVA-NeXT: the whole picture and up to four tiles of it, padding cut off, a newline after each row."""
    tokenizer = llava_tokenizer()
    layouts: Any = TILE_LAYOUTS
    config = LlavaNextConfig(
        text_config=llava_text_config(tokenizer),
        vision_config=clip_config(),
        image_token_index=cast(int, tokenizer.convert_tokens_to_ids("<image>")),
        image_seq_length=16,
        image_grid_pinpoints=layouts,
        vision_feature_select_strategy="default",
        vision_feature_layer=-2,
    )
    LlavaNextProcessor(
        image_processor=LlavaNextImageProcessor(
            size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}, image_grid_pinpoints=layouts
        ),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=LLAVA_TEMPLATE,
    ).save_pretrained(directory)
    save_model(LlavaNextForConditionalGeneration, config, directory, eos=("</s>",), tokenizer=tokenizer)
    return Path(directory)
