"""What a decoder is, as plain facts: enough to compute a decode step without its modules.

An arrangement of a layer, which its norms decide:

    hidden += residual_factor * attention_output(attention(input(hidden)))
    hidden += residual_factor * mlp_output(mlp(mlp_input(hidden)))

with any norm left out; where a layer is parallel, the MLP takes input(hidden) of before attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Rotary = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Position ids, as the decoder's rotary module takes them -> its cosines and sines."""


class Unrecognised(Exception):
    """Why a decoder is not computed by the kernels, in words that end a sentence."""


@dataclass(frozen=True, slots=True, eq=False)
class NormFacts:
    """x / sqrt(mean(x^2) + epsilon) * weight, of x less its mean where it is centred."""

    weight: torch.Tensor
    """[width] float32, with whatever the module adds to its own."""
    epsilon: float
    is_centred: bool


@dataclass(frozen=True, slots=True, eq=False)
class LinearFacts:
    """x @ weight.T + bias."""

    weight: torch.Tensor
    """[outputs, inputs]: the module's own memory, or rows of it."""
    bias: torch.Tensor | None = None
    """[outputs] float32."""


@dataclass(frozen=True, slots=True)
class RotaryFacts:
    """One table of cosines and sines, from one call of the decoder's rotary module."""

    call: int
    """Which of the calls."""
    repeats: int = 1
    """Column i takes the module's column i // repeats."""
    position_rows: tuple[int, ...] = ()
    """The position row that each column takes, where the module gives several."""


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """How a layer turns queries and keys: by which table, and whether neighbours are turned with each other."""

    table: RotaryFacts
    is_adjacent: bool


@dataclass(frozen=True, slots=True, eq=False)
class LayerFacts:
    """One layer; norms that it lacks are None."""

    input: NormFacts | None
    query: NormFacts | None
    key: NormFacts | None
    attention_output: NormFacts | None
    mlp_input: NormFacts | None
    mlp_output: NormFacts | None
    projections: tuple[LinearFacts, LinearFacts, LinearFacts]
    output: LinearFacts
    gate: LinearFacts
    up: LinearFacts
    down: LinearFacts
    activation: int
    scale: float
    soft_cap: float
    window: int
    turn: TurnFacts | None
    norms_whole: bool
    """Queries and keys are normalised over all heads together."""
    residual_factor: float
    is_parallel: bool


@dataclass(frozen=True, slots=True, eq=False)
class DecoderFacts:
    """A decoder with its embeddings and its head."""

    embeddings: torch.Tensor
    """[vocabulary, hidden]."""
    embedding_factor: float
    """What the first layer gets is an embedding times this,"""
    input_factor: float
    """and what the decoder is handed over as an embedding times this."""
    layers: tuple[LayerFacts, ...]
    final: NormFacts
    head: LinearFacts
    logit_factor: float
    logit_cap: float
    heads: int
    kv_heads: int
    head_dim: int
    rotary_calls: tuple[Rotary, ...]
