"""`python -m tests.engine.triton_matrix`: Triton's attention equals the reference on a random matrix of steps.

A program of its own, because it runs in Triton's interpreter, which a process has for good or not at all. It prints one
JSON object: how many cases were compared, how many had each trait, and the largest difference by number type; it exits
non-zero with the case that differs. Cases are the same in every run.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import numpy as np
import torch
from triton import language as tl
from triton.runtime import interpreter

from fanlight_engine.model.attention.interface import LayerAttention, PagedBatch, Segment
from fanlight_engine.model.attention.reference import ReferenceAttention
from fanlight_engine.model.attention.triton_backend import TritonAttention
from fanlight_engine.model.attention.triton_sizes import Heads, Processors, decode_launch, prefill_launch
from fanlight_engine.model.kv_cache import KeyValueShape, PagedKeyValueCache

CASES = 320
CPU = torch.device("cpu")
TOLERANCES = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
"""Weights are rounded to the number type before they meet the values; outputs are of the order of 1."""
WRITTEN_BY_KERNEL = 3
"""Last tokens of every context; the others are there already, as in a server."""
SHARES_OF_TYPES = [torch.float32, torch.float32, torch.float16, torch.bfloat16]


@dataclass(frozen=True)
class Case:
    """A step of random sequences; what decides the kernel's way through it."""

    seed: int
    dtype: torch.dtype
    kv_heads: int
    group: int
    head_dim: int
    page_size: int
    decode_contexts: tuple[int, ...]
    dummy_rows: int
    segments: tuple[Segment, ...]
    window_bounds_spans: bool
    layer: LayerAttention
    processors: Processors

    @property
    def traits(self) -> list[str]:
        """What is counted."""
        has_decodes, has_chunks = bool(self.decode_contexts), bool(self.segments)
        kind = "mixed" if has_decodes and has_chunks else "decodes" if has_decodes else "chunks"
        found = [kind, str(self.dtype).removeprefix("torch."), f"page size {self.page_size}"]
        found += ["window"] * (self.layer.sliding_window is not None) + ["cap"] * (self.layer.soft_cap is not None)
        found += ["spans"] * any(segment.spans for segment in self.segments)
        found += ["spans bounded by a window"] * ("spans" in found and "window" in found and self.window_bounds_spans)
        found += ["head_dim no power of two"] * (self.head_dim & (self.head_dim - 1) != 0)
        found += ["grouped heads"] * (self.group > 1) + ["dummy rows"] * (self.dummy_rows > 0)
        found += ["fixed splits"] * (self.processors.fixed_split > 0)
        return found


def random_case(seed: int) -> Case:
    """Small enough for an interpreter; long enough for several pages, tiles and splits."""
    rng = random.Random(seed)
    kind = rng.choice(["decodes", "decodes", "chunks", "mixed"])
    longest = rng.choice([20, 80, 150, 300, 600] if kind == "decodes" else [20, 80, 150])
    decode_contexts = [rng.randint(1, longest) for _ in range(rng.randint(1, 3))] if kind != "chunks" else []
    segments: list[Segment] = []
    first = len(decode_contexts)
    for _ in range(rng.randint(1, 2) if kind != "decodes" else 0):
        context = rng.randint(1, longest)
        length = min(context, rng.randint(1, 16))
        segments.append(Segment(first, length, context, _spans(rng, context, length)))
        first += length
    group = rng.choice([1, 2, 3, 4, 7])
    window = rng.choice([None, None, 1, rng.randint(2, 40), rng.randint(2, 400)])
    fixed = rng.choice([0, 0, 0, 0, 128, 256])
    return Case(
        seed=seed,
        dtype=rng.choice(SHARES_OF_TYPES),
        kv_heads=rng.choice([1, 2, 3]) if group < 4 else 1,
        group=group,
        head_dim=rng.choice([8, 16, 24, 32, 64, 80, 128]),
        page_size=rng.choice([12, 16, 16, 32, 64, 128, 256]),
        decode_contexts=tuple(decode_contexts),
        dummy_rows=rng.choice([0, 1, 2]) if kind == "decodes" else 0,
        segments=tuple(segments),
        window_bounds_spans=rng.random() < 0.5,
        layer=LayerAttention(1, rng.uniform(0.05, 0.5), window, rng.choice([None, None, rng.uniform(0.5, 30.0)])),
        processors=Processors(rng.choice([1, 2, 6]), fixed),
    )


