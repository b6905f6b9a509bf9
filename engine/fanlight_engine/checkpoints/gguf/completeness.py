"""Whether a GGUF holds every weight that its model must have, told from the header before any of them is read.

Which tensors a model has comes from transformers' own tables, by the names that the file calls them. Reads no weights.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.initialization import meta_device_safe_creation_ops, no_init_weights

from fanlight_engine.checkpoints.gguf.header import GgufHeader
from fanlight_engine.errors import CheckpointError

_HEAD = "output.weight"
_NAMED = 3


def refuse_incomplete(header: GgufHeader, config: PretrainedConfig) -> None:
    """Raise CheckpointError naming the tensors that a model of this configuration has and the file has not."""
    missing = sorted(_needed_tensors(header, config) - header.tensors.keys())
    if missing:
        named = ", ".join(missing[:_NAMED])
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise CheckpointError(
            f"{header.file} lacks {len(missing)} of the weights that a {header.architecture} model of its size has: "
            f"{named}{more}; fetch it again, or convert it again"
        )


def _needed_tensors(header: GgufHeader, config: PretrainedConfig) -> set[str]:
    """Empty where transformers has no table for the architecture: then its reader tells what is missing."""
    reader: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    processor = reader.TENSOR_PROCESSORS.get(header.architecture, reader.TensorProcessor)
    with torch.device("meta"), no_init_weights(), meta_device_safe_creation_ops():
        model = AutoModelForCausalLM.from_config(config)
    try:
        needed = set(reader.get_gguf_hf_weights_map(model, processor(config=config.to_dict())))
    except NotImplementedError:
        return set()
    return needed - {_HEAD} if config.tie_word_embeddings else needed
