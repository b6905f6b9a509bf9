"""What a decoder does in one small decode step over scratch pages, seen from its hooks and its attention.

What modules do not say openly is seen here: with what window, scale and cap each layer asks for attention, how queries
come to be turned, by what embeddings are scaled. The pages are full of random numbers, and positions reach as far as
the configuration says, so that what only shows far from the beginning shows, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from fanlight_engine.model.attention.interface import LayerAttention, PagedBatch, Segment
from fanlight_engine.model.attention.reference import ReferenceAttention
from fanlight_engine.model.cpu.facts import Rotary, Unrecognised
from fanlight_engine.model.kv_cache import KeyValueShape, PagedKeyValueCache

CONTEXTS = (1, 7, 16, 45)
"""Keys that the rows of the step see."""
_PAGE_SIZE = 16
_QUERY_NORM, _QUERY_PROJECTION, _FUSED_PROJECTION = "q_norm", "q_proj", "qkv_proj"


@dataclass(slots=True)
class Observation:
    """One decode step of a decoder. B rows."""

    ids: torch.Tensor
    positions: torch.Tensor
    batch: PagedBatch
    logits: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    """[B, vocab] float32."""
    attention: list[LayerAttention] = field(default_factory=list)
    """By layer: what it asked for."""
    turned: list[torch.Tensor] = field(default_factory=list)
    """By layer: queries [B, heads, head_dim] as attention got them."""
    unturned: list[torch.Tensor] = field(default_factory=list)
    """By layer: the same before, [B, heads, head_dim], [heads, B, head_dim], or [B, heads * head_dim] with whatever is
    projected beside them."""
    first_hidden: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    """[B, hidden]: what the first layer got."""
    rotary_calls: list[Rotary] = field(default_factory=list)
    rotary_results: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def decode(self, forward: Forward, batch: PagedBatch) -> torch.Tensor:
        """Last hidden states [T, hidden] of the step."""
        return forward.decode(forward.embed(self.ids), self.positions, batch)


class Forward(Protocol):
    """A model as its own modules compute it."""

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids [T] -> embeddings [T, hidden]."""
        ...

    def decode(self, embeddings: torch.Tensor, positions: torch.Tensor, batch: PagedBatch) -> torch.Tensor:
        """Embeddings [T, hidden] and positions [position_rows, T] -> last hidden states [T, hidden]."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [N, hidden] -> float32 logits [N, vocab]."""
        ...


class _Watching(ReferenceAttention):
    """The reference, which keeps what it is asked."""

    def __init__(self, seen: Observation) -> None:
        self._seen = seen

    def attend(self, queries: torch.Tensor, batch: PagedBatch, layer: LayerAttention) -> torch.Tensor:
        """See AttentionBackend.attend."""
        self._seen.attention.append(layer)
        self._seen.turned.append(queries.clone())
        return super().attend(queries, batch, layer)


def scratch_step(
    shape: KeyValueShape,
    vocabulary: int,
    position_rows: int,
    most_positions: int,
    contexts: tuple[int, ...] = CONTEXTS,
    last_chunk: int = 1,
) -> Observation:
    """A step of random ids at random positions over contexts of random keys and values: the last token of each.

    Of the last context it is a chunk of its last `last_chunk` tokens; all that it shows are facts for attention.
    """
    generator = torch.Generator().manual_seed(5)
    columns, sequences = -(-max(contexts) // _PAGE_SIZE), len(contexts)
    cache = PagedKeyValueCache(shape, 1 + sequences * columns, _PAGE_SIZE, torch.device("cpu"))
    for side in cache.sides:
        side.copy_(torch.randn(side.shape, generator=generator))
    tables = 1 + torch.randperm(sequences * columns, generator=generator).view(sequences, columns)
    places = [(row, context - 1) for row, context in enumerate(contexts[:-1])]
    places += [(sequences - 1, contexts[-1] - last_chunk + index) for index in range(last_chunk)]
    slots = [int(tables[row, place // _PAGE_SIZE]) * _PAGE_SIZE + place % _PAGE_SIZE for row, place in places]
    decode_rows = sequences if last_chunk == 1 else sequences - 1
    positions = torch.randint(0, most_positions, (position_rows, len(places)), generator=generator)
    positions[:, 0] = torch.arange(position_rows)
    batch = PagedBatch(
        cache=cache,
        backend=ReferenceAttention(),
        slots=torch.tensor(slots),
        page_tables=tables.to(torch.int32),
        context_lengths=torch.tensor(contexts, dtype=torch.int32),
        decode_rows=decode_rows,
        prefill_segments=() if last_chunk == 1 else (Segment(decode_rows, last_chunk, contexts[-1]),),
    )
    return Observation(torch.randint(0, vocabulary, (len(places),), generator=generator), positions, batch)


def observe(decoder: nn.Module, forward: Forward, seen: Observation) -> None:
    """Let `forward` compute the step with the decoder's own modules, and keep what can be seen of it."""
    modules: Any = decoder
    batch = PagedBatch(
        cache=seen.batch.cache,
        backend=_Watching(seen),
        slots=seen.batch.slots,
        page_tables=seen.batch.page_tables,
        context_lengths=seen.batch.context_lengths,
        decode_rows=seen.batch.decode_rows,
    )
    with _watched(modules, seen):
        seen.logits = forward.logits(seen.decode(forward, batch))
    layers = len(modules.layers)
    if [one.layer for one in seen.attention] != list(range(layers)) or len(seen.unturned) != layers:
        raise Unrecognised("its layers do not ask for attention once each, in order")


@contextmanager
def _watched(decoder: Any, seen: Observation) -> Iterator[None]:
    def keep_first(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        seen.first_hidden = (given[0] if given else named["hidden_states"])[0].clone()

    def keep_queries(module: nn.Module, given: tuple[Any, ...], output: torch.Tensor) -> None:
        seen.unturned.append(output[0].clone())

    def keep_rotary(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        seen.rotary_calls.append(_rotary_call(module, given, named))
        seen.rotary_results.append(output)

    handles = [
        decoder.layers[0].register_forward_pre_hook(keep_first, with_kwargs=True),
        decoder.rotary_emb.register_forward_hook(keep_rotary, with_kwargs=True),
        *(query_module(layer.self_attn).register_forward_hook(keep_queries) for layer in decoder.layers),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def query_module(attention: Any) -> nn.Module:
    """The module of an attention whose output the queries are, before they are turned."""
    for name in (_QUERY_NORM, _QUERY_PROJECTION, _FUSED_PROJECTION):
        if hasattr(attention, name):
            return getattr(attention, name)
    raise Unrecognised("its attention has neither q_proj nor qkv_proj")


def _rotary_call(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Rotary:
    """The same call for other positions; of the hidden states it is given, only type and device count."""
    if len(given) + len(named) < 2 or not isinstance(given[0] if given else None, torch.Tensor):
        raise Unrecognised("its rotary module is called in a way of its own")
    like = torch.empty(1, 1, 1, dtype=given[0].dtype)
    if "position_ids" in named:
        rest = {name: value for name, value in named.items() if name != "position_ids"}
        return lambda positions: module(like, *given[1:], position_ids=positions, **rest)
    return lambda positions: module(like, positions, *given[2:], **named)
