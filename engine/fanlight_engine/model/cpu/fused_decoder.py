"""A decoder whose steps are one call of the kernels. Knows tensors and facts, no modules but the rotary one."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_void_p
from dataclasses import dataclass
from typing import Any

import torch

from fanlight_engine.model.attention.interface import PagedBatch
from fanlight_engine.model.cpu.facts import DecoderFacts, LayerFacts, LinearFacts, NormFacts, RotaryFacts
from fanlight_engine.model.cpu.library import Kernels, address, matrix
from fanlight_engine.model.cpu.structures import Decoder, DecoderLayer, Norm, RotaryTable, Step
from fanlight_engine.model.kv_cache import PagedKeyValueCache

_MOST_TOKENS = 128
_MOST_PAIRS = 1 << 15
"""Without tiles larger steps are as fast module by module, because torch multiplies large matrices faster; and so are
those that look at more pairs of a query and a key in chunks, because it computes attention of many queries at once.
With tiles no step was found that is: 1.1 to 3.8 times as fast. Measured."""
_TILE_COLUMNS, _TILE_KEYS, _WIDEST_TILED_HEAD = 32, 16, 256
"""Heads and pages whose chunks are computed by tiles; see attention_tile.h."""


class FusedDecoder:
    """Steps of one decoder. T tokens. Not thread-safe.

    Hidden states stay in float32 from the first layer to the last, and are rounded to the number type where weights or
    pages meet them. A token's results depend on nothing but its sequence within one kind of products; see `library`.
    """

    def __init__(self, facts: DecoderFacts, kernels: Kernels) -> None:
        self.kernels = kernels
        self._facts = facts
        self._tables = list(dict.fromkeys(layer.turn.table for layer in facts.layers if layer.turn))
        self._position_rows = [_numbers(table) for table in self._tables]
        self._layers = (DecoderLayer * len(facts.layers))(*map(self._layer, facts.layers))
        self._decoder = _decoder(facts, self._layers)
        head_dim = facts.head_dim
        self._has_tiled_heads = head_dim % _TILE_COLUMNS == 0 and head_dim <= _WIDEST_TILED_HEAD
        self._cache: PagedKeyValueCache | None = None
        self._keys = (c_void_p * len(facts.layers))()
        self._values = (c_void_p * len(facts.layers))()

    def pays(self, batch: PagedBatch) -> bool:
        """Whether a packed step takes less time in one call than module by module."""
        if self.kernels.has_tiles and self._has_tiled_heads and batch.cache.page_size % _TILE_KEYS == 0:
            return True
        tokens = batch.decode_rows + sum(one.query_length for one in batch.prefill_segments)
        pairs = sum(one.query_length * one.context_length for one in batch.prefill_segments)
        return tokens <= _MOST_TOKENS and pairs <= _MOST_PAIRS

    def decode_rows(
        self, ids: torch.Tensor, positions: torch.Tensor, batch: PagedBatch, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """One token of each of T sequences: ids [T], positions [position_rows, T] -> float32 logits [T, vocab].

        Keys and values go into the batch's pages. Written into `out`, rows of a float32 matrix, where it is given.
        """
        if out is None:
            out = torch.empty(len(ids), self._decoder.vocabulary, dtype=torch.float32)
        step = Step(rows=len(ids), ids=ids.data_ptr(), logits=out.data_ptr(), logit_stride=out.stride(0))
        self._run(step, positions, batch)
        return out

    def decode(
        self,
        embeddings: torch.Tensor,
        positions: torch.Tensor,
        batch: PagedBatch,
        layer_features: Sequence[torch.Tensor] = (),
    ) -> torch.Tensor:
        """Any packed step: see ModelAdapter.decode."""
        embeddings = embeddings.contiguous()
        features = [one.contiguous() for one in layer_features]
        states = torch.empty_like(embeddings)
        step = Step(
            rows=len(embeddings),
            embeddings=embeddings.data_ptr(),
            features=(c_void_p * len(features))(*(one.data_ptr() for one in features)),
            feature_count=len(features),
            states=states.data_ptr(),
        )
        self._run(step, positions, batch)
        return states

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """What `decode` gave [N, hidden] -> float32 logits [N, vocab]; those that `decode_rows` would have given."""
        facts = self._facts
        return self.kernels.logits(states, self._decoder.head, facts.logit_factor, facts.logit_cap)

    def _run(self, step: Step, positions: torch.Tensor, batch: PagedBatch) -> None:
        position_ids = positions if positions.shape[0] == 1 else positions.unsqueeze(1)
        results = [call(position_ids) for call in self._facts.rotary_calls]
        step.rotary, step.rotary_count = (RotaryTable * len(self._tables))(), len(self._tables)
        kept: list[Any] = [self._rotary_table(step.rotary[i], i, results) for i in range(len(self._tables))]
        sight = _Sight.of(batch)
        slots = batch.slots.contiguous()
        self._point_at(batch.cache)
        step.keys, step.values, step.page_size = self._keys, self._values, batch.cache.page_size
        step.page_tables, step.page_table_stride = batch.page_tables.data_ptr(), batch.page_tables.stride(0)
        step.slots, step.limits, step.table_rows = slots.data_ptr(), sight.limits.data_ptr(), address(sight.table_rows)
        step.positions, step.kept_from = address(sight.positions), address(sight.kept_from)
        self.kernels.step(self._decoder, step)
        del kept  # what the step pointed at

    def _rotary_table(
        self, into: RotaryTable, index: int, results: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        table, rows = self._tables[index], self._position_rows[index]
        cosines, sines = (one.to(self.kernels.dtype).contiguous() for one in results[table.call])
        into.cosines, into.sines, into.position_rows = cosines.data_ptr(), sines.data_ptr(), address(rows)
        into.width, into.factor = cosines.shape[-1], table.repeats
        return cosines, sines

    def _point_at(self, cache: PagedKeyValueCache) -> None:
        """The pages of a cache stay where they are."""
        if cache is self._cache:
            return
        for index in range(len(self._facts.layers)):
            keys, values = cache.layer(index)
            self._keys[index], self._values[index] = keys.data_ptr(), values.data_ptr()
        self._cache = cache

    def _layer(self, layer: LayerFacts) -> DecoderLayer:
        return DecoderLayer(
            input=_norm(layer.input),
            query=_norm(layer.query),
            key=_norm(layer.key),
            attention_output=_norm(layer.attention_output),
            mlp_input=_norm(layer.mlp_input),
            mlp_output=_norm(layer.mlp_output),
            projections=tuple(map(_matrix, layer.projections)),
            output=_matrix(layer.output),
            gate=_matrix(layer.gate),
            up=_matrix(layer.up),
            down=_matrix(layer.down),
            scale=layer.scale,
            soft_cap=layer.soft_cap,
            residual_factor=layer.residual_factor,
            window=layer.window,
            activation=layer.activation,
            rotary=-1 if layer.turn is None else self._tables.index(layer.turn.table),
            is_adjacent=layer.turn is not None and layer.turn.is_adjacent,
            norms_whole=layer.norms_whole,
            is_parallel=layer.is_parallel,
        )


@dataclass(frozen=True, slots=True)
class _Sight:
    """What each of T tokens sees, as step.h says it; all [T] int32."""

    limits: torch.Tensor
    table_rows: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    kept_from: torch.Tensor | None = None

    @classmethod
    def of(cls, batch: PagedBatch) -> _Sight:
        lengths = batch.context_lengths[: batch.decode_rows].contiguous()
        queries = batch.prefill_queries
        if queries is None:
            return cls(lengths)
        decodes = torch.stack((lengths - 1, lengths - 1, lengths))
        positions, kept_from, limits = torch.cat((decodes, queries.intervals), dim=1).unbind()
        counts = torch.tensor([1] * batch.decode_rows + [one.query_length for one in batch.prefill_segments])
        rows = torch.arange(len(counts), dtype=torch.int32).repeat_interleave(counts)
        return cls(limits, rows, positions, kept_from)


def _decoder(facts: DecoderFacts, layers: Any) -> Decoder:
    return Decoder(
        layer_count=len(facts.layers),
        hidden=facts.embeddings.shape[1],
        heads=facts.heads,
        kv_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        intermediate=facts.layers[0].gate.weight.shape[0],
        vocabulary=facts.head.weight.shape[0],
        embedded=facts.embeddings.shape[0],
        embedding_factor=facts.embedding_factor,
        input_factor=facts.input_factor,
        logit_factor=facts.logit_factor,
        logit_cap=facts.logit_cap,
        embeddings=facts.embeddings.data_ptr(),
        layers=layers,
        final=_norm(facts.final),
        head=_matrix(facts.head),
    )


def _norm(facts: NormFacts | None) -> Norm:
    return Norm() if facts is None else Norm(facts.weight.data_ptr(), facts.epsilon, facts.is_centred)


def _matrix(facts: LinearFacts) -> Any:
    return matrix(facts.weight, facts.bias)


def _numbers(table: RotaryFacts) -> torch.Tensor | None:
    return torch.tensor(table.position_rows, dtype=torch.int32) if table.position_rows else None
