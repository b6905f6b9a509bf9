"""Random-weight checkpoints of families whose prompts see ahead of themselves, made as those in `checkpoints` are.

Windows are shorter than spans, and spans are as long as two fifths of a page, so that many cross from one to the next.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3ImageProcessor,
    Gemma3Processor,
    GemmaTokenizer,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PaliGemmaProcessor,
    SiglipImageProcessor,
)

from tests.engine.checkpoints import CONTEXT_LENGTH, DECODER, corpus, padded, save_model

ROWS = 9
"""Embedding rows of a picture, or of one crop of it."""
SLIDING_WINDOW = 5
"""Tokens that a sliding layer sees."""
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vision_use_head": False,
}
SLIDING_AND_FULL = {"sliding_window": SLIDING_WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
PAN_AND_SCAN = {
    "do_pan_and_scan": True,
    "pan_and_scan_min_crop_size": 20,
    "pan_and_scan_max_num_crops": 3,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}

# Roles alternate; a system message goes into the first turn of the user.
GEMMA3_TEMPLATE = """\
{{- bos_token }}
{%- set system = messages[0]['content'][0]['text'] + '\\n\\n' if messages[0]['role'] == 'system' else '' %}
{%- for message in messages if message['role'] != 'system' %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\\n' + (system if loop.first else '') }}
    {%- for part in message['content'] %}
        {{- '<start_of_image>' if part['type'] == 'image' else part['text'] | trim }}
    {%- endfor %}
    {{- '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<start_of_turn>model\\n' }}
{%- endif %}
"""


def make_gemma3(directory: Path) -> Path:
    """A Gemma 3 with pictures: a sliding and a full layer, the patches of a picture pooled four to a row."""
    return _save_gemma3(directory)


def make_gemma3_pan_and_scan(directory: Path) -> Path:
    """The same, that shows long pictures as a whole and in crops, with words between them."""
    return _save_gemma3(directory, **PAN_AND_SCAN)


def make_paligemma(directory: Path) -> Path:
    """A PaliGemma, with the decoder of a Gemma."""
    return _save_paligemma(directory, {"model_type": "gemma"})


def make_paligemma2(directory: Path) -> Path:
    """A PaliGemma 2, with the decoder of a Gemma 2: soft caps of scores and logits, a sliding and a full layer."""
    caps = {"query_pre_attn_scalar": 4, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 20.0}
    return _save_paligemma(directory, {"model_type": "gemma2", **caps, **SLIDING_AND_FULL})


def _save_gemma3(directory: Path, **processing: Any) -> Path:
    tokenizer = _gemma_tokenizer(
        {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    )
    tower = {**TOWER, "image_size": 48, "patch_size": 8}
    config = Gemma3Config(
        text_config={**_decoder(tokenizer), **SLIDING_AND_FULL, "query_pre_attn_scalar": 8},
        vision_config={"model_type": "siglip_vision_model", **tower},
        mm_tokens_per_image=ROWS,
        image_token_index=_id_of(tokenizer, "<image_soft_token>"),
        boi_token_index=_id_of(tokenizer, "<start_of_image>"),
        eoi_token_index=_id_of(tokenizer, "<end_of_image>"),
        tie_word_embeddings=False,
    )
    Gemma3Processor(
        image_processor=Gemma3ImageProcessor(size={"height": 48, "width": 48}, **processing),
        tokenizer=tokenizer,
        chat_template=GEMMA3_TEMPLATE,
        image_seq_length=ROWS,
    ).save_pretrained(directory)
    ends = ("<eos>", "<end_of_turn>")
    save_model(Gemma3ForConditionalGeneration, config, directory, eos=ends, tokenizer=tokenizer)
    return Path(directory)


def _save_paligemma(directory: Path, decoder: dict[str, Any]) -> Path:
    tokenizer = _gemma_tokenizer({"image_token": "<image>"})
    image_processor: Any = SiglipImageProcessor(size={"height": 24, "width": 24})
    image_processor.image_seq_length = ROWS
    PaliGemmaProcessor(image_processor=image_processor, tokenizer=tokenizer).save_pretrained(directory)
    config = PaliGemmaConfig(
        text_config={**_decoder(tokenizer), **decoder},
        vision_config={"model_type": "siglip_vision_model", **TOWER, "image_size": 24, "patch_size": 8},
        image_token_index=_id_of(tokenizer, "<image>"),
        projection_dim=DECODER["hidden_size"],
        hidden_size=DECODER["hidden_size"],
        tie_word_embeddings=False,
    )
    save_model(PaliGemmaForConditionalGeneration, config, directory, eos=("<eos>",), tokenizer=tokenizer)
    return Path(directory)


def _decoder(tokenizer: Any) -> dict[str, Any]:
    """What all decoders share; called when the processor has added its own tokens."""
    ids = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "bos", "eos")}
    return {**DECODER, "vocab_size": padded(len(tokenizer)), "head_dim": 16, **ids}


def _id_of(tokenizer: Any, token: str) -> int:
    return tokenizer.convert_tokens_to_ids(token)


def _gemma_tokenizer(media_tokens: dict[str, str]) -> GemmaTokenizer:
    """Pieces with spaces as in SentencePiece models, learnt word by word; unknown characters become byte pieces."""
    learner = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    learner.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never", split=True)
    bytes_as_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=[*specials, *bytes_as_pieces], show_progress=False)
    learner.train_from_iterator([*corpus(), "\n", "\n\n"], trainer)
    merges: Any = [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
    tokenizer = GemmaTokenizer(
        vocab=learner.get_vocab(with_added_tokens=True),
        merges=merges,
        model_max_length=CONTEXT_LENGTH,
        extra_special_tokens=media_tokens,
    )
    tokenizer.add_tokens(["<start_of_turn>", "<end_of_turn>"], special_tokens=True)
    return tokenizer


MODELS: dict[str, Callable[[Path], Path]] = {
    "gemma3": make_gemma3,
    "gemma3_pan_and_scan": make_gemma3_pan_and_scan,
    "paligemma": make_paligemma,
    "paligemma2": make_paligemma2,
}
"""How to make each, given a place to make it in."""
