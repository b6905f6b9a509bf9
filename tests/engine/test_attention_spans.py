"""Inside a span every position sees the whole of it, as a plain dense mask would have it, with and without a window."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from fanlight_engine.model.attention.interface import LayerAttention
from fanlight_engine.model.attention.reference import ReferenceAttention
from tests.engine.test_attention import KV_HEADS, SCALE, Ragged, ragged

Spans = tuple[tuple[int, int], ...]


def with_spans(step: Ragged, seed: int) -> tuple[Ragged, list[Spans]]:
    """The step with random spans in the contexts of its chunks, none of which reaches beyond what is computed."""
    rng = random.Random(seed)
    spans: list[Spans] = [() for _ in range(step.batch.decode_rows)]
    for segment in step.batch.prefill_segments:
        borders = sorted(rng.sample(range(segment.context_length + 1), min(segment.context_length, 6)))
        spans.append(tuple(zip(borders[::2], borders[1::2], strict=False)))
    prefill = [
        replace(segment, spans=tuple(span for span in own if span[1] > segment.context_length - segment.query_length))
        for segment, own in zip(step.batch.prefill_segments, spans[step.batch.decode_rows :], strict=True)
    ]
    return replace(step, batch=replace(step.batch, prefill_segments=tuple(prefill))), spans


def dense(step: Ragged, spans: list[Spans], layer: LayerAttention, window_bounds_spans: bool) -> torch.Tensor:
    """Sequence by sequence, over a mask [queries, context] filled one place at a time."""
    outputs, row = [], 0
    for (keys, values), length, own in zip(step.contexts, step.lengths, spans, strict=True):
        mask = torch.zeros(length, len(keys), dtype=torch.bool)
        for index in range(length):
            for key in range(len(keys)):
                mask[index, key] = sees(len(keys) - length + index, key, own, layer, window_bounds_spans)
        queries = step.queries[row : row + length].transpose(0, 1)
        repeat = queries.shape[0] // KV_HEADS
        seen_keys, seen_values = (one.transpose(0, 1).repeat_interleave(repeat, 0) for one in (keys, values))
        scores = queries @ seen_keys.transpose(1, 2) * SCALE
        if layer.soft_cap is not None:
            scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
        outputs.append((scores.masked_fill(~mask, float("-inf")).softmax(-1) @ seen_values).transpose(0, 1))
        row += length
    return torch.cat(outputs)


def sees(query: int, key: int, spans: Spans, layer: LayerAttention, window_bounds_spans: bool) -> bool:
    together = any(start <= query < end and start <= key < end for start, end in spans)
    in_window = layer.sliding_window is None or key > query - layer.sliding_window
    if window_bounds_spans:
        return in_window and (together or key <= query)
    return together or (in_window and key <= query)


@pytest.mark.parametrize("soft_cap", [None, 0.5])
@pytest.mark.parametrize("window_bounds_spans", [True, False])
@pytest.mark.parametrize("sliding_window", [None, 1, 4, 200])
@pytest.mark.parametrize(("decodes", "prefills"), [(0, 3), (2, 4)])
def test_attention_with_spans_equals_a_dense_mask(
    decodes: int, prefills: int, sliding_window: int | None, window_bounds_spans: bool, soft_cap: float | None
) -> None:
    step, spans = with_spans(ragged(prefills * 3, 2, 16, decodes, prefills), seed=prefills)
    assert any(end - start > 4 for own in spans for start, end in own), "some are longer than a window"
    step = replace(step, batch=replace(step.batch, window_bounds_spans=window_bounds_spans))
    layer = LayerAttention(1, SCALE, sliding_window, soft_cap)
    outputs = ReferenceAttention().attend(step.queries, step.batch, layer)
    assert torch.allclose(outputs, dense(step, spans, layer, window_bounds_spans), atol=1e-5)


def test_a_chunk_that_begins_inside_a_span_sees_its_beginning_in_the_pages() -> None:
    step = ragged(4, 1, 16, 0, 1)
    (segment,) = step.batch.prefill_segments
    whole = ((0, segment.context_length),)
    step = replace(step, batch=replace(step.batch, prefill_segments=(replace(segment, spans=whole),)))
    layer = LayerAttention(1, SCALE, 2)
    outputs = ReferenceAttention().attend(step.queries, step.batch, layer)
    assert segment.query_length < segment.context_length
    assert torch.allclose(outputs, dense(step, [whole], layer, window_bounds_spans=False), atol=1e-5)
