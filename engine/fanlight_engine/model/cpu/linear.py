"""Linear modules that compute few rows with the kernels, for vision towers and for decoders that stay as they are.

torch's linear reads weights of bfloat16 at a fraction of the speed of the memory; ours reads them at all of it. For
many rows torch's is faster, and takes over again, unless each row must be computed in one way only.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fanlight_engine.model.cpu.library import Kernels, matrix

_MOST_ROWS, _MOST_ROWS_WITH_TILES = 32, 512
"""More rows are as fast with torch; measured."""


class KernelLinear(nn.Linear):
    """A linear module whose weights stay its own; made of another one by `use_kernels_in_linears`."""

    kernels: Kernels
    most_rows: int

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Rows [..., in] -> [..., out]."""
        rows = input.numel() // self.in_features
        if type(input) is not torch.Tensor or rows > self.most_rows:  # one that only pretends to have data
            return functional.linear(input, self.weight, self.bias)
        y = self.kernels.linear(input.reshape(rows, self.in_features), self._matrix)
        return y.view(*input.shape[:-1], self.out_features)

    def take_kernels(self, kernels: Kernels, most_rows: int) -> None:
        """From now on compute up to so many rows with them."""
        self.kernels = kernels
        self.most_rows = most_rows
        self._wide_bias = None if self.bias is None else self.bias.detach().float()
        self._matrix = matrix(self.weight, self._wide_bias)


def use_kernels_in_linears(root: Any, kernels: Kernels, always: bool = False) -> int:
    """Let the plain linear modules below `root`, itself included, compute few rows with the kernels; all with `always`.

    Their weights must stay where they are from then on. Returns how many these are.
    """
    most_rows = sys.maxsize if always else _MOST_ROWS_WITH_TILES if kernels.has_tiles else _MOST_ROWS
    changed = 0
    for module in root.modules():
        if type(module) is nn.Linear and _is_plain(module.weight, kernels.dtype):
            linear: Any = module
            linear.__class__ = KernelLinear
            linear.take_kernels(kernels, most_rows)
            changed += 1
    return changed


def _is_plain(weight: torch.Tensor, dtype: torch.dtype) -> bool:
    is_plain = type(weight) in (nn.Parameter, torch.Tensor) and weight.is_contiguous()
    return is_plain and weight.dtype == dtype and weight.device.type == "cpu"
