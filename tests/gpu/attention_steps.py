"""Random attention steps of sizes that a GPU serves, each in the kernel's number type and in float32 for the reference.

What decides how a kernel is compiled is a Form; a form is compiled once and then tried with several random steps.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch

from fanlight_engine.model.attention.interface import AttentionBackend, LayerAttention, PagedBatch, Segment
from fanlight_engine.model.attention.reference import ReferenceAttention
from fanlight_engine.model.kv_cache import KeyValueShape, PagedKeyValueCache
from tests.gpu.device import DEVICE

LONGEST = 3000 if DEVICE == "cuda" else 120
TOLERANCES = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}
"""Outputs are of the order of 1."""
LAYER = 1
UNWRITTEN = {"triton": float("nan")}
"""What stands where no key or value was written, by backend: our kernels must not read it; others may, and must give it
no weight. In a core it is zero or what an earlier request left."""


@dataclass(frozen=True)
class Form:
    """Shapes, number type, and what the layer asks for."""

    dtype: torch.dtype
    kv_heads: int
    group: int
    head_dim: int
    page_size: int
    window: int | None
    soft_cap: float | None

    def __str__(self) -> str:
        """The name of a test."""
        dtype = str(self.dtype).removeprefix("torch.")
        layer = f"-window{self.window}" * (self.window is not None) + "-cap" * (self.soft_cap is not None)
        return f"{dtype}-{self.kv_heads}x{self.group}x{self.head_dim}-page{self.page_size}{layer}"

    @property
    def layer(self) -> LayerAttention:
        """The layer that asks."""
        return LayerAttention(LAYER, self.head_dim**-0.5, self.window, self.soft_cap)


@dataclass(frozen=True)
class Step:
    """Queries [T, heads, head_dim] and their batch; and the same batch in float32."""

    queries: torch.Tensor
    batch: PagedBatch
    measure: PagedBatch

    def difference(self, layer: LayerAttention) -> float:
        """Largest difference of an output from the reference's; infinite where one is not a number."""
        outputs = self.batch.backend.attend(self.queries, self.batch, layer)
        expected = self.measure.backend.attend(self.queries.float(), self.measure, layer)
        found = (outputs.float() - expected).abs().max().item()
        return found if found == found else float("inf")


def random_forms(count: int, seed: int = 3) -> list[Form]:
    """Forms as decoders have them, and some that none has."""
    rng = random.Random(seed)
    dtypes = (torch.bfloat16, torch.bfloat16, torch.float16, torch.float32)
    return [
        Form(
            dtype=dtypes[number % len(dtypes)],
            kv_heads=rng.choice([1, 2, 4, 8]),
            group=rng.choice([1, 2, 4, 4, 7, 8]),
            head_dim=rng.choice([64, 64, 80, 96, 128, 128, 256]),
            page_size=rng.choice([16, 16, 16, 32, 64, 128, 256]),
            window=rng.choice([None, None, None, 1, 64, 1000]),
            soft_cap=rng.choice([None, None, None, 30.0]),
        )
        for number in range(count)
    ]


def random_step(form: Form, seed: int, backend: AttentionBackend, with_spans: bool = True) -> Step:
    """Decodes, dummy rows and chunks over contexts of every length, on shuffled pages between foreign numbers."""
    rng = random.Random(seed)
    most_rows = rng.choice([0, 1, 5, 40])
    decodes = [rng.randint(1, rng.choice([20, 300, LONGEST])) for _ in range(most_rows)]
    segments: list[Segment] = []
    dummies = rng.choice([0, 3])
    first = len(decodes) + dummies
    for _ in range(rng.choice([0, 1, 3]) if decodes else 2):
        context = rng.randint(1, LONGEST)
        length = rng.randint(1, min(context, 300))
        spans = _spans(rng, context, length) if with_spans else ()
        segments.append(Segment(first, length, context, spans))
        first += length
    contexts = [*decodes, *[1] * dummies, *(segment.context_length for segment in segments)]
    batch, measure = _filled(form, rng, backend, contexts, dummy_rows=range(len(decodes), len(decodes) + dummies))
    facts = {
        "decode_rows": len(decodes) + dummies,
        "prefill_segments": tuple(segments),
        "window_bounds_spans": rng.random() < 0.5,
    }
    queries = torch.randn(first, form.kv_heads * form.group, form.head_dim, device=DEVICE).to(form.dtype)
    return Step(queries, replace(batch, **facts), replace(measure, **facts))


