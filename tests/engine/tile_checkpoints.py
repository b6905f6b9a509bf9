"""Random-weight checkpoints of families of tiles and of native resolution, made as those in `checkpoints` are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken, processors
from transformers import (
    GotOcr2ImageProcessor,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessor,
    Idefics3Processor,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    InternVLVideoProcessor,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    PixtralImageProcessor,
    PixtralProcessor,
    PreTrainedTokenizerFast,
    SiglipImageProcessor,
    SiglipVisionConfig,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMImageProcessor,
    SmolVLMProcessor,
    SmolVLMVideoProcessor,
)

from tests.engine.checkpoints import (
    CONTEXT_LENGTH,
    DECODER,
    LLAVA_TEMPLATE,
    QWEN_ENDS,
    byte_level,
    chatml_template,
    llava_text_config,
    llava_tokenizer,
    padded,
    qwen_tokenizer,
    save_model,
)
from tests.engine.further_text_checkpoints import MINISTRAL_ROPE

TILE = 32
"""Pixels on a side of a tile; a tile takes 4 embedding rows."""
TILE_TOWER = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": TILE,
    "patch_size": 8,
}
MOST_TILES_IN_A_LINE = 3

IDEFICS_TAGS = (
    "<fake_token_around_image>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
    "<image>",
    "<end_of_utterance>",
)
INTERNVL_TAGS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
MISTRAL_SPECIALS = (
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
)

# Roles with a capital letter, no space before a picture, one end for every turn.
IDEFICS_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {{- message['role'] | capitalize + ':' }}
    {%- if message['content'] is string %}
        {{- ' ' + message['content'] }}
    {%- else %}
        {{- '' if message['content'][0]['type'] == 'image' else ' ' }}
        {%- for part in message['content'] %}
            {%- if part['type'] == 'text' %}
                {{- part['text'] }}
            {%- else %}
                {{- '<' + part['type'] + '>' }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<end_of_utterance>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- 'Assistant:' }}
{%- endif %}
"""

INTERNVL_TEMPLATE = chatml_template("<IMG_CONTEXT>\\n", "<video>\\n")

MISTRAL_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {%- set mark = {'system': 'SYSTEM_PROMPT', 'user': 'INST'}.get(message['role']) %}
    {{- '[' + mark + ']' if mark else '' }}
    {%- if message['content'] is string %}
        {{- message['content'] }}
    {%- else %}
        {%- for part in message['content'] %}
            {{- part['text'] if part['type'] == 'text' else '[IMG]' }}
        {%- endfor %}
    {%- endif %}
    {{- '[/' + mark + ']' if mark else eos_token }}
{%- endfor %}
"""


def make_idefics3(directory: Path) -> Path:
    """An Idefics3: a picture in up to 9 tiles with row and column tags, the whole of it last."""
    tokenizer = _byte_level_tokenizer("<|begin_of_text|>", "<end_of_utterance>", "<pad>", IDEFICS_TAGS)
    Idefics3Processor(
        image_processor=Idefics3ImageProcessor(**_idefics_pixels()),
        tokenizer=tokenizer,
        image_seq_len=4,
        chat_template=IDEFICS_TEMPLATE,
    ).save_pretrained(directory)
    config = Idefics3Config(vision_config=TILE_TOWER, **_idefics_settings(tokenizer))
    save_model(Idefics3ForConditionalGeneration, config, directory, eos=("<end_of_utterance>",), tokenizer=tokenizer)
    return Path(directory)


def make_smolvlm(directory: Path) -> Path:
    """A SmolVLM: pictures as in Idefics3, clips as frames of one tile with their times; its `<video>` is no token."""
    tokenizer = _byte_level_tokenizer("<|im_start|>", "<end_of_utterance>", "<|im_end|>", IDEFICS_TAGS)
    SmolVLMProcessor(
        image_processor=SmolVLMImageProcessor(**_idefics_pixels()),
        tokenizer=tokenizer,
        video_processor=SmolVLMVideoProcessor(**_smolvlm_frames()),
        image_seq_len=4,
        chat_template=IDEFICS_TEMPLATE,
    ).save_pretrained(directory)
    config = SmolVLMConfig(vision_config=TILE_TOWER, **_idefics_settings(tokenizer))
    save_model(SmolVLMForConditionalGeneration, config, directory, eos=("<end_of_utterance>",), tokenizer=tokenizer)
    return Path(directory)


def _smolvlm_frames() -> Any:
    """What SmolVLM's processor configuration says of clips."""
    size = {"longest_edge": TILE}
    return {"max_image_size": size, "video_sampling": {"max_frames": 8, "fps": 1, "video_size": size}}


def _idefics_pixels() -> Any:
    """Every picture is stretched until its longer side is as long as the most tiles, and cut."""
    return {"size": {"longest_edge": MOST_TILES_IN_A_LINE * TILE}, "max_image_size": {"longest_edge": TILE}}


def _idefics_settings(tokenizer: PreTrainedTokenizerFast) -> Any:
    return {
        "text_config": {"model_type": "llama", **DECODER, **_special_ids(tokenizer)},
        "image_token_id": tokenizer.convert_tokens_to_ids("<image>"),
        "scale_factor": 2,
        "tie_word_embeddings": False,
    }


