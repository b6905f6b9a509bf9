"""Memory of decode steps at fixed addresses, and the one transfer to the device and the one back that a step needs.

All that rows of a step need lies in one stretch:

    | suppressed ids | parameters of rows | ids that the host knows | ids that were sampled | their logprobs |
    |<--------------- what the host sends in one copy ----------->|<------ what it reads in one copy ------>|
                                          |<---- what a step picks its ids from ---->|

So the next step can take an id that the host has not read yet, straight from where the last one left it. A device of
its own has two stretches of pinned host memory beside it, taken in turn, so that the host writes a step's rows while
the device still reads those of the step before. A CPU has one stretch, which is written in place. Page tables, whose
width differs from step to step, lie beside it and are sent by themselves. Knows no sequences and no model.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cached_property
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch

from fanlight_engine.model.penalties import PenaltyRows
from fanlight_engine.model.rows import Rows
from fanlight_engine.model.sampler import SamplingRows

_ALIGNMENT = 16
"""Bytes; every field begins at a multiple, so that it can be read as any number type."""
_R = TypeVar("_R", bound=Rows)


class StepMemory:
    """One stretch, and its fields as views of it. R rows."""

    def __init__(self, rows: int, position_rows: int, device: torch.device, pinned: bool = False) -> None:
        """Greedy rows without penalties that read and write the dummy page."""
        sampling = SamplingRows.allocate(rows, torch.device("cpu"))
        penalties = PenaltyRows.allocate(rows, torch.device("cpu"))
        layout = [
            *_layout_of(sampling, first="suppressed_ids"),
            *_layout_of(penalties),
            ("positions", torch.int64, (position_rows, rows)),
            ("slots", torch.int64, (rows,)),
            ("context_lengths", torch.int32, (rows,)),
            ("loras", torch.int64, (rows,)),
            ("sources", torch.int64, (rows,)),
            ("choice", torch.int64, (2 * rows,)),
            ("logprobs", torch.float32, (rows,)),
        ]
        starts, end = _places(layout)
        self.bytes = torch.zeros(end, dtype=torch.uint8, device=device, pin_memory=pinned)
        views = {
            name: self.bytes[start : start + _size(dtype, shape)].view(dtype).view(shape)
            for (name, dtype, shape), start in zip(layout, starts, strict=True)
        }
        self.sampling = _taken(SamplingRows, views)
        self.penalties = _taken(PenaltyRows, views)
        self.sampling.copy_from(sampling)
        self.penalties.copy_from(penalties)
        self.positions = views["positions"]
        """[position_rows, R] int64."""
        self.slots = views["slots"]
        """[R] int64."""
        self.context_lengths = views["context_lengths"].fill_(1)
        """[R] int32."""
        self.loras = views["loras"]
        """[R] int64."""
        self.sources = views["sources"]
        """[R] int64: where in `choice` each row's id is."""
        self.choice = views["choice"]
        """[2 * R] int64: ids that the host knows, then those that the last step sampled."""
        self.known_ids = self.choice[:rows]
        """[R] int64."""
        self.next_ids = self.choice[rows:]
        """[R] int64: what a step sampled."""
        self.logprobs = views["logprobs"]
        """[R] float32: and the logprobs of these, where asked."""
        sent_until = starts[[name for name, _, _ in layout].index("choice")] + self.known_ids.nbytes
        self.parameters = slice(self.sampling.suppressed_ids.nbytes, sent_until)
        """Bytes that every step sends."""
        self.parameters_and_suppressed_ids = slice(0, sent_until)
        """Bytes that a step sends some of whose rows have not reached their min_new_tokens."""
        self.results = slice(sent_until, end)
        """Bytes that every step that samples reads."""


class HostRows:
    """The host's side of one step's rows; `arrays` are numpy views of what it fills in."""

    def __init__(self, memory: StepMemory) -> None:
        self.memory = memory
        self.positions: np.ndarray = memory.positions.numpy()
        self.slots: np.ndarray = memory.slots.numpy()
        self.context_lengths: np.ndarray = memory.context_lengths.numpy()
        self.loras: np.ndarray = memory.loras.numpy()
        self.sources: np.ndarray = memory.sources.numpy()
        self.known_ids: np.ndarray = memory.known_ids.numpy()
        self.page_tables = torch.zeros(0, dtype=torch.int32)
        """Pinned, as large as has been needed; unused on a CPU."""
        self.done: Any = None
        """The event behind the last step that was sent from here and read to here; None where nothing is awaited."""


