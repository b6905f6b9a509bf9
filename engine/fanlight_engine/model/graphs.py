"""Captures decode steps as CUDA graphs, and runs each step by the graph that holds it, else eagerly.

A graph has one shape. Captured are a ladder of row counts, the largest first so that the others find room in its
memory, all in one memory pool; and of each the forward by itself and the kinds of sampling that are common. A step of
fewer rows is padded up to the next rung. What no graph holds runs eagerly in its exact shape, as everything does on a
CPU: another kind of sampling, more rows than were worth capturing, adapters where none were captured.

Page tables count too where attention gathers whole tables; else one width serves all, since attention then reads no
further than a context goes. Prefill is not captured: at chunks of hundreds of tokens launching hides behind computing.
Knows buckets and modes; knows no sequences. Whoever captures is given, so that all this is tested without a GPU.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from fanlight_engine.core.memory_use import readable_bytes
from fanlight_engine.errors import in_one_line
from fanlight_engine.model.decode_step import Bucket, DecodeStep
from fanlight_engine.model.sampler import SamplingMode

_log = logging.getLogger(__name__)
_MOST_COLUMN_SIZES = 4
_COLUMNS_GROW_BY = 4
KINDS = (
    SamplingMode(logprobs=True),
    SamplingMode(draws=True, logprobs=True),
    SamplingMode(draws=True, filters=True, logprobs=True),
)
"""Kinds of sampling that are captured for each bucket, cheapest first. Logprobs are always with them: they cost little
beside the graph that each kind costs."""


class Graph(Protocol):
    """Work that was captured."""

    def replay(self) -> None:
        """Launch all of it at once."""
        ...


class Capturer(Protocol):
    """Captures work of fixed shapes at fixed addresses."""

    def capture(self, work: Callable[[], None]) -> Graph:
        """Do the work as often as warms it up, and capture it."""
        ...

    def reserved_bytes(self) -> int:
        """Memory that the device has set aside for this process."""
        ...


class CudaCapturer:
    """torch's own CUDA graphs, all in one memory pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def capture(self, work: Callable[[], None]) -> Graph:
        """See Capturer. Twice before, because kernels are chosen and libraries opened at the first run."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for _ in range(2):
                work()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        return graph

    def reserved_bytes(self) -> int:
        """See Capturer."""
        return torch.cuda.memory_reserved(self._device)


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """What is to be captured."""

    gathers_tables: bool = True
    """Whether attention reads page tables in their whole width."""
    most_rows: int | None = None
    """Steps of more rows are not worth capturing; None where all are."""
    with_loras: bool = False
    """Whether the model has LoRA adapters, so that every bucket is captured with them and without."""
    penalises: bool = False
    """Whether requests that say nothing have penalties, so that every kind is captured with them and without."""
    capturable: Callable[[], AbstractContextManager[None]] = nullcontext
    """Within it, what the decoder computes can be captured."""

    def buckets(self, max_rows: int, max_pages: int) -> list[Bucket]:
        """Largest first."""
        rows = [one for one in row_sizes(max_rows) if self.most_rows is None or one <= self.most_rows]
        pages = page_sizes(max_pages) if self.gathers_tables else [max_pages]
        loras = (True, False) if self.with_loras else (False,)
        return [Bucket(row, page, lora) for row in reversed(rows) for page in reversed(pages) for lora in loras]

    @property
    def kinds(self) -> tuple[SamplingMode, ...]:
        """Kinds of sampling, the cheapest first."""
        return KINDS + tuple(replace(kind, penalises=True) for kind in KINDS) * self.penalises


@dataclass(slots=True)
class GraphCounters:
    """Work done; only grows."""

    captured: int = 0
    """Graphs."""
    replayed: int = 0
    """Forwards by graph."""
    eager: int = 0
    """Forwards of decode steps without one."""
    replayed_samplings: int = 0
    eager_samplings: int = 0


class DecodeGraphs:
    """The decode step of one runner, by graph where there is one."""

    def __init__(self, step: DecodeStep, plan: CapturePlan | None = None) -> None:
        self.counters = GraphCounters()
        self._step = step
        self._plan = plan or CapturePlan()
        self._buckets: list[Bucket] = []
        """Captured ones, smallest first."""
        self._forwards: dict[Bucket, Graph] = {}
        self._samplings: dict[tuple[int, SamplingMode], Graph] = {}

    @torch.inference_mode()
    def capture(self, capturer: Capturer, report: Callable[[str], None] = lambda line: None) -> None:
        """Capture everything that is planned, or nothing where something cannot be; `report` says which."""
        buckets = self._plan.buckets(self._step.max_rows, self._step.max_pages)
        if not buckets:
            report("no decode step is worth capturing; they run eagerly")
            return
        began, reserved = time.monotonic(), capturer.reserved_bytes()
        report(f"capturing {len(buckets)} decode steps of up to {buckets[0].rows} rows as CUDA graphs")
        try:
            for done, bucket in enumerate(buckets):
                self._capture(bucket, capturer)
                if (done + 1) * 10 // len(buckets) > done * 10 // len(buckets) and done + 1 < len(buckets):
                    report(f"captured {done + 1} of {len(buckets)}")
        except Exception as error:  # foreign model code, asked for what not all of it can
            _log.exception("a decode step cannot be captured")
            self._forget()
            report(f"decode steps cannot be captured and run eagerly: {in_one_line(error)}")
            return
        taken = readable_bytes(max(0, capturer.reserved_bytes() - reserved))
        report(f"captured {self.counters.captured} graphs in {time.monotonic() - began:.1f} s; they take {taken}")

    def bucket_for(self, rows: int, pages: int, has_loras: bool = False) -> Bucket:
        """The smallest captured bucket that holds so many sequences, the longest with so many pages; else just that."""
        for bucket in self._buckets:
            if rows <= bucket.rows and pages <= bucket.pages and has_loras == bucket.has_loras:
                return bucket
        return Bucket(rows, pages, has_loras)

    def columns_for(self, bucket: Bucket, pages: int) -> int:
        """Columns that the page tables of a step in the bucket must have, when its longest sequence has `pages`."""
        return bucket.pages if self._plan.gathers_tables else pages

    def forward(self, bucket: Bucket) -> None:
        """Device only: see DecodeStep.forward."""
        graph = self._forwards.get(bucket)
        if graph is not None:
            self.counters.replayed += 1
            graph.replay()
        else:
            self.counters.eager += 1
            self._step.forward(bucket)

    def sample(self, bucket: Bucket, mode: SamplingMode) -> None:
        """Device only: see DecodeStep.sample."""
        graph = self._samplings.get((bucket.rows, replace(mode, logprobs=True)))
        if graph is not None:
            self.counters.replayed_samplings += 1
            graph.replay()
        else:
            self.counters.eager_samplings += 1
            self._step.sample(bucket, mode)

    def _capture(self, bucket: Bucket, capturer: Capturer) -> None:
        with self._plan.capturable():
            self._forwards[bucket] = capturer.capture(lambda: self._step.forward(bucket))
        self.counters.captured += 1
        for kind in self._plan.kinds:
            if (bucket.rows, kind) not in self._samplings:
                self._samplings[bucket.rows, kind] = capturer.capture(lambda kind=kind: self._step.sample(bucket, kind))
                self.counters.captured += 1
        self._buckets.insert(0, bucket)

    def _forget(self) -> None:
        self._buckets.clear()
        self._forwards.clear()
        self._samplings.clear()
        self.counters.captured = 0


def row_sizes(max_rows: int) -> list[int]:
    """Row counts worth a graph, smallest first: powers of two, from 16 on one between each two, and the most rows."""
    sizes, size = [], 1
    while size < max_rows:
        sizes += [size, size * 3 // 2] if size >= 16 and size * 3 // 2 < max_rows else [size]
        size *= 2
    return [*sizes, max_rows]


def page_sizes(max_pages: int) -> list[int]:
    """Widths of page tables worth a graph, smallest first: a few, since every row count is captured with each."""
    sizes = [max_pages]
    while len(sizes) < _MOST_COLUMN_SIZES and sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // _COLUMNS_GROW_BY))
    return sizes[::-1]
