"""Rotary types of decoders: which are served, and how those that look at a whole step are made to look at one token.

transformers' rotary modules of type "dynamic" and "longrope" choose their factors by the greatest position of a step,
so that in a packed step one long sequence would change its neighbours. Here:

    dynamic    the factors that hold up to the context the checkpoint was made for, which no sequence exceeds
    longrope   both sets of factors, chosen token by token: the short ones while a sequence has at most as many tokens
               as the border says, the long ones for ALL positions of a longer one, as `generate` does for Phi-3

Which set a token takes travels in its position (`packing.LONG_FACTORS`), so that nothing is read on the host. When a
sequence crosses the border, and that its keys are computed again then, is the scheduler's part. Knows no requests.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.checkpoints.families import Positions
from fanlight_engine.checkpoints.rope_parameters import rope_parameters, rope_type
from fanlight_engine.errors import CheckpointError
from fanlight_engine.model.packing import LONG_FACTORS

_LONG = "longrope"
_GROWING = "dynamic"
_SETTLED = "default"
"""What a rotary module is called that keeps the factors it has."""
SERVED_TYPES = ("default", "linear", "llama3", "yarn", "proportional", _GROWING, _LONG)


def refuse_unservable_rotary(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError for rotary types whose positions would be wrong, saying which are served."""
    file = f"{checkpoint.path.name}/config.json"
    parameters = rope_parameters(checkpoint.config.get_text_config())
    for one in parameters:
        if rope_type(one) not in SERVED_TYPES:
            supported = ", ".join(SERVED_TYPES)
            raise CheckpointError(
                f"{file} has rotary type {rope_type(one)!r}, which is not supported; supported: {supported}"
            )
    if not any(rope_type(one) == _LONG for one in parameters):
        return
    if len(parameters) > 1 or checkpoint.family.positions is Positions.MROPE:
        raise CheckpointError(
            f"{file} has rotary type {_LONG!r} for some of its layers or of its position rows only; it is supported "
            "where all layers share it and positions are one row"
        )
    if long_factor_border(checkpoint) < 1:
        raise CheckpointError(
            f"{file} has rotary type {_LONG!r} and original_max_position_embeddings {long_factor_border(checkpoint)}, "
            "which must be at least 1"
        )


def long_factor_border(checkpoint: Checkpoint) -> int:
    """The tokens above which a sequence takes the long factors of LongRoPE; 0 for checkpoints with one set."""
    for one in rope_parameters(checkpoint.config.get_text_config()):
        if rope_type(one) == _LONG:
            return int(one["original_max_position_embeddings"])
    return 0


def settle_rotary(decoder: nn.Module, border: int) -> None:
    """Replace what looks at a whole step in a loaded decoder; other rotary modules stay as they are."""
    for name, module in list(decoder.named_modules()):
        rotary_type: Any = getattr(module, "rope_type", None)
        if rotary_type == _LONG:
            decoder.set_submodule(name, LongRopeByToken(module, border))
        elif rotary_type == _GROWING:
            module.rope_type = _SETTLED  # pyright: ignore[reportArgumentType] a plain attribute
        elif isinstance(rotary_type, dict):  # one for each type of layer
            settled: Any = {layer: _SETTLED if one == _GROWING else one for layer, one in rotary_type.items()}
            module.rope_type = settled


class LongRopeByToken(nn.Module):
    """LongRoPE whose factors each token chooses for itself, by its position."""

    def __init__(self, rotary: nn.Module, border: int) -> None:
        """`rotary` is transformers' module; `border` tokens are the most that its short factors are for."""
        super().__init__()
        self.short = _settled_at(rotary, 1)
        self.long = _settled_at(rotary, border + 1)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions [1, T] -> cosines and sines [1, T, rotated width], of the number type and on the device of `x`."""
        is_long = position_ids >= LONG_FACTORS
        positions = position_ids - is_long * LONG_FACTORS
        chosen = is_long[..., None]
        short_cos, short_sin = self.short(x, positions)
        long_cos, long_sin = self.long(x, positions)
        return torch.where(chosen, long_cos, short_cos), torch.where(chosen, long_sin, short_sin)


def _settled_at(rotary: nn.Module, length: int) -> nn.Module:
    """A copy that keeps the factors which the module itself chooses for a sequence of so many tokens."""
    settled: Any = copy.deepcopy(rotary)
    device = settled.inv_freq.device
    settled(torch.zeros(1, device=device), torch.tensor([[length - 1]], device=device))
    settled.rope_type = _SETTLED
    return settled
