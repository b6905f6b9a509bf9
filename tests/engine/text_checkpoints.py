"""Random-weight checkpoints of text decoders, made as those in `checkpoints` are.

Windows, soft caps and rotary borders are so small that every kind of prompt meets them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from tests.engine.checkpoints import (
    CONTEXT_LENGTH,
    DECODER,
    QWEN_ENDS,
    QWEN_TEMPLATE,
    byte_level,
    metaspace_tokenizer,
    padded,
    qwen_tokenizer,
    save_model,
)

SLIDING_WINDOW = 24
"""Tokens that a sliding layer sees; the shortest prompts are about as long."""
LONGROPE_BORDER = 24
"""Length above which the Phi-3 with LongRoPE takes its long factors: answers to short prompts cross it."""

GEMMA_SPECIALS = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
PHI_SPECIALS = ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
_END_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""What Phi-3 calls <|endoftext|>."""

MISTRAL_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token }}
    {%- else %}
        {{- '[INST] ' + message['content'] + ' [/INST]' }}
    {%- endif %}
{%- endfor %}
"""

GEMMA_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {%- set role = 'model' if message['role'] == 'assistant' else 'user' %}
    {{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<start_of_turn>model\\n' }}
{%- endif %}
"""

PHI_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
{%- endif %}
"""


def make_mistral(directory: Path) -> Path:
    """A Mistral whose every layer slides."""
    return _save_metaspace(directory, MistralForCausalLM, MistralConfig, sliding_window=SLIDING_WINDOW)


def make_mixtral(directory: Path) -> Path:
    """A Mixtral: two of eight experts per token, their weights normalised over the two."""
    return _save_metaspace(directory, MixtralForCausalLM, MixtralConfig, num_local_experts=8, num_experts_per_tok=2)


def make_qwen2(directory: Path) -> Path:
    """A Qwen2, with biases of queries, keys and values, whose second layer slides."""
    window = {"use_sliding_window": True, "sliding_window": SLIDING_WINDOW, "max_window_layers": 1}
    return _save_qwen(directory, Qwen2ForCausalLM, Qwen2Config, **window)


def make_qwen3(directory: Path) -> Path:
    """A Qwen3: queries and keys are normalised, and heads are wider than hidden size / heads."""
    return _save_qwen(directory, Qwen3ForCausalLM, Qwen3Config, head_dim=32)


def make_qwen3_moe(directory: Path) -> Path:
    """A Qwen3-MoE whose first layer is dense and whose second chooses three of eight experts."""
    experts = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "norm_topk_prob": True}
    return _save_qwen(directory, Qwen3MoeForCausalLM, Qwen3MoeConfig, head_dim=16, mlp_only_layers=[0], **experts)


def make_gemma(directory: Path) -> Path:
    """A Gemma: its embeddings are scaled."""
    return _save_gemma(directory, GemmaForCausalLM, GemmaConfig)


def make_gemma2(directory: Path) -> Path:
    """A Gemma 2: a sliding and a full layer; scores and logits are bent far below what they would be."""
    return _save_gemma(
        directory,
        Gemma2ForCausalLM,
        Gemma2Config,
        query_pre_attn_scalar=4,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=20.0,
        sliding_window=SLIDING_WINDOW,
        layer_types=["sliding_attention", "full_attention"],
    )


def make_gemma3_text(directory: Path) -> Path:
    """A Gemma 3 for text: sliding and full layers, each kind with rotary embeddings of its own."""
    return _save_gemma(
        directory,
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        query_pre_attn_scalar=8,
        sliding_window=SLIDING_WINDOW,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 10_000.0},
        },
    )


def make_phi3(directory: Path) -> Path:
    """A Phi-4-mini: queries, keys and values come from one matrix, three quarters of a head are rotated."""
    rotary = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.75}
    return _save_phi(directory, rotary, CONTEXT_LENGTH)


def make_phi3_longrope(directory: Path) -> Path:
    """A Phi-3 with LongRoPE: other factors for all positions of a sequence once it is longer than the border."""
    rotary = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
        "long_factor": [1.0, 1.5, 2.5, 4.0, 8.0, 16.0, 24.0, 32.0],
    }
    return _save_phi(directory, rotary, LONGROPE_BORDER)


def _save_metaspace(directory: Path, model_class: Any, config_class: Any, **values: Any) -> Path:
    tokenizer = metaspace_tokenizer()
    tokenizer.chat_template = MISTRAL_TEMPLATE
    tokenizer.save_pretrained(directory)
    config = config_class(**{**DECODER, "vocab_size": padded(len(tokenizer)), **values})
    save_model(model_class, config, directory, eos=("</s>",), tokenizer=tokenizer)
    return Path(directory)


def _save_qwen(directory: Path, model_class: Any, config_class: Any, **values: Any) -> Path:
    tokenizer = qwen_tokenizer()
    tokenizer.chat_template = QWEN_TEMPLATE
    tokenizer.save_pretrained(directory)
    config = config_class(**{**DECODER, "vocab_size": padded(len(tokenizer)), **values})
    save_model(model_class, config, directory, eos=QWEN_ENDS, tokenizer=tokenizer)
    return Path(directory)


def _save_gemma(directory: Path, model_class: Any, config_class: Any, **values: Any) -> Path:
    tokenizer = _tokenizer(GEMMA_SPECIALS, GEMMA_TEMPLATE, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>")
    tokenizer.save_pretrained(directory)
    shape = {**DECODER, "vocab_size": padded(len(tokenizer)), "head_dim": 16}
    ids = {name: tokenizer.convert_tokens_to_ids(f"<{name[:3]}>") for name in ("pad_token_id", "eos_token_id")}
    config = config_class(**{**shape, "bos_token_id": tokenizer.bos_token_id, **ids, **values})
    save_model(model_class, config, directory, eos=("<eos>", "<end_of_turn>"), tokenizer=tokenizer)
    return Path(directory)


def _save_phi(directory: Path, rotary: dict[str, Any], original_max_position_embeddings: int) -> Path:
    end = PHI_SPECIALS[0]
    tokenizer = _tokenizer(PHI_SPECIALS, PHI_TEMPLATE, bos_token=end, eos_token=end, pad_token=end)
    tokenizer.save_pretrained(directory)
    ids: dict[str, Any] = {name: tokenizer.convert_tokens_to_ids(end) for name in _END_IDS}
    config = Phi3Config(
        **DECODER,
        **ids,
        vocab_size=padded(len(tokenizer)),
        original_max_position_embeddings=original_max_position_embeddings,
        rope_parameters=rotary,
    )
    save_model(Phi3ForCausalLM, config, directory, eos=("<|end|>", "<|endoftext|>"), tokenizer=tokenizer)
    return Path(directory)


def _tokenizer(specials: tuple[str, ...], template: str, **roles: Any) -> PreTrainedTokenizerFast:
    """A byte-level BPE with these special tokens; the template writes a beginning where there is one."""
    learner = byte_level(512)
    learner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return PreTrainedTokenizerFast(
        tokenizer_object=learner,
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
        chat_template=template,
        **roles,
    )


MODELS: dict[str, Callable[[Path], Path]] = {
    "mistral": make_mistral,
    "qwen2": make_qwen2,
    "qwen3": make_qwen3,
    "gemma": make_gemma,
    "gemma2": make_gemma2,
    "gemma3_text": make_gemma3_text,
    "phi3": make_phi3,
    "phi3_longrope": make_phi3_longrope,
    "qwen3_moe": make_qwen3_moe,
    "mixtral": make_mixtral,
}
"""How to make each, given a place to make it in."""
