"""Random-weight checkpoints made on disk in seconds, one per family; knows nothing of the engine.

Every checkpoint is what a hub download would be: config.json, generation_config.json, safetensors, a tokenizer trained
here on a small corpus, a chat template, and the family's real processor class. Seeded: two runs write equal files. The
weights are drawn wide enough that the two best logits of a greedy step are far apart.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaTokenizer,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2Tokenizer,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

SEED = 20_260
CONTEXT_LENGTH = 2048
DECODER = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT_LENGTH,
    "tie_word_embeddings": False,
}

_SUBJECTS = ("the cat", "a red circle", "seven birds", "the photograph", "my neighbour", "the blue square", "someone")
_VERBS = ("looks at", "is left of", "sees", "paints", "describes", "is larger than", "counts", "walks around")
_OBJECTS = (
    "the river",
    "two triangles",
    "an old clock",
    "the white page",
    "a picture",
    "three stars",
    "the city",
)
_WHOLE_WORD_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

LLAMA_SPECIALS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
)
QWEN_SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
QWEN_ENDS = ("<|im_end|>", "<|endoftext|>")
QWEN_ORDINARY_ADDED = ("<tool_call>", "</tool_call>")

LLAMA_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] not in ('system', 'user', 'assistant') %}
        {{- raise_exception('Only system, user and assistant roles are supported') }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' }}
    {%- if message['content'] is string %}
        {{- message['content'] }}
    {%- else %}
        {%- for part in message['content'] %}
            {%- if part['type'] == 'image' %}
                {{- 'IMAGE' }}
            {%- elif part['type'] == 'video' %}
                {{- 'VIDEO' }}
            {%- elif 'text' in part %}
                {{- part['text'] }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def chatml_template(image: str, video: str) -> str:
    """ChatML that writes media so."""
    return CHATML.replace("IMAGE", image).replace("VIDEO", video)


QWEN_SYSTEM = """\
{%- if messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\\nthe photograph sees a picture.<|im_end|>\\n' }}
{%- endif %}
"""
QWEN_TEMPLATE = QWEN_SYSTEM + chatml_template(
    "<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>"
)

# Like LLaVA 1.5's: all images of a message first, texts after them, roles must alternate.
LLAVA_TEMPLATE = """\
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {{- message['content'][0]['text'] + ' ' }}
    {%- else %}
        {{- message['role'] | upper + ': ' }}
        {%- for part in message['content'] | selectattr('type', 'equalto', 'image') %}
            {{- '<image>\\n' }}
        {%- endfor %}
        {%- for part in message['content'] | selectattr('type', 'equalto', 'text') %}
            {{- part['text'] + (' ' if message['role'] == 'user' else '</s>') }}
        {%- endfor %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- 'ASSISTANT:' }}
{%- endif %}
"""


def corpus(sentences: int = 400) -> list[str]:
    """Sentences that the tokenizers learn their pieces from; also a source of ordinary test prompts."""
    rng = random.Random(SEED)
    return [
        f"{rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} {rng.choice(_OBJECTS)}{rng.choice('.!?;')}"
        for _ in range(sentences)
    ]


def make_llama(directory: Path) -> Path:
    """A text-only Llama with a byte-level BPE tokenizer whose template writes the BOS itself."""
    tokenizer = _llama_tokenizer()
    config = LlamaConfig(
        vocab_size=padded(len(tokenizer)),
        bos_token_id=cast(int, tokenizer.convert_tokens_to_ids("<|begin_of_text|>")),
        eos_token_id=cast(int, tokenizer.convert_tokens_to_ids("<|eot_id|>")),
        **DECODER,
    )
    tokenizer.save_pretrained(directory)
    save_model(LlamaForCausalLM, config, directory, eos=("<|eot_id|>", "<|end_of_text|>"), tokenizer=tokenizer)
    return Path(directory)


def make_qwen2_5_vl(directory: Path, patch_size: int = 14) -> Path:
    """A Qwen2.5-VL (M-RoPE with times of clips, native resolution, windows in its tower); see `qwen_pixels`."""
    tokenizer = qwen_tokenizer()
    config = Qwen2_5_VLConfig(
        text_config=qwen_text_config(tokenizer),
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "patch_size": patch_size,
            "window_size": patch_size * 4,
            "out_hidden_size": DECODER["hidden_size"],
            "fullatt_block_indexes": [1],
        },
        **qwen_special_ids(tokenizer),
    )
    Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(patch_size=patch_size, merge_size=2, **qwen_pixels(patch_size, 64)),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(patch_size=patch_size, merge_size=2, **qwen_pixels(patch_size, 16)),
        chat_template=QWEN_TEMPLATE,
    ).save_pretrained(directory)
    save_model(Qwen2_5_VLForConditionalGeneration, config, directory, eos=QWEN_ENDS, tokenizer=tokenizer)
    return Path(directory)


def qwen_pixels(patch_size: int, most_rows: int) -> Any:
    """Size limits with which a picture, or two frames of a clip, take 4 to `most_rows` embedding rows."""
    return {"min_pixels": 4 * (2 * patch_size) ** 2, "max_pixels": most_rows * (2 * patch_size) ** 2}


def qwen_text_config(tokenizer: Any) -> dict[str, Any]:
    """The decoder of a Qwen-VL, with three sections of M-RoPE."""
    return {
        **DECODER,
        "vocab_size": padded(len(tokenizer)),
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]},
        "bos_token_id": tokenizer.convert_tokens_to_ids("<|endoftext|>"),
        "eos_token_id": tokenizer.convert_tokens_to_ids("<|im_end|>"),
    }


def qwen_special_ids(tokenizer: Any) -> Any:
    """What the configuration of a Qwen-VL says about its special tokens."""
    return {
        "image_token_id": tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        "video_token_id": tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        "vision_start_token_id": tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        "vision_end_token_id": tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        "tie_word_embeddings": False,
    }


def make_llava(directory: Path) -> Path:
    """A LLaVA (CLIP tower of 16 patches, CLS dropped) whose Metaspace tokenizer adds the BOS itself."""
    tokenizer = llava_tokenizer()
    config = LlavaConfig(
        text_config=llava_text_config(tokenizer),
        vision_config=clip_config(),
        image_token_index=cast(int, tokenizer.convert_tokens_to_ids("<image>")),
        image_seq_length=16,
        vision_feature_select_strategy="default",
        vision_feature_layer=-2,
    )
    LlavaProcessor(
        image_processor=CLIPImageProcessor(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=LLAVA_TEMPLATE,
    ).save_pretrained(directory)
    save_model(LlavaForConditionalGeneration, config, directory, eos=("</s>",), tokenizer=tokenizer)
    return Path(directory)


def llava_text_config(tokenizer: Any) -> LlamaConfig:
    """The decoder of a LLaVA."""
    return LlamaConfig(vocab_size=padded(len(tokenizer)), bos_token_id=1, eos_token_id=2, **DECODER)


def clip_config() -> CLIPVisionConfig:
    """A CLIP tower for 56 x 56 pixels in 16 patches."""
    return CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=56,
        patch_size=14,
        projection_dim=32,
    )


def padded(size: int) -> int:
    """The next multiple of 8; real checkpoints have more embedding rows than tokens, too."""
    return -(-size // 8) * 8


def byte_level(vocabulary: int) -> Tokenizer:
    """A byte-level BPE that has learned its pieces from the corpus; special tokens are still to be added."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern=Regex(_WHOLE_WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    learner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator(corpus(), trainer)
    return learner


