"""Runs a plan on the device: encode media, inject, forward, sample. The one place that launches device work.

`launch` returns before the device has computed, where that works beside the host; `Launched.read` waits for it. A step
may be launched while the one before it is not read: it takes the ids that it lacks from where that one leaves them.
Knows tensors and chunks; knows nothing of queues, admission or why a chunk was chosen.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from fanlight_engine.core.encoder_budget import EncodeJob
from fanlight_engine.core.scheduler import Chunk, Plan
from fanlight_engine.core.sequence import UNREAD, Sequence
from fanlight_engine.model.adapter import ModelAdapter
from fanlight_engine.model.attention.interface import AttentionBackend, PagedBatch
from fanlight_engine.model.decode_rows import DecodeRows
from fanlight_engine.model.decode_step import KNOWN, DecodeStep
from fanlight_engine.model.graphs import CapturePlan, DecodeGraphs
from fanlight_engine.model.injection import ImageInjector
from fanlight_engine.model.kv_cache import PagedKeyValueCache
from fanlight_engine.model.packing import PackedStep, PromptPositions, as_rows, joined, pack
from fanlight_engine.model.penalties import PenaltyRows, TokenMarks, penalise
from fanlight_engine.model.positions import token_types
from fanlight_engine.model.sampler import SamplingRows, sample
from fanlight_engine.model.sampling_rows import SamplingTable
from fanlight_engine.model.step_buffers import StepResults
from fanlight_engine.model.tensors import data_of
from fanlight_engine.model.vision_cache import VisionCache
from fanlight_engine.tensor_data import TensorData

_log = logging.getLogger(__name__)


class SampledToken(NamedTuple):
    """What a step chose for one sequence."""

    sequence: Sequence
    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Launched:
    """A step that the device computes."""

    sequences: SequenceOf[Sequence]
    """Those that the step samples for, in order."""
    results: StepResults | None
    """None where it samples for none."""

    def read(self) -> list[SampledToken]:
        """One token for each of the sequences; waits for the device. Raises what the device raised."""
        if self.results is None:
            return []
        ids, logprobs = self.results.read(len(self.sequences))
        return list(map(SampledToken._make, zip(self.sequences, ids, logprobs, strict=True)))


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """Sizes that buffers are allocated for."""

    max_rows: int
    max_step_tokens: int
    max_pages_per_sequence: int
    max_tokens_as_rows: int = 0
    """Tokens of the largest step with prompts that is computed like a decode step, each token a row."""
    encodes_alone: bool = False
    """Whether each medium goes through the tower by itself, so that nothing depends on those beside it."""


@dataclass(slots=True)
class RunnerCounters:
    """Work done; only grows."""

    decode_steps: int = 0
    image_steps: int = 0
    images_encoded: int = 0
    encoder_batches: int = 0


class Runner:
    """The device side of one core."""

    def __init__(
        self,
        adapter: ModelAdapter,
        cache: PagedKeyValueCache,
        backend: AttentionBackend,
        vision_cache: VisionCache[torch.Tensor],
        limits: RunnerLimits,
        captures: CapturePlan | None = None,
    ) -> None:
        """`captures` says what `decode_graphs` will capture, if they are told to."""
        self.counters = RunnerCounters()
        self._adapter = adapter
        self._cache = cache
        self._backend = backend
        self._vision_cache = vision_cache
        self._marks = TokenMarks(limits.max_rows, adapter.vocab_size, adapter.device)
        self._decode_step = DecodeStep(
            adapter, cache, backend, self._marks, limits.max_rows, limits.max_pages_per_sequence
        )
        self.decode_graphs = DecodeGraphs(self._decode_step, captures)
        self._injector = ImageInjector(adapter, vision_cache, limits.max_step_tokens)
        self._positions: dict[str, PromptPositions] = {}
        self._max_tokens_as_rows = limits.max_tokens_as_rows
        self._encodes_alone = limits.encodes_alone
        self._sampling = SamplingTable(limits.max_rows)
        self._decode_rows = DecodeRows(
            *(limits.max_rows, limits.max_pages_per_sequence, adapter.position_rows, cache.page_size), self._positions
        )

    def add(self, sequence: Sequence) -> None:
        """Work out a request's positions. Raises ValueError for prompts whose positions or embeddings cannot be had."""
        request = sequence.request
        is_text = token_types(sequence.mask, request.media, sequence.prompt_length) == 0
        ids = np.array(request.prompt_ids)
        unknown = ids[is_text & ((ids < 0) | (ids >= self._adapter.vocab_size))]
        if len(unknown):  # one such id would fail the whole step, neighbours included
            raise ValueError(f"token id {unknown[0]}: the vocabulary has ids 0 to {self._adapter.vocab_size - 1}")
        of_prompt = self._adapter.prompt_positions(request.prompt_ids, sequence.mask, request.media)
        self._positions[sequence.id] = PromptPositions(of_prompt)

    def remove(self, sequence: Sequence) -> None:
        """Forget a request; unknown ones are ignored."""
        self._positions.pop(sequence.id, None)
        self._marks.forget(sequence.id)

    @torch.inference_mode()
    def encode(self, jobs: SequenceOf[EncodeJob]) -> dict[bytes, Exception]:
        """Encode the media in one batch and store their embeddings; returns what failed, by digest.

        Where the batch fails each medium is tried alone, so that a bad one does not take its neighbours along.
        """
        if not jobs:
            return {}
        if self._encodes_alone and len(jobs) > 1:
            return self._encode_one_by_one(jobs)
        try:
            self._encode_batch(jobs)
        except Exception as error:  # the tower runs foreign code on foreign data
            if len(jobs) == 1:
                _log.exception("encoding a %s failed", jobs[0].medium.noun)
                return {jobs[0].medium.digest: error}
            return self._encode_one_by_one(jobs)
        return {}

    def _encode_one_by_one(self, jobs: SequenceOf[EncodeJob]) -> dict[bytes, Exception]:
        return {digest: failure for job in jobs for digest, failure in self.encode([job]).items()}

    def embedding(self, digest: bytes) -> TensorData:
        """The stored embedding [rows, embedding width] of a medium, as bytes in the model's number type."""
        return data_of(self._vision_cache.get(digest))

    @torch.inference_mode()
    def launch(self, plan: Plan, after: Launched | None = None) -> Launched:
        """Begin to compute the plan's chunks. `after` is the step before it, where its results are not read yet.

        Raises what the model's code or the device raises; the plan can then be launched again, whole or in parts.
        """
        try:
            return self._launch_decodes(plan.chunks, after) if plan.is_decode_only else self._launch_mixed(plan)
        except Exception:  # whatever it is, the marks of this plan are void; it goes on to the caller
            self.void(plan)
            raise

    def void(self, plan: Plan) -> None:
        """Forget what was noted down of a step as computed that was not, or whose results will not be used."""
        for chunk in plan.chunks:
            self._marks.forget(chunk.sequence.id)

    def _encode_batch(self, jobs: SequenceOf[EncodeJob]) -> None:
        embeddings = self._adapter.encode([job.medium for job in jobs])
        for job, embedding in zip(jobs, embeddings, strict=True):
            self._vision_cache.fill(job.medium.digest, embedding)
        encoded = sum(not job.medium.is_embedded for job in jobs)
        self.counters.images_encoded += encoded
        self.counters.encoder_batches += bool(encoded)

    def _launch_decodes(self, chunks: SequenceOf[Chunk], after: Launched | None) -> Launched:
        sequences = [chunk.sequence for chunk in chunks]
        most_pages = max(len(sequence.pages) for sequence in sequences)
        has_loras = any(sequence.lora is not None for sequence in sequences)
        bucket = self.decode_graphs.bucket_for(len(chunks), most_pages, has_loras)
        sampling, mode = self._sampling.rows_of(sequences)
        penalties = self._marks.rows_of(sequences, but_last=True) if mode.penalises else None
        step = self._decode_rows.pack(chunks, self.decode_graphs.columns_for(bucket, most_pages))
        sources = None if after is None else _sources(sequences, after)
        self._decode_step.load(step, sampling, bucket, penalties, sources, mode.suppresses)
        self.decode_graphs.forward(bucket)
        self.decode_graphs.sample(bucket, mode)
        self.counters.decode_steps += 1
        return Launched(sequences, self._decode_step.fetch())

    def _launch_mixed(self, plan: Plan) -> Launched:
        columns = max(len(chunk.sequence.pages) for chunk in plan.chunks)
        step = self._pack(plan.chunks, columns)
        logits = self._logits_of_rows(step) if self._is_quicker_as_rows(plan) else self._logits_of(plan, step)
        sequences = [chunk.sequence for chunk in plan.chunks if chunk.samples]
        if logits is None:
            return Launched((), None)
        sampling, mode = self._sampling.rows_of(sequences)
        rows = SamplingRows.allocate(len(sequences), self._adapter.device)
        rows.copy_from(sampling)
        penalties = self._marks.rows_of(sequences)
        penalised = None if penalties is None else self._penalise(logits, penalties)
        self._decode_step.keep(*sample(logits, rows, mode, penalised))
        return Launched(sequences, self._decode_step.fetch(begin=True))

    def _logits_of(self, plan: Plan, step: PackedStep) -> torch.Tensor | None:
        """Compute a step; the logits that are sampled [sampled rows, vocab], None where none are."""
        embeddings = self._adapter.embed(self._to_device(step.ids))
        layer_features: tuple[torch.Tensor, ...] = ()
        if plan.has_media:
            embeddings, layer_features = self._injector.inject(embeddings, plan.chunks)
            self.counters.image_steps += 1
        loras = self._to_device(step.loras) if plan.has_loras else None
        with self._adapter.taking_loras(loras):
            hidden = self._adapter.decode(
                embeddings, self._to_device(step.positions), self._batch(step), layer_features=layer_features
            )
        if not len(step.sampled_rows):
            return None
        sampled = self._to_device(step.sampled_rows)
        with self._adapter.taking_loras(None if loras is None else loras[sampled]):
            return self._adapter.logits(hidden[sampled])

    def _is_quicker_as_rows(self, plan: Plan) -> bool:
        """Whether the step is small and of nothing but text in which nobody sees what comes after."""
        if plan.tokens > self._max_tokens_as_rows or plan.has_loras or plan.has_media:
            return False
        return not any(chunk.sequence.spans.touching(chunk.start, chunk.end) for chunk in plan.chunks)

    def _logits_of_rows(self, step: PackedStep) -> torch.Tensor | None:
        """The same as `_logits_of`, by what computes decode steps."""
        rows = as_rows(step)
        ids, positions = self._to_device(rows.ids), self._to_device(rows.positions)
        logits = self._adapter.decode_rows(ids, positions, self._batch(rows))
        return logits[self._to_device(rows.sampled_rows)] if len(rows.sampled_rows) else None

    def _penalise(self, logits: torch.Tensor, penalties: PenaltyRows) -> torch.Tensor:
        rows = PenaltyRows.allocate(len(logits), self._adapter.device)
        rows.copy_from(penalties)
        return penalise(logits, rows, self._marks.tensor)

    def _pack(self, chunks: SequenceOf[Chunk], columns: int) -> PackedStep:
        decodes = sum([chunk.is_decode for chunk in chunks])
        positions = [self._positions[chunk.sequence.id] for chunk in chunks[decodes:]]
        prefills = pack(chunks[decodes:], positions, self._cache.page_size, columns)
        return joined(self._decode_rows.pack(chunks[:decodes], columns), prefills) if decodes else prefills

    def _batch(self, step: PackedStep) -> PagedBatch:
        return PagedBatch(
            cache=self._cache,
            backend=self._backend,
            slots=self._to_device(step.slots),
            page_tables=self._to_device(step.page_tables),
            context_lengths=self._to_device(step.context_lengths),
            decode_rows=step.decode_rows,
            prefill_segments=step.prefill_segments,
            window_bounds_spans=self._adapter.window_bounds_spans,
        )

    def _to_device(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._adapter.device, non_blocking=True)


def _sources(sequences: SequenceOf[Sequence], after: Launched) -> np.ndarray:
    """[B] int64: the row of the step before that sampled what goes in now, KNOWN where the host has that."""
    row_of = {id(sequence): row for row, sequence in enumerate(after.sequences)}
    return np.array([row_of[id(one)] if one.tokens[-1] == UNREAD else KNOWN for one in sequences], dtype=np.int64)