def _spans(rng: random.Random, context: int, length: int) -> tuple[tuple[int, int], ...]:
    """Random spans of a context that touch its last `length` positions, or none."""
    if rng.random() < 0.4:
        return ()
    borders = sorted(rng.sample(range(context + 1), min(context, 6) // 2 * 2))
    spans = zip(borders[::2], borders[1::2], strict=True)
    return tuple((start, end) for start, end in spans if end > context - length)


@dataclass(frozen=True)
class Built:
    """The same step twice: for the kernels in the case's number type, and in float32 for the reference."""

    queries: torch.Tensor
    batch: PagedBatch
    measure: PagedBatch


def build(case: Case) -> Built:
    """Sequences on shuffled pages. What nobody wrote is not a number for the kernels: they must not read it."""
    rng, generator = random.Random(case.seed), torch.Generator().manual_seed(case.seed)
    contexts = [*case.decode_contexts, *[1] * case.dummy_rows, *(one.context_length for one in case.segments)]
    columns = -(-max(contexts) // case.page_size) + rng.choice([0, 0, 1, 3])
    shape = KeyValueShape(2, case.kv_heads, case.head_dim, case.dtype)
    pages = 1 + len(contexts) * columns
    cache = PagedKeyValueCache(shape, pages, case.page_size, CPU)
    measure = PagedKeyValueCache(replace(shape, dtype=torch.float32), pages, case.page_size, CPU)
    for side in cache.layer(1):
        side[1:] = float("nan")
    backend = TritonAttention(case.processors)
    free = rng.sample(range(1, pages), pages - 1)
    tables = torch.zeros(len(contexts), columns, dtype=torch.int32)
    dummies = range(len(case.decode_contexts), len(case.decode_contexts) + case.dummy_rows)
    batch = PagedBatch(
        cache=cache,
        backend=backend,
        slots=torch.zeros(0, dtype=torch.int64),
        page_tables=tables,
        context_lengths=torch.tensor(contexts, dtype=torch.int32),
        decode_rows=len(case.decode_contexts) + case.dummy_rows,
        prefill_segments=case.segments,
        window_bounds_spans=case.window_bounds_spans,
    )
    for row, context in enumerate(contexts):
        if row in dummies:
            continue
        own = [free.pop() for _ in range(-(-context // case.page_size))]
        tables[row, : len(own)] = torch.tensor(own, dtype=torch.int32)
        slots = torch.tensor(
            [own[at // case.page_size] * case.page_size + at % case.page_size for at in range(context)]
        )
        fused = torch.randn(context, 3, case.kv_heads, case.head_dim, generator=generator).to(case.dtype)
        keys, values = fused[:, 1], fused[:, 2]  # not contiguous, as a fused projection gives them
        measure.write(1, slots, keys.float(), values.float())
        cache.write(1, slots[:-WRITTEN_BY_KERNEL], keys[:-WRITTEN_BY_KERNEL], values[:-WRITTEN_BY_KERNEL])
        last = slice(-WRITTEN_BY_KERNEL, None)
        backend.write(replace(batch, slots=slots[last]), 1, keys[last], values[last])
    tokens = batch.decode_rows + sum(segment.query_length for segment in case.segments)
    queries = torch.randn(tokens, case.kv_heads * case.group, case.head_dim, generator=generator).to(case.dtype)
    return Built(queries, batch, replace(batch, cache=measure, backend=ReferenceAttention()))


def difference(case: Case, built: Built, outputs: torch.Tensor) -> float:
    """Largest difference of an output from the reference's; infinite where one is not a number of the right type."""
    expected = built.measure.backend.attend(built.queries.float(), built.measure, case.layer)
    found = (outputs.float() - expected).abs().max().item()
    return found if found == found and outputs.dtype == case.dtype else float("inf")


def rows_that_depend_on_neighbours(case: Case, built: Built, outputs: torch.Tensor) -> int:
    """How many decode rows give other bits alone, under a page table of their own width, than beside the others."""
    found = 0
    for row, context in enumerate(case.decode_contexts):
        alone = replace(
            built.batch,
            page_tables=built.batch.page_tables[row : row + 1, : -(-context // case.page_size)],
            context_lengths=built.batch.context_lengths[row : row + 1],
            decode_rows=1,
            prefill_segments=(),
        )
        single = alone.backend.attend(built.queries[row : row + 1], alone, case.layer)
        found += not torch.equal(single[0], outputs[row])
    return found


def joins_splits(case: Case, built: Built) -> bool:
    """Whether some launch of the case has splits."""
    heads = Heads(case.kv_heads * case.group, case.kv_heads, case.head_dim, case.dtype.itemsize)
    batch, longest = built.batch, built.batch.page_tables.shape[1] * case.page_size
    seen = min(longest, (case.layer.sliding_window or longest) + heads.block_n)
    of_decodes = decode_launch(heads, batch.decode_rows, seen, case.processors) if batch.decode_rows else None
    queries, segments = len(built.queries) - batch.decode_rows, len(case.segments)
    of_chunks = prefill_launch(heads, queries, segments, longest, case.processors) if segments else None
    return any(launch is not None and launch.splits > 1 for launch in (of_decodes, of_chunks))


def multiply_bfloat16() -> None:
    """Teach the interpreter, which keeps bfloat16 as the bits that it is and would multiply these as whole numbers."""
    builder: Any = interpreter.InterpreterBuilder
    multiply = builder.create_dot

    def create_dot(self: Any, left: Any, right: Any, *others: Any) -> Any:
        return multiply(self, _as_float32(left), _as_float32(right), *others)

    builder.create_dot = create_dot


def _as_float32(operand: Any) -> Any:
    if operand.dtype.scalar != tl.bfloat16:
        return operand
    return interpreter.TensorHandle((operand.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def main() -> int:
    """Compare all cases and print the outcome."""
    torch.set_num_threads(1)
    multiply_bfloat16()
    traits: Counter[str] = Counter()
    worst: dict[str, float] = {}
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else CASES
    for seed in range(cases):
        case = random_case(seed)
        built = build(case)
        outputs = built.batch.backend.attend(built.queries, built.batch, case.layer)
        found = difference(case, built, outputs)
        if not found <= TOLERANCES[case.dtype]:
            print(f"differs by {found:.3g}: {case}", file=sys.stderr)
            return 1
        if case.processors.fixed_split and rows_that_depend_on_neighbours(case, built, outputs):
            print(f"rows depend on their neighbours: {case}", file=sys.stderr)
            return 1
        traits.update([*case.traits, *["joined splits"] * joins_splits(case, built)])
        name = str(case.dtype).removeprefix("torch.")
        worst[name] = max(worst.get(name, 0.0), found)
    print(json.dumps({"cases": cases, "traits": dict(sorted(traits.items())), "largest_difference": worst}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
