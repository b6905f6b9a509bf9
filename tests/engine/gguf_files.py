"""Tiny GGUF files, written by the gguf package from random-weight checkpoints as llama.cpp's converter would.

Knows the form of the file; what becomes of it is for the tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, TokenType
from safetensors.numpy import load_file

from tests.engine.checkpoints import LLAMA_TEMPLATE

Change = Callable[[GGUFWriter], None]
_ROLES = {
    "llama": {"bos": "<|begin_of_text|>", "eos": "<|end_of_text|>", "eot": "<|eot_id|>"},
    "qwen": {"bos": "<|endoftext|>", "eos": "<|im_end|>", "padding": "<|endoftext|>"},
}
"""Tokens by what a file says they are for, by the beginning of the model_type."""


def write_gguf(
    file: Path,
    checkpoint: Path,
    tensor_type: GGMLQuantizationType = GGMLQuantizationType.F32,
    architecture: str = "",
    template: str = LLAMA_TEMPLATE,
    tokenizer_model: str = "gpt2",
    split: str = "qwen2",
    more_tensors: Mapping[str, np.ndarray] | None = None,
    change: Change = lambda writer: None,
    keeps: Callable[[str], bool] = lambda name: True,
) -> Path:
    """The checkpoint's model and tokenizer in one file; `change` may write more keys before it is closed.

    `architecture` is what the file says, the model_type unless another is given. Llama, Qwen2 and Qwen3 can be written.
    `split` is the rule by which text is cut into words; Qwen2's is that of our tokenizers. `keeps` says which tensors
    are written.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    writer = GGUFWriter(file, architecture or config["model_type"])
    _write_model(writer, config)
    _write_tokenizer(writer, checkpoint, config, tokenizer_model, split)
    if template:
        writer.add_chat_template(template)
    change(writer)
    _write_weights(writer, checkpoint, config, tensor_type, keeps)
    for name, values in (more_tensors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _write_model(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_name("Tiny")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_key_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])


def _write_tokenizer(writer: GGUFWriter, checkpoint: Path, config: Mapping[str, Any], model: str, split: str) -> None:
    """Tokens by id, with the model's unused rows as llama.cpp names them."""
    content = json.loads((checkpoint / "tokenizer.json").read_text())
    special = {token["content"]: token["id"] for token in content["added_tokens"]}
    controls = {token["content"] for token in content["added_tokens"] if token["special"]}
    by_id = {number: token for token, number in {**content["model"]["vocab"], **special}.items()}
    tokens = [by_id.get(number, f"[PAD{number}]") for number in range(config["vocab_size"])]
    types = [
        TokenType.CONTROL
        if token in controls
        else TokenType.USER_DEFINED
        if token in special
        else TokenType.NORMAL
        if number in by_id
        else TokenType.UNUSED
        for number, token in enumerate(tokens)
    ]
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in content["model"]["merges"]])
    family = next(one for one in _ROLES if config["model_type"].startswith(one))
    for role, token in _ROLES[family].items():
        writer.add_uint32(f"tokenizer.ggml.{role}_token_id", special[token])
    writer.add_add_bos_token(family == "llama")


def _write_weights(
    writer: GGUFWriter,
    checkpoint: Path,
    config: Mapping[str, Any],
    tensor_type: GGMLQuantizationType,
    keeps: Callable[[str], bool],
) -> None:
    kind_of_model = next(one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == config["model_type"])
    names = gguf.get_tensor_name_map(kind_of_model, config["num_hidden_layers"])
    for name, weight in load_file(checkpoint / "model.safetensors").items():
        if kind_of_model is MODEL_ARCH.LLAMA and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
            weight = _with_halves_interleaved(weight, heads)
        stored_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored_name is not None, name
        if not keeps(stored_name):
            continue
        kind = tensor_type if weight.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(stored_name, gguf.quants.quantize(weight, kind), raw_dtype=kind)


def _with_halves_interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp rotates neighbours where transformers rotates the halves of a head."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
