"""Logits to token ids and logprobs, on the device, with parameters per row. Knows no requests and no strings.

Random numbers are a function of (seed, position, output index) alone, so that a seeded answer is the same in any batch,
after a preemption and in another process. Nothing here reads on the host or has a data-dependent shape: what kinds of
work a step needs are host-side facts known before it (SamplingMode).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fanlight_engine.model.rows import Rows

MAX_SUPPRESSED_IDS = 64
"""End-of-sequence and stop token ids of one row that min_new_tokens can hold back."""


@dataclass(frozen=True, slots=True)
class SamplingMode:
    """Which kinds of work some row of the step needs."""

    draws: bool = False
    """Some row has a temperature."""
    filters: bool = False
    """Some drawing row has top_k, top_p or min_p."""
    suppresses: bool = False
    """Some row has not reached its min_new_tokens."""
    logprobs: bool = False
    """Some row wants the logprob of the chosen token."""
    penalises: bool = False
    """Some row has penalties on tokens that it has already."""


@dataclass(frozen=True, slots=True)
class SamplingRows(Rows):
    """Parameters of B rows, as tensors at fixed addresses."""

    temperatures: torch.Tensor
    """[B] float32; 0 is greedy."""
    top_ps: torch.Tensor
    """[B] float32; 1 is off."""
    top_ks: torch.Tensor
    """[B] int64; 0 is off."""
    min_ps: torch.Tensor
    """[B] float32; 0 is off."""
    seeds: torch.Tensor
    """[B] int64."""
    positions: torch.Tensor
    """[B] int64: position of the token that is being sampled."""
    output_indices: torch.Tensor
    """[B] int64: which of a request's outputs this row is."""
    suppressed_ids: torch.Tensor
    """[B, MAX_SUPPRESSED_IDS] int64: ids that must not be chosen; -1 is padding."""

    @property
    def filters(self) -> torch.Tensor:
        """[B] bool: whether a row has top_k, top_p or min_p."""
        return (self.top_ks > 0) | (self.top_ps < 1) | (self.min_ps > 0)

    @classmethod
    def allocate(cls, rows: int, device: torch.device) -> SamplingRows:
        """Greedy rows."""

        def ints(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        def floats(value: float) -> torch.Tensor:
            return torch.full((rows,), value, dtype=torch.float32, device=device)

        return cls(
            temperatures=floats(0.0),
            top_ps=floats(1.0),
            top_ks=ints(rows),
            min_ps=floats(0.0),
            seeds=ints(rows),
            positions=ints(rows),
            output_indices=ints(rows),
            suppressed_ids=ints(rows, MAX_SUPPRESSED_IDS).fill_(-1),
        )


def sample(
    logits: torch.Tensor, rows: SamplingRows, mode: SamplingMode, penalised: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [B, vocab] float32 -> chosen ids [B] int64, and their logprobs [B] float32 (zeros unless asked).

    `penalised` are the logits after penalties, where some row has any. The order is transformers': penalties,
    suppression, temperature, filters. Logprobs are natural logs under the model's own distribution: before all of them.
    """
    assert (penalised is not None) == mode.penalises
    scores = logits if penalised is None else penalised
    if mode.suppresses:
        scores = _suppress(scores, rows.suppressed_ids)
    ids = _likeliest(scores)
    if mode.draws:
        drawn = _draw(scores, rows)
        if mode.filters:  # the others draw as they would without it, so that no neighbour changes what a seed gives
            drawn = torch.where(rows.filters, _draw_filtered(scores, rows), drawn)
        ids = torch.where(rows.temperatures > 0, drawn, ids)
    if not mode.logprobs:
        return ids, torch.zeros_like(ids, dtype=torch.float32)
    chosen = logits.gather(1, ids[:, None])[:, 0]
    return ids, chosen - logits.logsumexp(dim=-1)


def _likeliest(scores: torch.Tensor) -> torch.Tensor:
    """[B] int64, the first of equals. In a CPU's memory numpy finds it in a tenth of the time that torch takes."""
    if type(scores) is torch.Tensor and scores.device.type == "cpu":
        return torch.from_numpy(scores.numpy().argmax(axis=-1))
    return scores.argmax(dim=-1)


def _suppress(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Minus infinity at the listed ids; padding adds 0 to id 0."""
    penalty = torch.zeros_like(ids, dtype=logits.dtype).masked_fill(ids >= 0, float("-inf"))
    return logits.scatter_add(1, ids.clamp(min=0), penalty)


def _probabilities(scores: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """Softmax after temperature in float64, so that a cumulative sum over a large vocabulary stays exact enough."""
    temperatures = rows.temperatures.masked_fill(rows.temperatures <= 0, 1.0)
    return torch.softmax(scores.double() / temperatures[:, None].double(), dim=-1)


def _draw(scores: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    return _invert_cumulative(_probabilities(scores, rows), uniform(rows))


def _draw_filtered(scores: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """top_k, then top_p over what is left, then min_p relative to the best token."""
    probabilities, ids = _probabilities(scores, rows).sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(probabilities.shape[1], device=scores.device)
    top_ks = rows.top_ks.masked_fill(rows.top_ks <= 0, probabilities.shape[1])
    probabilities = probabilities.masked_fill(ranks >= top_ks[:, None], 0.0)
    probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
    before = probabilities.cumsum(dim=-1) - probabilities
    outside = (before >= rows.top_ps[:, None]) & (ranks > 0)
    too_small = probabilities < rows.min_ps[:, None] * probabilities[:, :1]
    kept = probabilities.masked_fill(outside | too_small, 0.0)
    return ids.gather(1, _invert_cumulative(kept, uniform(rows))[:, None])[:, 0]


def _invert_cumulative(probabilities: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The first index whose cumulative probability exceeds uniform x total: never one of probability 0."""
    cumulative = probabilities.cumsum(dim=-1)
    targets = uniforms[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets, right=True)[:, 0].clamp(max=probabilities.shape[1] - 1)


def uniform(rows: SamplingRows) -> torch.Tensor:
    """[B] float64 in [0, 1): a counter-based hash of (seed, position, output index), 53 bits of it."""
    mixed = _mix(rows.seeds)
    mixed = _mix(mixed ^ rows.positions)
    mixed = _mix(mixed ^ rows.output_indices)
    return _logical_shift_right(mixed, 11).double() * 2.0**-53


def _mix(values: torch.Tensor) -> torch.Tensor:
    """The 64-bit finaliser of SplitMix64 (Steele, Lea and Flood, 2014), in wrapping int64 arithmetic."""
    values = values + -7046029254386353131  # 0x9E3779B97F4A7C15
    values = (values ^ _logical_shift_right(values, 30)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    values = (values ^ _logical_shift_right(values, 27)) * -7723592293110705685  # 0x94D049BB133111EB
    return values ^ _logical_shift_right(values, 31)


def _logical_shift_right(values: torch.Tensor, bits: int) -> torch.Tensor:
    """int64 >> bits with zeros shifted in; torch's own >> copies the sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)
