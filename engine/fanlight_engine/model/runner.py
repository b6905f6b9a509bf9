"""Runs a plan on the device: encode media, inject, forward, sample. The one place that launches device work.

Knows tensors and chunks; knows nothing of queues, admission or why a chunk was chosen.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import torch

from fanlight_engine.core.encoder_budget import EncodeJob
from fanlight_engine.core.scheduler import Chunk, Plan
from fanlight_engine.core.sequence import Sequence
from fanlight_engine.model.adapter import ModelAdapter
from fanlight_engine.model.attention.interface import AttentionBackend, PagedBatch
from fanlight_engine.model.graphs import DecodeStep, bucket_size
from fanlight_engine.model.injection import ImageInjector
from fanlight_engine.model.kv_cache import PagedKeyValueCache
from fanlight_engine.model.packing import PackedStep, PromptPositions, pack
from fanlight_engine.model.penalties import PenaltyRows, TokenMarks, penalise
from fanlight_engine.model.positions import token_types
from fanlight_engine.model.sampler import MAX_SUPPRESSED_IDS, SamplingMode, SamplingRows, sample
from fanlight_engine.model.tensors import data_of
from fanlight_engine.model.vision_cache import VisionCache
from fanlight_engine.tensor_data import TensorData

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """What a step chose for one sequence."""

    sequence: Sequence
    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """Sizes that buffers are allocated for."""

    max_rows: int
    max_step_tokens: int
    max_pages_per_sequence: int


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
    ) -> None:
        self.counters = RunnerCounters()
        self._adapter = adapter
        self._cache = cache
        self._backend = backend
        self._vision_cache = vision_cache
        self._marks = TokenMarks(limits.max_rows, adapter.vocab_size, adapter.device)
        self._decode_step = DecodeStep(
            adapter, cache, backend, self._marks, limits.max_rows, limits.max_pages_per_sequence
        )
        self._injector = ImageInjector(adapter, vision_cache, limits.max_step_tokens)
        self._positions: dict[str, PromptPositions] = {}

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
        try:
            self._encode_batch(jobs)
        except Exception as error:  # the tower runs foreign code on foreign data
            if len(jobs) == 1:
                _log.exception("encoding a %s failed", jobs[0].medium.noun)
                return {jobs[0].medium.digest: error}
            return {digest: failure for job in jobs for digest, failure in self.encode([job]).items()}
        return {}

    def embedding(self, digest: bytes) -> TensorData:
        """The stored embedding [rows, embedding width] of a medium, as bytes in the model's number type."""
        return data_of(self._vision_cache.get(digest))

    @torch.inference_mode()
    def run(self, plan: Plan) -> list[SampledToken]:
        """Compute the plan's chunks; one token for each chunk that samples, in order."""
        if plan.is_decode_only:
            return self._run_decodes(plan)
        return self._run_mixed(plan)

    def _encode_batch(self, jobs: SequenceOf[EncodeJob]) -> None:
        embeddings = self._adapter.encode([job.medium for job in jobs])
        for job, embedding in zip(jobs, embeddings, strict=True):
            self._vision_cache.fill(job.medium.digest, embedding)
        encoded = sum(not job.medium.is_embedded for job in jobs)
        self.counters.images_encoded += encoded
        self.counters.encoder_batches += bool(encoded)

    def _run_decodes(self, plan: Plan) -> list[SampledToken]:
        chunks = plan.chunks
        most_pages = max(len(chunk.sequence.pages) for chunk in chunks)
        bucket = self._decode_step.bucket_for(len(chunks), most_pages, plan.has_loras)
        sequences = [chunk.sequence for chunk in chunks]
        sampling, mode = sampling_rows(sequences)
        penalties = self._marks.rows_of(sequences)
        self._decode_step.load(self._pack(chunks, bucket.pages), sampling, bucket, penalties)
        self._decode_step.forward(bucket)
        self._decode_step.sample(bucket, mode)
        self.counters.decode_steps += 1
        return _read(sequences, self._decode_step.next_ids, self._decode_step.logprobs)

    def _run_mixed(self, plan: Plan) -> list[SampledToken]:
        columns = bucket_size(max(len(chunk.sequence.pages) for chunk in plan.chunks), self._decode_step.max_pages)
        step = self._pack(plan.chunks, columns)
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
        sequences = [chunk.sequence for chunk in plan.chunks if chunk.samples]
        if not sequences:
            return []
        sampling, mode = sampling_rows(sequences)
        rows = SamplingRows.allocate(len(sequences), self._adapter.device)
        rows.copy_from(sampling)
        penalties = self._marks.rows_of(sequences)
        sampled = self._to_device(step.sampled_rows)
        with self._adapter.taking_loras(None if loras is None else loras[sampled]):
            logits = self._adapter.logits(hidden[sampled])
        penalised = None if penalties is None else self._penalise(logits, penalties)
        ids, logprobs = sample(logits, rows, mode, penalised)
        return _read(sequences, ids, logprobs)

    def _penalise(self, logits: torch.Tensor, penalties: PenaltyRows) -> torch.Tensor:
        rows = PenaltyRows.allocate(len(logits), self._adapter.device)
        rows.copy_from(penalties)
        return penalise(logits, rows, self._marks.tensor)

    def _pack(self, chunks: SequenceOf[Chunk], columns: int) -> PackedStep:
        positions = [self._positions[chunk.sequence.id] for chunk in chunks]
        return pack(chunks, positions, self._cache.page_size, columns)

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


def sampling_rows(sequences: SequenceOf[Sequence]) -> tuple[SamplingRows, SamplingMode]:
    """Host tensors of the sequences' sampling parameters, and what kinds of work they need."""
    parameters = [sequence.request.sampling for sequence in sequences]
    suppressed = [
        (one.end_ids + one.stop_token_ids) if sequence.generated < one.min_new_tokens else ()
        for sequence, one in zip(sequences, parameters, strict=True)
    ]
    rows = SamplingRows(
        temperatures=torch.tensor([one.temperature for one in parameters], dtype=torch.float32),
        top_ps=torch.tensor([one.top_p for one in parameters], dtype=torch.float32),
        top_ks=torch.tensor([one.top_k for one in parameters], dtype=torch.int64),
        min_ps=torch.tensor([one.min_p for one in parameters], dtype=torch.float32),
        seeds=torch.tensor([_as_int64(one.seed) for one in parameters], dtype=torch.int64),
        positions=torch.tensor([sequence.length for sequence in sequences], dtype=torch.int64),
        output_indices=torch.zeros(len(sequences), dtype=torch.int64),
        suppressed_ids=torch.tensor([[*ids, *[-1] * (MAX_SUPPRESSED_IDS - len(ids))] for ids in suppressed]),
    )
    drawing = [one for one in parameters if one.temperature > 0]
    mode = SamplingMode(
        draws=bool(drawing),
        filters=any(one.top_k or one.top_p < 1 or one.min_p for one in drawing),
        suppresses=any(suppressed),
        logprobs=any(one.logprobs for one in parameters),
        penalises=any(one.has_penalties for one in parameters),
    )
    return rows, mode


def _as_int64(seed: int) -> int:
    """The same 64 bits, read as a signed number."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def _read(sequences: SequenceOf[Sequence], ids: torch.Tensor, logprobs: torch.Tensor) -> list[SampledToken]:
    """The step's one read on the host."""
    count = len(sequences)
    return [
        SampledToken(sequence, token_id, logprob)
        for sequence, token_id, logprob in zip(sequences, ids[:count].tolist(), logprobs[:count].tolist(), strict=True)
    ]
