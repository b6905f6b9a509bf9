"""The decode step as a device function over tensors at fixed addresses: one token for each of some sequences.

A step is: `load` host rows into the buffers, `forward` to logits, `sample` to next ids, `fetch` them. The second and
the third read nothing but the buffers: no host read, no data-dependent shape, nothing allocated that outlives them, so
that each can be captured as a CUDA graph (graphs.py). They are two functions, because token masks may arrive while the
forward runs. Knows no sequences and no graphs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fanlight_engine.model.adapter import ModelAdapter
from fanlight_engine.model.attention.interface import AttentionBackend, PagedBatch
from fanlight_engine.model.kv_cache import PagedKeyValueCache
from fanlight_engine.model.packing import PackedStep
from fanlight_engine.model.penalties import PenaltyRows, TokenMarks, mark_inputs, penalise
from fanlight_engine.model.sampler import SamplingMode, SamplingRows, sample
from fanlight_engine.model.step_buffers import StepBuffers, StepResults

KNOWN = -1
"""The source of an id that the host has."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The shape of one decode step; rows that pad it point at the dummy page and take no adapter."""

    rows: int
    pages: int
    """Columns of the page tables."""
    has_loras: bool = False
    """Whether some row takes a LoRA adapter; the others need none of that work."""


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
        self._buffers = StepBuffers(max_rows, max_pages, adapter.position_rows, adapter.device)
        self._rows = self._buffers.device
        self._ids = torch.zeros(max_rows, dtype=torch.int64, device=adapter.device)
        self._logits = torch.zeros(max_rows, adapter.vocab_size, dtype=torch.float32, device=adapter.device)

    @property
    def next_ids(self) -> torch.Tensor:
        """[max_rows] int64, on the device: what the last step sampled."""
        return self._rows.next_ids

    @property
    def logprobs(self) -> torch.Tensor:
        """[max_rows] float32, on the device: and the logprobs of these, where asked."""
        return self._rows.logprobs

    def load(
        self,
        step: PackedStep,
        sampling: SamplingRows,
        bucket: Bucket,
        penalties: PenaltyRows | None = None,
        sources: np.ndarray | None = None,
        suppresses: bool = True,
    ) -> None:
        """Send a packed step of decodes to the buffers, and pad the bucket.

        `sources` [rows] are the rows of the last step that sampled each id, KNOWN where `step` has the id.
        """
        rows, host = len(step.ids), self._buffers.begin()
        assert rows <= bucket.rows
        assert step.page_tables.shape[1] <= bucket.pages
        padded, padding = slice(rows), slice(rows, bucket.rows)
        host.known_ids[padded] = np.maximum(step.ids, 0)  # padding rows take one, which may not be known yet
        host.positions[:, padded], host.positions[:, padding] = step.positions, 0
        host.slots[padded], host.slots[padding] = step.slots, 0
        host.context_lengths[padded], host.context_lengths[padding] = step.context_lengths, 1
        host.loras[padded], host.loras[padding] = step.loras, 0
        host.sources[padded], host.sources[padding] = self._places_of(rows, sources), 0
        host.memory.sampling.copy_from(sampling)
        if penalties is not None:
            host.memory.penalties.copy_from(penalties)
        host.memory.penalties.unmarked[0 if penalties is None else rows :] = 0
        self._buffers.send(step.page_tables, bucket.rows, suppresses)

    def forward(self, bucket: Bucket) -> None:
        """Device only: the bucket's rows through the decoder, logits into their buffer."""
        rows = bucket.rows
        batch = PagedBatch(
            cache=self._cache,
            backend=self._backend,
            slots=self._rows.slots[:rows],
            page_tables=self._buffers.page_tables[:rows, : bucket.pages],
            context_lengths=self._rows.context_lengths[:rows],
            decode_rows=rows,
        )
        self._ids[:rows] = self._rows.choice.index_select(0, self._rows.sources[:rows])
        with self._adapter.taking_loras(self._rows.loras[:rows] if bucket.has_loras else None):
            self._adapter.decode_rows(self._ids[:rows], self._rows.positions[:, :rows], batch, out=self._logits[:rows])

    def sample(self, bucket: Bucket, mode: SamplingMode) -> None:
        """Device only: the bucket's logits to `next_ids` and `logprobs`."""
        rows, penalised = bucket.rows, None
        logits = self._logits[:rows]
        if mode.penalises:
            penalties = self._rows.penalties.first(rows)
            mark_inputs(self._ids[:rows], penalties, self._marks.tensor)
            penalised = penalise(logits, penalties, self._marks.tensor)
        self.keep(*sample(logits, self._rows.sampling.first(rows), mode, penalised))

    def keep(self, ids: torch.Tensor, logprobs: torch.Tensor) -> None:
        """Device only: put what was sampled where the next step finds it, and where it is read."""
        self.next_ids[: len(ids)] = ids
        self.logprobs[: len(ids)] = logprobs

    def fetch(self, begin: bool = False) -> StepResults:
        """Begin to bring what was kept to the host. With `begin` for a step that `load` did not begin."""
        if begin:
            self._buffers.begin()
        return self._buffers.fetch()

    def _places_of(self, rows: int, sources: np.ndarray | None) -> np.ndarray:
        """Where each row's id is in `choice`: what the host knows stands first, then what was sampled."""
        own = np.arange(rows)
        return own if sources is None else np.where(sources == KNOWN, own, self.max_rows + sources)
