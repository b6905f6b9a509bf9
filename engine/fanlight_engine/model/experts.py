"""How a mixture of experts is computed in a step that is captured as a CUDA graph.

transformers multiplies the experts of a step in groups. torch does that in one kernel where the numbers are bfloat16
and the device has it; everywhere else it reads the sizes of the groups on the host, which no graph can capture. There
each token's experts are gathered instead (`batched_mm`): capturable, but it copies their weights for each token, so it
pays only while a step has fewer pairs of token and expert than there are experts. Knows nothing of steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_GATHERED = "batched_mm"
_CAPABILITIES_WITH_GROUPED_KERNEL = (9, 10)
"""Major compute capabilities."""


class CapturableExperts:
    """The experts of one decoder; does nothing where it has none."""

    def __init__(self, decoder: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
        self._experts: list[Any] = [one for one in decoder.modules() if hasattr(one, "_is_expert_parallel")]
        self._gathers = bool(self._experts) and not _has_grouped_kernel(dtype, device)
        self.most_rows = min(map(_rows_that_pay, self._experts)) if self._gathers else None
        """The most rows of a step that is worth capturing; None where there is no such limit."""

    @contextmanager
    def capturable(self) -> Iterator[None]:
        """Within it, what the decoder computes can be captured."""
        configs = {id(one.config): one.config for one in self._experts} if self._gathers else {}
        before = [(config, config._experts_implementation) for config in configs.values()]
        try:
            for config, _ in before:
                config._experts_implementation_internal = _GATHERED
            yield
        finally:
            for config, implementation in before:
                config._experts_implementation_internal = implementation


def _has_grouped_kernel(dtype: torch.dtype, device: torch.device) -> bool:
    if device.type != "cuda" or dtype != torch.bfloat16 or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device)[0] in _CAPABILITIES_WITH_GROUPED_KERNEL


def _rows_that_pay(experts: Any) -> int:
    text = experts.config.get_text_config()
    chosen = getattr(text, "num_experts_per_tok", None) or getattr(text, "top_k_experts", None) or 1
    return max(1, experts.num_experts // chosen)
