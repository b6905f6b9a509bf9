"""The decode step as a device function over tensors at fixed addresses, one shape per bucket.

A step is: `load` host rows into the buffers, `forward` to logits, `sample` to next ids. The last two read nothing but
the buffers: no host read, no data-dependent shape, so that each bucket can be captured as a CUDA graph. They are two
functions, because token masks may arrive while the forward runs. Here they run eagerly.

A bucket is a number of rows and a number of page-table columns, both powers of two up to the limits, with LoRA adapters
or without; rows that pad a bucket point at the dummy page and take no adapter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fanlight_engine.model.adapter import ModelAdapter
from fanlight_engine.model.attention.interface import AttentionBackend, PagedBatch
from fanlight_engine.model.kv_cache import PagedKeyValueCache
from fanlight_engine.model.packing import PackedStep
from fanlight_engine.model.penalties import PenaltyRows, TokenMarks, penalise
from fanlight_engine.model.sampler import SamplingMode, SamplingRows, sample


@dataclass(frozen=True, slots=True)
class Bucket:
    """The shape of one decode step."""

    rows: int
    pages: int
    has_loras: bool = False
    """Whether some row takes a LoRA adapter; the others need none of that work."""


def bucket_size(needed: int, limit: int) -> int:
    """The smallest power of two that holds `needed`, but never more than `limit`."""
    return min(1 << max(0, needed - 1).bit_length(), limit)


class DecodeStep:
    """Buffers and device functions of decode steps."""

    def __init__(
        self,
        adapter: ModelAdapter,
        cache: PagedKeyValueCache,
        backend: AttentionBackend,
        marks: TokenMarks,
        max_rows: int,
        max_pages: int,
    ) -> None:
        """`max_rows` sequences at most, `max_pages` pages of one sequence at most."""
        self._adapter = adapter
        self._cache = cache
        self._backend = backend
        self._marks = marks
        self.max_rows = max_rows
        self.max_pages = max_pages
        device = adapter.device
        self._ids = torch.zeros(max_rows, dtype=torch.int64, device=device)
        self._positions = torch.zeros(adapter.position_rows, max_rows, dtype=torch.int64, device=device)
        self._slots = torch.zeros(max_rows, dtype=torch.int64, device=device)
        self._page_tables = torch.zeros(max_rows, max_pages, dtype=torch.int32, device=device)
        self._context_lengths = torch.ones(max_rows, dtype=torch.int32, device=device)
        self._loras = torch.zeros(max_rows, dtype=torch.int64, device=device)
        self._sampling = SamplingRows.allocate(max_rows, device)
        self._penalties = PenaltyRows.allocate(max_rows, device)
        self._logits = torch.zeros(max_rows, adapter.vocab_size, dtype=torch.float32, device=device)
        self.next_ids = torch.zeros(max_rows, dtype=torch.int64, device=device)
        """[max_rows]: what `sample` chose."""
        self.logprobs = torch.zeros(max_rows, dtype=torch.float32, device=device)
        """[max_rows]: its logprobs, where asked."""

    def bucket_for(self, rows: int, pages: int, has_loras: bool = False) -> Bucket:
        """The bucket that holds so many sequences, the longest of them with so many pages."""
        return Bucket(bucket_size(rows, self.max_rows), bucket_size(pages, self.max_pages), has_loras)

    def load(
        self, step: PackedStep, sampling: SamplingRows, bucket: Bucket, penalties: PenaltyRows | None = None
    ) -> None:
        """Copy a packed step of decodes into the buffers and pad the bucket with rows that use the dummy page."""
        rows = len(step.ids)
        padding = bucket.rows - rows
        assert padding >= 0
        assert step.page_tables.shape[1] == bucket.pages

        def copy(buffer: torch.Tensor, values: np.ndarray) -> None:
            buffer.copy_(torch.from_numpy(values), non_blocking=True)

        copy(self._ids[: bucket.rows], np.pad(step.ids, (0, padding)))
        copy(self._positions[:, : bucket.rows], np.pad(step.positions, ((0, 0), (0, padding))))
        copy(self._slots[: bucket.rows], np.pad(step.slots, (0, padding)))
        copy(self._page_tables[: bucket.rows, : bucket.pages], np.pad(step.page_tables, ((0, padding), (0, 0))))
        copy(self._context_lengths[: bucket.rows], np.pad(step.context_lengths, (0, padding), constant_values=1))
        copy(self._loras[: bucket.rows], np.pad(step.loras, (0, padding)))
        self._sampling.copy_from(sampling)
        if penalties is not None:
            self._penalties.copy_from(penalties)

    def forward(self, bucket: Bucket) -> None:
        """Device only: the bucket's rows through the decoder, logits into their buffer."""
        rows = bucket.rows
        batch = PagedBatch(
            cache=self._cache,
            backend=self._backend,
            slots=self._slots[:rows],
            page_tables=self._page_tables[:rows, : bucket.pages],
            context_lengths=self._context_lengths[:rows],
            decode_rows=rows,
        )
        with self._adapter.taking_loras(self._loras[:rows] if bucket.has_loras else None):
            hidden = self._adapter.decode(self._adapter.embed(self._ids[:rows]), self._positions[:, :rows], batch)
            self._logits[:rows] = self._adapter.logits(hidden)

    def sample(self, bucket: Bucket, mode: SamplingMode) -> None:
        """Device only: the bucket's logits to `next_ids` and `logprobs`."""
        rows = bucket.rows
        logits = self._logits[:rows]
        penalised = penalise(logits, self._penalties.first(rows), self._marks.tensor) if mode.penalises else None
        ids, logprobs = sample(logits, self._sampling.first(rows), mode, penalised)
        self.next_ids[:rows] = ids
        self.logprobs[:rows] = logprobs
