"""Random-weight checkpoints of families whose media reach deeper than the embeddings, or that treat several pictures of
a prompt otherwise than one; made as those in `checkpoints` are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from transformers import (
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
    Qwen2Config,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
    SiglipVisionConfig,
)

from tests.engine.checkpoints import (
    DECODER,
    QWEN_ENDS,
    QWEN_TEMPLATE,
    padded,
    qwen_pixels,
    qwen_special_ids,
    qwen_text_config,
    qwen_tokenizer,
    save_model,
)

_SIDE, _PATCHES = 28, 4
"""Pixels of a tile's side, and patches along it, in the LLaVA-OneVision."""
ONEVISION_LAYOUTS = [[_SIDE * rows, _SIDE * columns] for rows in range(1, 7) for columns in range(1, 7)]
"""(height, width) that it fits pictures into; what has more than 9 tiles' worth of rows is scaled down to that."""

# Like the one that is published: all pictures of a message first, then its clips, then its texts.
ONEVISION_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + ' ' }}
    {%- for part in message['content'] | selectattr('type', 'equalto', 'image') %}
        {{- '<image>' }}
    {%- endfor %}
    {%- for part in message['content'] | selectattr('type', 'equalto', 'video') %}
        {{- '<video>' }}
    {%- endfor %}
    {%- for part in message['content'] | selectattr('type', 'equalto', 'text') %}
        {{- '\\n' + part['text'] }}
    {%- endfor %}
    {{- '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def make_qwen3_vl(directory: Path, patch_size: int = 14) -> Path:
    """A Qwen3-VL: features of two layers of its tower are added behind the decoder's first two, clips come in pieces
    with times between them, M-RoPE interleaves its three sections."""
    return _save_qwen3_vl(directory, Qwen3VLForConditionalGeneration, Qwen3VLConfig, patch_size)


def make_qwen3_vl_moe(directory: Path, patch_size: int = 14) -> Path:
    """A Qwen3-VL whose decoder's first layer is dense, and whose others choose three of eight experts."""
    experts = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "mlp_only_layers": [0]}
    return _save_qwen3_vl(
        directory,
        Qwen3VLMoeForConditionalGeneration,
        Qwen3VLMoeConfig,
        patch_size,
        tie_word_embeddings=False,
        **experts,
    )


def _save_qwen3_vl(directory: Path, model_class: Any, config_class: Any, patch_size: int, **decoder: Any) -> Path:
    tokenizer = qwen_tokenizer()
    config = config_class(
        text_config={**_qwen3_text_config(tokenizer), **decoder},
        vision_config=_qwen3_vision_config(patch_size),
        **qwen_special_ids(tokenizer),
    )
    _save_qwen3_processor(directory, tokenizer, patch_size)
    save_model(model_class, config, directory, eos=QWEN_ENDS, tokenizer=tokenizer)
    return Path(directory)


def _qwen3_text_config(tokenizer: Any) -> dict[str, Any]:
    """Three layers, so that one of them gets no features."""
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    return {**qwen_text_config(tokenizer), "num_hidden_layers": 3, "head_dim": 16, "rope_parameters": rope}


def _qwen3_vision_config(patch_size: int) -> dict[str, Any]:
    """A tower whose learned positions are resampled to each grid."""
    return {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": patch_size,
        "out_hidden_size": DECODER["hidden_size"],
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 2],
    }


def _save_qwen3_processor(directory: Path, tokenizer: Any, patch_size: int) -> None:
    """With limits of area as the other Qwen-VL checkpoints have them, but for all frames of a clip together."""
    limits = qwen_pixels(patch_size, 64)
    size = {"shortest_edge": limits["min_pixels"], "longest_edge": limits["max_pixels"]}
    Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(patch_size=patch_size, merge_size=2, size=size),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(
            patch_size=patch_size, merge_size=2, size=size, cap_pixels_per_frame=False
        ),
        chat_template=QWEN_TEMPLATE,
    ).save_pretrained(directory)


def make_llava_onevision(directory: Path) -> Path:
    """A LLaVA-OneVision (SigLIP tower, Qwen2 decoder): a lone picture in up to 36 tiles, several ones whole, clips as
    frames that are pooled."""
    tokenizer = onevision_tokenizer()
    layouts: Any = ONEVISION_LAYOUTS
    config = LlavaOnevisionConfig(
        text_config=Qwen2Config(
            vocab_size=padded(len(tokenizer)),
            bos_token_id=cast(int, tokenizer.convert_tokens_to_ids("<|endoftext|>")),
            eos_token_id=cast(int, tokenizer.convert_tokens_to_ids("<|im_end|>")),
            **DECODER,
        ),
        vision_config=SiglipVisionConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=_SIDE,
            patch_size=_SIDE // _PATCHES,
            vision_use_head=False,
        ),
        image_token_index=cast(int, tokenizer.convert_tokens_to_ids("<image>")),
        video_token_index=cast(int, tokenizer.convert_tokens_to_ids("<video>")),
        image_grid_pinpoints=layouts,
    )
    size = {"height": _SIDE, "width": _SIDE}
    LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=layouts),
        tokenizer=tokenizer,
        video_processor=LlavaOnevisionVideoProcessor(size=size),
        num_image_tokens=_PATCHES**2,
        vision_feature_select_strategy="full",
        chat_template=ONEVISION_TEMPLATE,
    ).save_pretrained(directory)
    save_model(LlavaOnevisionForConditionalGeneration, config, directory, eos=QWEN_ENDS, tokenizer=tokenizer)
    return Path(directory)


def onevision_tokenizer() -> Qwen2Tokenizer:
    """The tokenizer of a Qwen with tokens for a picture and a clip."""
    tokenizer = qwen_tokenizer()
    tokenizer.add_tokens(["<image>", "<video>"], special_tokens=True)
    return tokenizer


MODELS: dict[str, Callable[[Path], Path]] = {
    "qwen3_vl": make_qwen3_vl,
    "qwen3_vl_moe": make_qwen3_vl_moe,
    "llava_onevision": make_llava_onevision,
}
"""How to make each, given a place to make it in."""
