"""Paged attention equals plain causal attention and transformers' own, whatever pages, chunks and neighbours."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import Gemma2Config
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention, eager_attention_forward

from fanlight_engine.model.attention.interface import LayerAttention, PagedBatch, Segment
from fanlight_engine.model.attention.reference import ReferenceAttention
from fanlight_engine.model.kv_cache import KeyValueShape, PagedKeyValueCache

LAYERS, KV_HEADS, HEAD_DIM = 2, 2, 8
SCALE = 0.3


@dataclass
class Ragged:
    """A random step: queries of all sequences in one row, and what each sequence's whole context is."""

    queries: torch.Tensor
    batch: PagedBatch
    contexts: list[tuple[torch.Tensor, torch.Tensor]]
    lengths: list[int]


def ragged(seed: int, groups: int, page_size: int, decodes: int, prefills: int, padding: int = 0) -> Ragged:
    """Sequences on shuffled pages of a cache full of foreign numbers, decodes first, then `padding` dummy rows."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    contexts = [rng.randint(1, 70) for _ in range(decodes + prefills)]
    lengths = [1] * decodes + [rng.randint(1, context) for context in contexts[decodes:]]
    columns = -(-max(contexts) // page_size) + 1
    cache = PagedKeyValueCache(
        KeyValueShape(LAYERS, KV_HEADS, HEAD_DIM, torch.float32),
        1 + len(contexts) * columns,
        page_size,
        torch.device("cpu"),
    )
    for layer in range(LAYERS):
        for side in cache.layer(layer):
            side.copy_(draw(*side.shape) * 10)
    free = rng.sample(range(1, cache.pages), cache.pages - 1)
    tables = torch.zeros(len(contexts) + padding, columns, dtype=torch.int32)
    filled = []
    for row, context in enumerate(contexts):
        pages = [free.pop() for _ in range(-(-context // page_size))]
        tables[row, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        keys, values = draw(context, KV_HEADS, HEAD_DIM), draw(context, KV_HEADS, HEAD_DIM)
        slots = torch.tensor([pages[index // page_size] * page_size + index % page_size for index in range(context)])
        cache.write(1, slots, keys, values)
        filled.append((keys, values))
    batch = PagedBatch(
        cache=cache,
        backend=ReferenceAttention(),
        slots=torch.zeros(0, dtype=torch.int64),
        page_tables=tables,
        context_lengths=torch.tensor(contexts + [1] * padding, dtype=torch.int32),
        decode_rows=decodes + padding,
        prefill_segments=_segments(lengths, contexts, decodes),
    )
    queries = draw(sum(lengths) + padding, KV_HEADS * groups, HEAD_DIM)
    return Ragged(queries, batch, filled, lengths)


def _segments(lengths: list[int], contexts: list[int], decodes: int) -> tuple[Segment, ...]:
    return tuple(Segment(sum(lengths[:row]), lengths[row], contexts[row]) for row in range(decodes, len(lengths)))


def naive(step: Ragged, sliding_window: int | None) -> torch.Tensor:
    """One query and one head at a time, over the keys that it may see."""
    outputs = []
    row = 0
    for (keys, values), length in zip(step.contexts, step.lengths, strict=True):
        for index in range(length):
            query = step.queries[row]
            position = len(keys) - length + index
            first = 0 if sliding_window is None else max(0, position + 1 - sliding_window)
            heads = []
            for head in range(query.shape[0]):
                kv_head = head * KV_HEADS // query.shape[0]
                seen_keys = keys[first : position + 1, kv_head]
                weights = torch.softmax(seen_keys @ query[head] * SCALE, dim=0)
                heads.append(weights @ values[first : position + 1, kv_head])
            outputs.append(torch.stack(heads))
            row += 1
    return torch.stack(outputs)


def of_transformers(step: Ragged, sliding_window: int | None, soft_cap: float | None) -> torch.Tensor:
    """Gemma 2's attention over one whole sequence at a time, without pages, under masks that transformers makes."""
    heads = step.queries.shape[1]
    shape: Any = {"hidden_size": heads * HEAD_DIM, "head_dim": HEAD_DIM, "attn_implementation": "eager"}
    config = Gemma2Config(
        **shape,
        num_attention_heads=heads,
        num_key_value_heads=KV_HEADS,
        num_hidden_layers=1,
        layer_types=["full_attention" if sliding_window is None else "sliding_attention"],
        sliding_window=sliding_window or 1,
    )
    module = Gemma2Attention(config, 0).eval()
    make_mask = create_causal_mask if sliding_window is None else create_sliding_window_causal_mask
    outputs = []
    for queries, (keys, values) in zip(step.queries.split(step.lengths), step.contexts, strict=True):
        context = len(keys)
        mask: Any = make_mask(
            config=config,
            inputs_embeds=torch.zeros(1, context, config.hidden_size),
            attention_mask=None,
            cache=None,
            position_ids=torch.arange(context)[None],
        )
        of_queries = mask[..., -len(queries) :, :]
        query, key, value = (one.transpose(0, 1)[None] for one in (queries, keys, values))
        output, _ = eager_attention_forward(module, query, key, value, of_queries, scaling=SCALE, softcap=soft_cap)
        outputs.append(output[0])
    return torch.cat(outputs)


