"""Attention kernels alone: gigabytes of keys and values per second in decode steps, over rows and contexts.

Random queries over shuffled pages, of the shape of an 8B model's layer. Every call of a round reads other layers, so
that no cache serves it, and calls are captured as one graph where they can be, so that launching is not what is timed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.gpu.ceilings import bandwidth
from benchmarks.gpu.cores import free_memory
from benchmarks.gpu.timing import replayed_seconds
from benchmarks.gpu.workbench import Workbench
from fanlight_engine.errors import ConfigError
from fanlight_engine.model.attention.choice import AttentionNeeds, choose_attention
from fanlight_engine.model.attention.interface import AttentionBackend, LayerAttention, PagedBatch
from fanlight_engine.model.kv_cache import KeyValueShape, PagedKeyValueCache

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
ROWS, CONTEXTS = (1, 64, 8, 256), (512, 2048, 8192, 32_768)
TINY_ROWS, TINY_CONTEXTS = (1, 3), (40,)
BACKENDS = (("triton", 16), ("triton", 256), ("flash", 256), ("reference", 16))
"""Names, and tokens of a page."""
LARGER_THAN_CACHES = 256 << 20
MOST_LAYERS = 32
MOST_BYTES = 40 << 30
MOST_REFERENCE_BYTES = 4 << 30
"""Keys and values that the reference is asked to gather; it takes several times as much memory."""
ROUNDS = 7


def measure(workbench: Workbench) -> None:
    """The section: a row of the table for every backend, rows and context, each recorded at once."""
    device = torch.device(workbench.device)
    limit = bandwidth(device, workbench.is_tiny)
    rows_and_contexts = [
        (rows, context)
        for context in (TINY_CONTEXTS if workbench.is_tiny else CONTEXTS)
        for rows in (TINY_ROWS if workbench.is_tiny else ROWS)
    ]
    table: list[dict[str, Any]] = []
    for name, page_size, backend in _backends(workbench, device):
        for rows, context in rows_and_contexts:
            line = None
            with workbench.going_on(f"{name} with {rows} rows of {context} tokens on pages of {page_size}"):
                line = _line(backend, rows, context, page_size, device)
            if line is not None:
                share = line["gb_per_s"] * 1e9 / limit
                table.append({"backend": name, **line, "share_of_copy": round(share, 3)})
                workbench.record(table=table)
            free_memory(device)


def _backends(workbench: Workbench, device: torch.device) -> Iterator[tuple[str, int, AttentionBackend]]:
    """Those that can be had here; of the others it is noted why not."""
    for name, page_size in BACKENDS:
        needs = AttentionNeeds(device, _shape(1), HEADS, page_size, longest_context=max(CONTEXTS))
        try:
            yield name, page_size, choose_attention(name, needs)
        except ConfigError as error:
            workbench.note(f"{name} on pages of {page_size}: not measurable here, {error}")


def _line(
    backend: AttentionBackend, rows: int, context: int, page_size: int, device: torch.device
) -> dict[str, Any] | None:
    """None where the case is too large to be worth it."""
    read = rows * context * _shape(1).token_bytes
    if read > (MOST_REFERENCE_BYTES if backend.name == "reference" else MOST_BYTES):
        return None
    layers = max(1, min(MOST_LAYERS, -(-LARGER_THAN_CACHES // read)))
    batch, queries = _step(backend, rows, context, page_size, layers, device)
    with torch.inference_mode():
        seconds, is_graph = replayed_seconds(_calls(queries, batch, layers), device, ROUNDS)
    median = statistics.median(seconds)
    return {
        "page_size": page_size,
        "rows": rows,
        "context": context,
        "microseconds": round(median * 1e6, 1),
        "spread": round((max(seconds) - min(seconds)) / median, 3),
        "gb_per_s": round(read / median / 1e9, 1),
        "by_graph": is_graph,
    }


def _step(
    backend: AttentionBackend, rows: int, context: int, page_size: int, layers: int, device: torch.device
) -> tuple[PagedBatch, torch.Tensor]:
    """A decode step of so many rows, all of one context, over random keys and values on shuffled pages."""
    columns = -(-context // page_size)
    cache = PagedKeyValueCache(_shape(layers), 1 + rows * columns, page_size, device)
    for layer in range(layers):
        for side in cache.layer(layer):
            side.normal_()
    pages = 1 + torch.randperm(rows * columns, device=device)
    batch = PagedBatch(
        cache=cache,
        backend=backend,
        slots=torch.zeros(rows, dtype=torch.int64, device=device),
        page_tables=pages.reshape(rows, columns).to(torch.int32),
        context_lengths=torch.full((rows,), context, dtype=torch.int32, device=device),
        decode_rows=rows,
    )
    return batch, torch.randn(rows, HEADS, HEAD_DIM, device=device).to(torch.bfloat16)


def _calls(queries: torch.Tensor, batch: PagedBatch, layers: int) -> list[Callable[[], object]]:
    return [
        lambda layer=layer: batch.backend.attend(queries, batch, LayerAttention(layer, HEAD_DIM**-0.5, None))
        for layer in range(layers)
    ]


def _shape(layers: int) -> KeyValueShape:
    return KeyValueShape(layers, KV_HEADS, HEAD_DIM, torch.bfloat16)
