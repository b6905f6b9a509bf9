"""Times an attention backend on a GPU, on a decode step and a prefill chunk of a usual size. Knows no requests.

Whole runs are captured as a CUDA graph, as decode steps are: what is timed is the device, not the launching.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from fanlight_engine.model.attention.interface import AttentionBackend, LayerAttention, PagedBatch, Segment
from fanlight_engine.model.kv_cache import KeyValueShape, PagedKeyValueCache

ROWS, CONTEXT, CHUNK = 16, 1024, 512
"""Decodes of a step, tokens of every context, and tokens of a chunk. The keys and values of one layer of an 8B model
are 67 MB, more than a device keeps in its caches."""
_DECODES_PER_CHUNK = 4
"""Requests of CHUNK tokens that answer 64 tokens each bring one chunk for so many steps of ROWS decodes."""
_RUNS, _REPEATS = 10, 5


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of one layer."""

    decode: float
    chunk: float

    @property
    def total(self) -> float:
        """Of decodes and chunks in a usual mixture."""
        return _DECODES_PER_CHUNK * self.decode + self.chunk

    def __str__(self) -> str:
        return f"{self.decode:.3f} ms for {ROWS} decodes, {self.chunk:.3f} ms for a chunk of {CHUNK}"


@dataclass(frozen=True, slots=True)
class Step:
    """Queries [T, heads, head_dim] of one layer, and the batch that they belong to."""

    queries: torch.Tensor
    batch: PagedBatch

    def run(self) -> torch.Tensor:
        """What a decoder's layer does: write, then attend; its outputs."""
        backend, head_dim = self.batch.backend, self.queries.shape[2]
        kv_heads = self.batch.cache.layer(0)[0].shape[2]
        new = self.queries[:, :kv_heads]
        backend.write(self.batch, 0, new, new)
        return backend.attend(self.queries, self.batch, LayerAttention(0, head_dim**-0.5, None))


def measure(
    backend: AttentionBackend, shape: KeyValueShape, heads: int, page_size: int, device: torch.device
) -> Timing:
    """Time the backend for such a decoder. Raises whatever it raises."""
    with torch.inference_mode():
        decode, chunk = usual_steps(backend, shape, heads, page_size, device)
        return Timing(_milliseconds(decode.run, device), _milliseconds(chunk.run, device))


def usual_steps(
    backend: AttentionBackend, shape: KeyValueShape, heads: int, page_size: int, device: torch.device
) -> tuple[Step, Step]:
    """ROWS decodes, and a chunk of CHUNK tokens, over full contexts on pages in random order."""
    columns = -(-CONTEXT // page_size)
    one_layer = KeyValueShape(1, shape.kv_heads, shape.head_dim, shape.dtype)
    cache = PagedKeyValueCache(one_layer, 1 + ROWS * columns, page_size, device)
    for side in cache.layer(0):
        side.normal_()
    order = torch.randperm(ROWS * columns, generator=torch.Generator().manual_seed(0))
    tables = (order + 1).to(torch.int32).view(ROWS, columns).to(device)

    def step(tokens: int, sequences: int, decode_rows: int, segments: tuple[Segment, ...]) -> Step:
        batch = PagedBatch(
            cache=cache,
            backend=backend,
            slots=torch.zeros(tokens, dtype=torch.int64, device=device),
            page_tables=tables[:sequences],
            context_lengths=torch.full((sequences,), CONTEXT, dtype=torch.int32, device=device),
            decode_rows=decode_rows,
            prefill_segments=segments,
        )
        return Step(torch.randn(tokens, heads, shape.head_dim, device=device).to(shape.dtype), batch)

    return step(ROWS, ROWS, ROWS, ()), step(CHUNK, 1, 0, (Segment(0, CHUNK, CONTEXT),))


def _milliseconds(run: Callable[[], torch.Tensor], device: torch.device) -> float:
    """The median of a few replays, per run."""
    with torch.cuda.device(device):
        run()  # compiles
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(_RUNS):
                run()
        graph.replay()
        return median(_replay(graph) for _ in range(_REPEATS)) / _RUNS


def _replay(graph: torch.cuda.CUDAGraph) -> float:
    """Milliseconds of one replay."""
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    graph.replay()
    after.record()
    after.synchronize()
    return before.elapsed_time(after)