def make_internvl(directory: Path) -> Path:
    """An InternVL (pixel shuffle): a picture in up to 6 tiles with the whole of it last, a clip in frames."""
    tokenizer: Any = qwen_tokenizer()
    tokenizer.add_tokens([AddedToken(tag, special=True, normalized=False) for tag in INTERNVL_TAGS.values()])
    tokenizer.save_pretrained(directory)
    tokenizer = type(tokenizer).from_pretrained(directory, extra_special_tokens=INTERNVL_TAGS)
    size = {"height": TILE, "width": TILE}
    InternVLProcessor(
        image_processor=GotOcr2ImageProcessor(size=size, min_patches=1, max_patches=6),
        tokenizer=tokenizer,
        video_processor=InternVLVideoProcessor(size=size),
        image_seq_length=4,
        chat_template=INTERNVL_TEMPLATE,
    ).save_pretrained(directory)
    config = InternVLConfig(
        text_config={"model_type": "qwen2", **DECODER, **_special_ids(tokenizer)},
        vision_config=TILE_TOWER,
        image_token_id=cast(int, tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>")),
        image_seq_length=4,
        downsample_ratio=0.5,
        tie_word_embeddings=False,
    )
    save_model(InternVLForConditionalGeneration, config, directory, eos=QWEN_ENDS, tokenizer=tokenizer)
    return Path(directory)


def make_mistral3(directory: Path) -> Path:
    """A Mistral 3: pictures at their own resolution, four patches to a row, an end to every line of them."""
    return _save_mistral3(directory, {"model_type": "mistral", "sliding_window": None})


def make_mistral3_ministral(directory: Path) -> Path:
    """What Ministral 3 is published as: a Mistral 3 with that decoder."""
    return _save_mistral3(directory, {"model_type": "ministral3", "rope_parameters": MINISTRAL_ROPE})


def _save_mistral3(directory: Path, decoder: dict[str, Any]) -> Path:
    tokenizer = _byte_level_tokenizer("<s>", "</s>", "<pad>", MISTRAL_SPECIALS)
    _pixtral_processor(tokenizer, patch_size=8, spatial_merge_size=2).save_pretrained(directory)
    config = Mistral3Config(
        text_config={"head_dim": 16, **decoder, **DECODER, **_special_ids(tokenizer)},
        vision_config=_pixtral_tower(patch_size=8),
        image_token_index=cast(int, tokenizer.convert_tokens_to_ids("[IMG]")),
        spatial_merge_size=2,
        tie_word_embeddings=False,
    )
    save_model(Mistral3ForConditionalGeneration, config, directory, eos=("</s>",), tokenizer=tokenizer)
    return Path(directory)


def make_llava_pixtral(directory: Path) -> Path:
    """What Pixtral-12B is published as: a LLaVA whose tower takes pictures at their own resolution."""
    tokenizer = _byte_level_tokenizer("<s>", "</s>", "<pad>", MISTRAL_SPECIALS)
    _pixtral_processor(tokenizer, patch_size=16, spatial_merge_size=1).save_pretrained(directory)
    config = LlavaConfig(
        text_config={"model_type": "mistral", "head_dim": 16, **DECODER, **_special_ids(tokenizer)},
        vision_config=_pixtral_tower(patch_size=16),
        image_token_index=cast(int, tokenizer.convert_tokens_to_ids("[IMG]")),
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        image_seq_length=1,
    )
    save_model(LlavaForConditionalGeneration, config, directory, eos=("</s>",), tokenizer=tokenizer)
    return Path(directory)


def _pixtral_processor(tokenizer: Any, patch_size: int, spatial_merge_size: int) -> PixtralProcessor:
    """A picture takes up to 6 x 6 rows."""
    return PixtralProcessor(
        image_processor=PixtralImageProcessor(
            size={"longest_edge": 96}, patch_size={"height": patch_size, "width": patch_size}
        ),
        tokenizer=tokenizer,
        patch_size=patch_size,
        spatial_merge_size=spatial_merge_size,
        chat_template=MISTRAL_TEMPLATE,
    )


def _pixtral_tower(patch_size: int) -> Any:
    return {**TILE_TOWER, "model_type": "pixtral", "image_size": 96, "patch_size": patch_size}


def make_llava_siglip(directory: Path) -> Path:
    """A LLaVA whose tower is a SigLIP of 16 patches, which has no CLS to drop."""
    tokenizer = llava_tokenizer()
    config = LlavaConfig(
        text_config=llava_text_config(tokenizer),
        vision_config=_siglip_tower(),
        image_token_index=cast(int, tokenizer.convert_tokens_to_ids("<image>")),
        image_seq_length=16,
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
    )
    LlavaProcessor(
        image_processor=SiglipImageProcessor(size={"height": 56, "width": 56}),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="full",
        num_additional_image_tokens=0,
        chat_template=LLAVA_TEMPLATE,
    ).save_pretrained(directory)
    save_model(LlavaForConditionalGeneration, config, directory, eos=("</s>",), tokenizer=tokenizer)
    return Path(directory)


def _siglip_tower() -> SiglipVisionConfig:
    settings: Any = {**TILE_TOWER, "image_size": 56, "patch_size": 14}
    return SiglipVisionConfig(**settings)


def _byte_level_tokenizer(bos: str, eos: str, pad: str, specials: tuple[str, ...]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer that adds its BOS itself."""
    learner = byte_level(512)
    tokens = dict.fromkeys((bos, eos, pad, *specials))
    learner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])
    learner.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, learner.token_to_id(bos))]),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=learner,
        bos_token=bos,
        eos_token=eos,
        pad_token=pad,
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def _special_ids(tokenizer: Any) -> dict[str, Any]:
    return {
        "vocab_size": padded(len(tokenizer)),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


MODELS: dict[str, Callable[[Path], Path]] = {
    "idefics3": make_idefics3,
    "smolvlm": make_smolvlm,
    "internvl": make_internvl,
    "mistral3": make_mistral3,
    "mistral3_ministral": make_mistral3_ministral,
    "llava_pixtral": make_llava_pixtral,
    "llava_siglip": make_llava_siglip,
}
"""How to make each, given a place to make it in."""