class StepResults:
    """What a step sampled, on its way to the host."""

    def __init__(self, ids: torch.Tensor, logprobs: torch.Tensor, done: Any = None) -> None:
        """`done` is the event behind the transfer; None where it is over."""
        self._ids = ids
        self._logprobs = logprobs
        self._done = done

    def read(self, rows: int) -> tuple[list[int], list[float]]:
        """Ids and logprobs of the first rows; waits for the device. The step's one read on the host."""
        if self._done is not None:
            self._done.synchronize()
        return self._ids[:rows].tolist(), self._logprobs[:rows].tolist()


class StepBuffers:
    """The device's stretch, the host's, and the page tables."""

    def __init__(self, max_rows: int, max_pages: int, position_rows: int, device: torch.device) -> None:
        self.max_rows = max_rows
        self.device = StepMemory(max_rows, position_rows, device)
        self.page_tables = torch.zeros(max_rows, max_pages, dtype=torch.int32, device=device)
        """[max_rows, max_pages] int32 on the device."""
        self._position_rows = position_rows
        self._is_apart = device.type == "cuda"
        self._turn = 0

    @cached_property
    def _hosts(self) -> list[HostRows]:
        if not self._is_apart:
            return [HostRows(self.device)]
        cpu = torch.device("cpu")
        return [HostRows(StepMemory(self.max_rows, self._position_rows, cpu, pinned=True)) for _ in range(2)]

    def begin(self) -> HostRows:
        """The host's rows for the next step; waits until the device has done with what they held."""
        self._turn = (self._turn + 1) % len(self._hosts)
        host = self._hosts[self._turn]
        if host.done is not None:
            host.done.synchronize()
        return host

    def send(self, page_tables: np.ndarray, padded_rows: int, with_suppressed_ids: bool) -> None:
        """Send what `begin` gave, and page tables [rows, W]; rows up to `padded_rows` get the dummy page."""
        host, (rows, columns) = self._hosts[self._turn], page_tables.shape
        if not self._is_apart:
            self.page_tables[:rows, :columns] = torch.from_numpy(page_tables)
            self.page_tables[rows:padded_rows, :columns] = 0
            return
        sent = self.device.parameters_and_suppressed_ids if with_suppressed_ids else self.device.parameters
        self.device.bytes[sent].copy_(host.memory.bytes[sent], non_blocking=True)
        if host.page_tables.numel() < padded_rows * columns:
            host.page_tables = torch.zeros(padded_rows * columns, dtype=torch.int32, pin_memory=True)
        staged = host.page_tables[: padded_rows * columns].view(padded_rows, columns)
        staged[:rows] = torch.from_numpy(page_tables)
        staged[rows:] = 0
        self.page_tables[:padded_rows, :columns].copy_(staged, non_blocking=True)

    def fetch(self) -> StepResults:
        """Begin to bring what the step sampled to the host, behind it on the device."""
        host = self._hosts[self._turn]
        if not self._is_apart:
            return StepResults(self.device.next_ids.clone(), self.device.logprobs.clone())
        results = self.device.results
        host.memory.bytes[results].copy_(self.device.bytes[results], non_blocking=True)
        host.done = torch.cuda.Event()
        host.done.record()
        return StepResults(host.memory.next_ids, host.memory.logprobs, host.done)


def _layout_of(prototype: Rows, first: str = "") -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
    """Name, number type and shape of each field; `first` stands before the others."""
    kind = type(prototype).__name__
    names = sorted((field.name for field in fields(prototype)), key=lambda name: name != first)
    return [(f"{kind}.{name}", getattr(prototype, name).dtype, tuple(getattr(prototype, name).shape)) for name in names]


def _places(layout: list[tuple[str, torch.dtype, tuple[int, ...]]]) -> tuple[list[int], int]:
    """Where each field begins, and where the last one ends."""
    starts, end = [], 0
    for _, dtype, shape in layout:
        starts.append(end)
        end += -(-_size(dtype, shape) // _ALIGNMENT) * _ALIGNMENT
    return starts, end


def _size(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return prod(shape) * dtype.itemsize


def _taken(kind: type[_R], views: dict[str, torch.Tensor]) -> _R:
    return kind(*(views[f"{kind.__name__}.{field.name}"] for field in fields(kind)))
