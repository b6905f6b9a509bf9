"""A model without its weights: its modules and their shapes, as its configuration makes them. Takes no memory.

For what must be known before anything is read: how much the weights take, and which modules are the decoder's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel
from transformers.initialization import meta_device_safe_creation_ops, no_init_weights

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.errors import CheckpointError, in_one_line

_FIX = "take config.json from where the weights are from"


@dataclass(frozen=True, slots=True)
class Skeleton:
    """The modules of a checkpoint's model, on the meta device. The head may share its weight with the embeddings."""

    model: PreTrainedModel
    decoder: nn.Module
    embeddings: nn.Module
    head: nn.Module

    def linears_outside_decoder(self) -> list[str]:
        """Names of the head and of all other linear layers that are not the decoder's: tower and projector."""
        inside = {id(module) for module in self.decoder.modules()}
        return [
            name
            for name, module in self.model.named_modules()
            if isinstance(module, nn.Linear) and (id(module) not in inside or module is self.head)
        ]


def auto_class_of(checkpoint: Checkpoint) -> Any:
    """transformers' class that loads the checkpoint."""
    return AutoModelForImageTextToText if checkpoint.takes_images else AutoModelForCausalLM


def skeleton_of(checkpoint: Checkpoint) -> Skeleton:
    """Raises CheckpointError where config.json makes no model that has what a server needs."""
    try:
        with torch.device("meta"), no_init_weights(), meta_device_safe_creation_ops():
            model = auto_class_of(checkpoint).from_config(checkpoint.config)
            model.tie_weights()  # which is skipped together with drawing weights
    except Exception as error:  # each model class has its own idea of what to raise
        raise CheckpointError(
            f"{checkpoint.path.name}/config.json makes no model: {in_one_line(error)}; {_FIX}"
        ) from error
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    if decoder is None or head is None:
        raise CheckpointError(f"{checkpoint.path.name} has no decoder with a language-model head")
    return Skeleton(model, decoder, decoder.get_input_embeddings(), head)