def _llama_tokenizer() -> PreTrainedTokenizerFast:
    learner = byte_level(512)
    learner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in LLAMA_SPECIALS])
    bos = LLAMA_SPECIALS[0]
    learner.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, learner.token_to_id(bos))]
            ),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=learner,
        bos_token=bos,
        eos_token="<|eot_id|>",
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
        chat_template=LLAMA_TEMPLATE,
    )


def qwen_tokenizer() -> Qwen2Tokenizer:
    """A byte-level BPE tokenizer with the special tokens of a Qwen-VL."""
    learner = byte_level(512)
    learner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in QWEN_SPECIALS])
    learner.add_tokens([AddedToken(token, special=False, normalized=False) for token in QWEN_ORDINARY_ADDED])
    return Qwen2Tokenizer(
        tokenizer_object=learner,
        vocab=learner.get_vocab(with_added_tokens=False),
        merges=_merges(learner),
        unk_token=cast(str, None),
        bos_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=list(QWEN_SPECIALS[3:]),
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def llava_tokenizer() -> LlamaTokenizer:
    """The tokenizer of a LLaVA: a Llama's with a placeholder of pictures."""
    tokenizer = metaspace_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    return tokenizer


def metaspace_tokenizer() -> LlamaTokenizer:
    """Metaspace BPE with byte fallback, as SentencePiece models come out; unknown characters become byte pieces."""
    learner = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    learner.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=True)
    bytes_as_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=["<unk>", "<s>", "</s>", *bytes_as_pieces], show_progress=False
    )
    learner.train_from_iterator([*corpus(), "\n"], trainer)
    return LlamaTokenizer(
        vocab=learner.get_vocab(with_added_tokens=True),
        merges=_merges(learner),
        model_max_length=CONTEXT_LENGTH,
        add_bos_token=True,
    )


def _merges(learner: Tokenizer) -> Any:
    return [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]


def save_model(
    model_class: Any, config: PretrainedConfig, directory: Path, eos: tuple[str, ...], tokenizer: Any
) -> None:
    """Draw weights from the seed, write them in float32 with a greedy generation_config.json."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        model = model_class(config).eval()
        _draw_weights(model)
    model.generation_config.eos_token_id = [tokenizer.convert_tokens_to_ids(token) for token in eos]
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.do_sample = False
    model.save_pretrained(directory)


def _draw_weights(model: PreTrainedModel) -> None:
    """Matrices keep their input's scale; embeddings and head are wide, so that greedy choices are clear."""
    generator = torch.Generator().manual_seed(SEED)
    for name, weight in model.named_parameters():
        if weight.dim() < 2:
            if "bias" in name:
                weight.data.normal_(0.0, 0.02, generator=generator)
            continue
        wide = "embed_tokens" in name or "lm_head" in name
        fan_in = weight.shape[-1] if "experts" in name else weight[0].numel()  # all experts lie in one tensor
        weight.data.normal_(0.0, 0.5 if wide else 1.3 * fan_in**-0.5, generator=generator)