def decode_rows_that_depend_on_neighbours(form: Form, seed: int, backend: AttentionBackend) -> int:
    """Of 24 decodes: how many give other bits alone, under a page table of their own width, than beside the others."""
    rng = random.Random(seed)
    contexts = [rng.randint(1, LONGEST) for _ in range(24)]
    batch, _ = _filled(form, rng, backend, contexts, dummy_rows=range(0))
    queries = torch.randn(24, form.kv_heads * form.group, form.head_dim, device=DEVICE).to(form.dtype)
    together = backend.attend(queries, replace(batch, decode_rows=24), form.layer)
    found = 0
    for row, context in enumerate(contexts):
        alone = replace(
            batch,
            page_tables=batch.page_tables[row : row + 1, : -(-context // form.page_size)],
            context_lengths=batch.context_lengths[row : row + 1],
            decode_rows=1,
        )
        found += not torch.equal(backend.attend(queries[row : row + 1], alone, form.layer)[0], together[row])
    return found


def _spans(rng: random.Random, context: int, length: int) -> tuple[tuple[int, int], ...]:
    """Random spans of a context that touch its last `length` positions, or none."""
    if rng.random() < 0.5:
        return ()
    borders = sorted(rng.sample(range(context + 1), min(context, 8) // 2 * 2))
    return tuple((start, end) for start, end in zip(borders[::2], borders[1::2], strict=True) if end > context - length)


def _filled(
    form: Form, rng: random.Random, backend: AttentionBackend, contexts: list[int], dummy_rows: range
) -> tuple[PagedBatch, PagedBatch]:
    """The batch without its queries; what nobody wrote is UNWRITTEN, but for the dummy page."""
    columns = -(-max(contexts) // form.page_size) + rng.choice([0, 1, 5])
    pages = 1 + sum(-(-context // form.page_size) for context in contexts)
    shape = KeyValueShape(LAYER + 1, form.kv_heads, form.head_dim, form.dtype)
    device = torch.device(DEVICE)
    cache = PagedKeyValueCache(shape, pages, form.page_size, device)
    measure = PagedKeyValueCache(replace(shape, dtype=torch.float32), pages, form.page_size, device)
    for side in cache.layer(LAYER):
        side[1:] = UNWRITTEN.get(backend.name, 100.0)
    free = rng.sample(range(1, pages), pages - 1)
    tables = torch.zeros(len(contexts), columns, dtype=torch.int32)
    batch = PagedBatch(
        cache=cache,
        backend=backend,
        slots=torch.zeros(0, dtype=torch.int64, device=device),
        page_tables=tables.to(device),
        context_lengths=torch.tensor(contexts, dtype=torch.int32, device=device),
        decode_rows=0,
    )
    for row, context in enumerate(contexts):
        if row in dummy_rows:
            continue
        own = torch.tensor([free.pop() for _ in range(-(-context // form.page_size))])
        tables[row, : len(own)] = own.to(torch.int32)
        at = torch.arange(context)
        slots = (own[at // form.page_size] * form.page_size + at % form.page_size).to(device)
        fused = torch.randn(context, 3, form.kv_heads, form.head_dim, device=device).to(form.dtype)
        keys, values = fused[:, 1], fused[:, 2]  # not contiguous, as a fused projection gives them
        backend.write(replace(batch, slots=slots), LAYER, keys, values)
        measure.write(LAYER, slots, keys.float(), values.float())
    batch.page_tables.copy_(tables)
    return batch, replace(batch, cache=measure, backend=ReferenceAttention())
