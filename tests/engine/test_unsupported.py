"""A checkpoint that cannot be served is refused with the reason that its config.json shows, and with what is served."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fanlight_engine.checkpoints.checkpoint import read_checkpoint
from fanlight_engine.checkpoints.families import served_model_types
from fanlight_engine.checkpoints.unsupported import code_of_its_own, why_unsupported
from fanlight_engine.errors import CheckpointError

Config = dict[str, Any]

ENCODER_DECODER: dict[str, Config] = {
    "t5": {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True, "d_kv": 64, "num_layers": 12},
    "t5 without the flag": {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_kv": 64},
    "bart": {"architectures": ["BartForConditionalGeneration"], "is_encoder_decoder": True, "encoder_layers": 12},
    "marian": {"architectures": ["MarianMTModel"], "is_encoder_decoder": True, "static_position_embeddings": True},
    "florence2": {"is_encoder_decoder": True, "text_config": {"model_type": "bart"}, "vision_config": {}},
    "mllama": {"text_config": {"cross_attention_layers": [3, 8], "rope_theta": 5e5}, "vision_config": {}},
}
SOUND: dict[str, Config] = {
    "whisper": {"is_encoder_decoder": True, "num_mel_bins": 80, "max_source_positions": 1500},
    "qwen2_audio": {"audio_config": {"num_mel_bins": 128}, "text_config": {"rope_theta": 1e4}},
    "qwen2_5_omni": {"thinker_config": {"audio_config": {"n_window": 100}}, "talker_config": {}},
    "wav2vec2": {"architectures": ["Wav2Vec2ForCTC"], "feat_extract_norm": "group", "conv_dim": [512]},
    "musicgen": {"is_encoder_decoder": True, "audio_encoder": {"sampling_rate": 32_000}},
    "gemma3n": {"audio_config": {"hidden_size": 1536}, "text_config": {"layer_types": ["sliding_attention"]}},
}
RECURRENT: dict[str, Config] = {
    "mamba": {"architectures": ["MambaForCausalLM"], "state_size": 16, "conv_kernel": 4, "expand": 2},
    "mamba2": {"architectures": ["Mamba2ForCausalLM"], "state_size": 128, "n_groups": 8},
    "jamba": {"architectures": ["JambaForCausalLM"], "attn_layer_period": 8, "mamba_d_state": 16, "num_experts": 16},
    "falcon_h1": {"architectures": ["FalconH1ForCausalLM"], "mamba_d_ssm": 1536, "rope_theta": 1e11},
    "rwkv": {"architectures": ["RwkvForCausalLM"], "attention_hidden_size": 768, "rescale_every": 6},
    "recurrent_gemma": {"block_types": ["recurrent", "recurrent", "attention"], "lru_width": 2560},
    "qwen3_next": {"linear_num_value_heads": 32, "full_attention_interval": 4, "rope_theta": 1e7},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "rope_theta": 1e4},
    "lfm2": {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3},
    "minimax": {"layer_types": ["linear_attention", "full_attention"]},
    "nemotron_h": {"hybrid_override_pattern": "M-M-M*-", "architectures": ["NemotronHForCausalLM"]},
}
NOT_ROTARY: dict[str, Config] = {
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "n_positions": 1024, "n_ctx": 1024, "n_embd": 768},
    "opt": {"architectures": ["OPTForCausalLM"], "max_position_embeddings": 2048, "word_embed_proj_dim": 768},
    "bloom": {"architectures": ["BloomForCausalLM"], "n_layer": 24, "offset_alibi": 100},
    "mpt": {"architectures": ["MPTForCausalLM"], "attn_config": {"alibi": True}},
    "falcon": {"architectures": ["FalconForCausalLM"], "alibi": True, "multi_query": True},
    "gpt_bigcode": {"architectures": ["GPTBigCodeForCausalLM"], "n_positions": 8192},
    "xglm": {"architectures": ["XGLMForCausalLM"], "max_position_embeddings": 2048},
}
NOT_GENERATING: dict[str, Config] = {
    "bert": {"architectures": ["BertForMaskedLM"], "position_embedding_type": "absolute"},
    "roberta": {"architectures": ["RobertaModel"], "max_position_embeddings": 514},
    "clip": {"architectures": ["CLIPModel"], "text_config": {}, "vision_config": {"patch_size": 32}},
    "vit": {"architectures": ["ViTForImageClassification"], "image_size": 224},
}
DIFFUSION: dict[str, Config] = {
    "none": {"model_type": None, "_class_name": "UNet2DConditionModel", "_diffusers_version": "0.30.0"},
    "diffusion_gemma": {"text_config": {"rope_parameters": {}}},
}
OTHER: dict[str, Config] = {
    "gptj": {"architectures": ["GPTJForCausalLM"], "n_positions": 2048, "rotary_dim": 64},
    "gpt_neox": {"architectures": ["GPTNeoXForCausalLM"], "rotary_pct": 0.25, "rotary_emb_base": 10_000},
    "falcon": {"architectures": ["FalconForCausalLM"], "alibi": False, "multi_query": True},
    "llama4": {"text_config": {"layer_types": ["chunked_attention", "full_attention"]}, "vision_config": {}},
}
KINDS = (
    ("encoder-decoder", ENCODER_DECODER),
    ("sound", SOUND),
    ("state-space", RECURRENT),
    (r"not rotary \(RoPE\)", NOT_ROTARY),
    ("does not generate text", NOT_GENERATING),
    ("diffusion", DIFFUSION),
    ("no row in the family table", OTHER),
)
PUBLISHED = [(why, {"model_type": name, **config}) for why, configs in KINDS for name, config in configs.items()]


@pytest.mark.parametrize(
    ("why", "config"), PUBLISHED, ids=lambda one: one.get("model_type") if isinstance(one, dict) else ""
)
def test_a_published_kind_is_refused_with_its_own_reason_and_all_that_is_served(
    why: str, config: Config, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        CheckpointError,
        match=rf"config\.json (has model_type .*, which is not supported|names no model_type): .*{why}.*; ",
    ) as refusal:
        read_checkpoint(tmp_path)
    assert str(refusal.value).endswith("; supported: " + ", ".join(served_model_types()))


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512, "rope_theta": 1e4}, "multi-head latent attention"),
        (
            {"model_type": "chatglm", "auto_map": {"AutoModel": "modeling.ChatGLM"}},
            r"code of its own \(modeling.ChatGLM\)",
        ),
        (
            {
                "model_type": "internvl_chat",
                "architectures": ["InternVLChatModel"],
                "auto_map": {"AutoModel": "m.Chat"},
            },
            r"code of its own \(m.Chat\), which is never run; look for a conversion .* ends in -hf",
        ),
        (
            {"model_type": "moondream1", "architectures": ["Moondream"], "auto_map": {"AutoModelForCausalLM": "m.M"}},
            r"code of its own \(m.M\), which is never run",
        ),
        ({"model_type": "from_next_year", "rope_theta": 1e4}, "has no such model_type"),
        ({}, "it is not the configuration of one of transformers' models"),
        ({"model_type": 7, "layer_types": None, "architectures": None}, "has no such model_type"),
    ],
)
def test_other_reasons(config: Config, why: str) -> None:
    assert re.search(why, why_unsupported(config))


@pytest.mark.parametrize(
    ("why", "model_types"),
    [
        ("keep a state", ("mamba", "mamba2", "jamba", "qwen3_next", "rwkv", "lfm2", "recurrent_gemma", "bamba")),
        ("sound", ("qwen2_audio", "whisper", "voxtral")),
        ("encoder-decoder", ("t5", "bart", "mllama")),
        ("do not generate text", ("bert", "roberta", "clip", "vit")),
        ("not rotary", ("gpt2", "opt", "mpt", "bloom")),
        ("multi-head latent attention", ("deepseek_v3",)),
        ("no row in the family table", ("gptj", "llama4", "falcon")),
    ],
)
def test_a_configuration_that_says_no_more_than_its_type_is_of_the_kind_that_its_class_is(
    why: str, model_types: tuple[str, ...]
) -> None:
    for model_type in model_types:
        assert why in why_unsupported({"model_type": model_type}), model_type


def test_a_configuration_without_a_type_is_told_that_it_names_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"config.json names no model_type: it is not .*; supported: "):
        read_checkpoint(tmp_path)


PHI = {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}


@pytest.mark.parametrize(
    ("auto_map", "code"),
    [
        (None, None),
        (PHI, None),
        ({**PHI, "AutoTokenizer": "someone/a-tokenizer"}, None),
        ({**PHI, "AutoModelForCausalLM": "modeling_phi3.Phi3SmallForCausalLM"}, "modeling_phi3.Phi3SmallForCausalLM"),
        ({**PHI, "AutoConfig": "someone/else--configuration.Config"}, "someone/else--configuration.Config"),
        ({"AutoModel": "evil.Model"}, "evil.Model"),
        ({"AutoModelForCausalLM": None}, "None"),
        ("evil", "evil"),
    ],
)
def test_code_is_asked_for_where_transformers_has_no_class_of_that_name(auto_map: Any, code: str | None) -> None:
    config = {"model_type": "phi3"} if auto_map is None else {"model_type": "phi3", "auto_map": auto_map}
    assert code_of_its_own(config) == code
