"""From hidden states to logits, as the model's own causal-LM forward does it. Knows no requests and no sampling.

transformers applies the final soft cap and the scales of logits in the forward of each model class, behind the
projection; whoever calls decoder and projection alone loses them. They are facts of the text configuration.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PretrainedConfig


class Head:
    """The language-model head: a projection, a scale, a soft cap."""

    def __init__(self, projection: torch.nn.Module, text_config: PretrainedConfig, has_scale: bool = True) -> None:
        """`has_scale` is False where the model's own forward leaves the scale out."""
        self.projection: Any = projection
        self.scale = _scale(text_config) if has_scale else 1.0
        self.soft_cap: float | None = getattr(text_config, "final_logit_softcapping", None)
        self.vocab_size = int(self.projection.weight.shape[0])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [N, hidden] -> float32 logits [N, vocab]."""
        logits = self.projection(hidden).float()  # before the cap: in half precision the best logits would be rounded
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return logits


def _scale(text_config: PretrainedConfig) -> float:
    """Granite divides by `logits_scaling`, Cohere multiplies by `logit_scale`."""
    divisor: float | None = getattr(text_config, "logits_scaling", None)
    factor: float | None = getattr(text_config, "logit_scale", None)
    return (factor or 1.0) / (divisor or 1.0)