def attend(step: Ragged, sliding_window: int | None = None, soft_cap: float | None = None) -> torch.Tensor:
    return ReferenceAttention().attend(step.queries, step.batch, LayerAttention(1, SCALE, sliding_window, soft_cap))


@pytest.mark.parametrize("sliding_window", [None, 1, 9])
@pytest.mark.parametrize("page_size", [1, 16, 256])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize(("decodes", "prefills"), [(3, 0), (0, 3), (2, 2)])
def test_paged_attention_equals_plain_causal_attention(
    decodes: int, prefills: int, groups: int, page_size: int, sliding_window: int | None
) -> None:
    step = ragged(decodes * 7 + page_size, groups, page_size, decodes, prefills)
    assert torch.allclose(attend(step, sliding_window), naive(step, sliding_window), atol=1e-5)


@pytest.mark.parametrize("soft_cap", [None, 0.5, 3.0])
@pytest.mark.parametrize("sliding_window", [None, 1, 9, 1000])
@pytest.mark.parametrize("page_size", [1, 16, 256])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize(("decodes", "prefills"), [(3, 0), (0, 3), (2, 2)])
def test_soft_caps_and_sliding_windows_are_those_of_transformers(
    decodes: int, prefills: int, groups: int, page_size: int, sliding_window: int | None, soft_cap: float | None
) -> None:
    step = ragged(decodes * 5 + page_size + 1, groups, page_size, decodes, prefills)
    expected = of_transformers(step, sliding_window, soft_cap)
    assert torch.allclose(attend(step, sliding_window, soft_cap), expected, atol=1e-5)


def test_a_soft_cap_bends_scores_and_is_not_left_out() -> None:
    step = ragged(1, 2, 16, 2, 2)
    assert not torch.allclose(attend(step, soft_cap=0.5), attend(step), atol=1e-2)


@pytest.mark.parametrize("soft_cap", [None, 3.0])
def test_padding_rows_change_nobody_and_are_finite(soft_cap: float | None) -> None:
    plain, padded = ragged(3, 2, 16, 3, 0), ragged(3, 2, 16, 3, 0, padding=5)
    padded.queries[:3] = plain.queries
    outputs = attend(padded, soft_cap=soft_cap)
    assert torch.allclose(outputs[:3], attend(plain, soft_cap=soft_cap), atol=1e-6)
    assert bool(outputs.isfinite().all())


def test_a_row_alone_equals_the_same_row_in_a_batch() -> None:
    step = ragged(5, 2, 16, 2, 2)
    together = attend(step)
    for row in range(2):
        alone = PagedBatch(
            cache=step.batch.cache,
            backend=step.batch.backend,
            slots=step.batch.slots,
            page_tables=step.batch.page_tables[row : row + 1],
            context_lengths=step.batch.context_lengths[row : row + 1],
            decode_rows=1,
        )
        single = ReferenceAttention().attend(step.queries[row : row + 1], alone, LayerAttention(1, SCALE, None))
        assert torch.allclose(single[0], together[row], atol=1e-6)


def test_writing_goes_to_the_slots_of_one_layer_and_nowhere_else() -> None:
    cache = PagedKeyValueCache(KeyValueShape(LAYERS, 1, 2, torch.float32), 4, 2, torch.device("cpu"))
    cache.write(1, torch.tensor([5, 2]), torch.ones(2, 1, 2), torch.full((2, 1, 2), 2.0))
    keys, values = cache.layer(1)
    assert keys[:, :, 0, 0].tolist() == [[0, 0], [1, 0], [0, 1], [0, 0]]
    assert values[:, :, 0, 1].tolist() == [[0, 0], [2, 0], [0, 2], [0, 0]]
    assert not cache.layer(0)[0].any()


def test_the_size_of_a_token_counts_both_sides_of_all_layers() -> None:
    shape = KeyValueShape(layers=3, kv_heads=2, head_dim=8, dtype=torch.bfloat16)
    assert shape.token_bytes == 2 * 3 * 2 * 8 * 2
