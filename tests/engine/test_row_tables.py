"""Rows that last say the same of a step as its definition, whatever has happened to them before."""

from __future__ import annotations

import random
from dataclasses import fields

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from fanlight_engine.core.messages import SamplingParams
from fanlight_engine.core.scheduler import Plan, Scheduler
from fanlight_engine.core.sequence import Sequence
from fanlight_engine.lora import ServedLora
from fanlight_engine.model.decode_rows import DecodeRows
from fanlight_engine.model.packing import PackedStep, PromptPositions, joined, pack
from fanlight_engine.model.sampler import MAX_SUPPRESSED_IDS, SamplingMode, SamplingRows
from fanlight_engine.model.sampling_rows import SamplingTable
from tests.engine.builders import picture, words
from tests.engine.test_scheduler import Core

POSITION_ROWS = 3
LORAS = (None, None, ServedLora("one", 1, b"1"), ServedLora("two", 2, b"2"))
BORDER = 20


class Traffic:
    """Random requests in a core so small that they are preempted, end and come back all the time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.core = Core(pages=18, max_running_requests=6, max_step_tokens=24, cached_rows=32)
        self.core.scheduler = Scheduler(self.core.config, self.core.pool, self.core.encoder, BORDER)
        self.positions: dict[str, PromptPositions] = {}
        self.rows = DecodeRows(6, 17, POSITION_ROWS, self.core.config.page_size, self.positions)
        self.table = SamplingTable(6)
        self.decodes = self.preemptions = 0

    def plan(self) -> Plan:
        """The next plan, computed once the caller has looked at it."""
        if self.random.random() < 0.4 and len(self.core.alive) < 12:
            self._add()
        if self.core.alive and self.random.random() < 0.05:
            self.core.abort(self.random.choice(sorted(self.core.alive)))
        plan = self.core.scheduler.schedule()
        for job in plan.encode_jobs.values():
            self.core.vision_cache.fill(job.medium.digest, "embedding")
        return plan

    def compute(self, plan: Plan) -> None:
        """Pretend that the plan was computed."""
        self.decodes += sum(chunk.is_decode for chunk in plan.chunks)
        self.preemptions = self.core.scheduler.preemptions
        self.core._compute(plan)
        self.core.check()

    def _add(self) -> None:
        parts = [words(self.random.randint(1, 12), seed=self.random.randrange(3))]
        if self.random.random() < 0.3:
            parts.append(picture(f"of {len(self.positions)}", 4))  # pyright: ignore[reportArgumentType]
        one = self.core.add(f"request-{len(self.positions)}", *parts, max_new_tokens=self.random.randint(1, 14))
        one.lora = self.random.choice(LORAS)
        values = self.random.sample(range(1000), one.prompt_length)
        of_prompt = np.array(values) + 1000 * np.arange(POSITION_ROWS)[:, None]
        self.positions[one.id] = PromptPositions(of_prompt)


def equal(ours: PackedStep, theirs: PackedStep) -> None:
    for field in fields(PackedStep):
        left, right = getattr(ours, field.name), getattr(theirs, field.name)
        if isinstance(right, np.ndarray):
            assert left.dtype == right.dtype, field.name
            assert left.tolist() == right.tolist(), field.name
        else:
            assert left == right, field.name


@pytest.mark.parametrize("seed", range(6))
def test_a_step_of_lasting_rows_is_the_step_that_packing_defines(seed: int) -> None:
    traffic = Traffic(seed)
    page_size = traffic.core.config.page_size
    for _ in range(150):
        plan = traffic.plan()
        if plan.chunks:
            positions = [traffic.positions[chunk.sequence.id] for chunk in plan.chunks]
            columns = max(len(chunk.sequence.pages) for chunk in plan.chunks) + traffic.random.randrange(3)
            columns = min(columns, 17)
            split = sum(chunk.is_decode for chunk in plan.chunks)
            if split:
                ours = traffic.rows.pack(plan.chunks[:split], columns)
                if split < len(plan.chunks):
                    ours = joined(ours, pack(plan.chunks[split:], positions[split:], page_size, columns))
                equal(ours, pack(plan.chunks, positions, page_size, columns))
        traffic.compute(plan)
    assert traffic.decodes > 100
    assert traffic.preemptions > 0, "rows changed hands by preemption, too"


def slowly(sequences: list[Sequence]) -> tuple[SamplingRows, SamplingMode]:
    """What a step's sampling rows are, parameter by parameter."""
    parameters = [one.request.sampling for one in sequences]
    held_back = [
        (one.end_ids + one.stop_token_ids) if sequence.generated < one.min_new_tokens else ()
        for sequence, one in zip(sequences, parameters, strict=True)
    ]
    rows = SamplingRows(
        temperatures=torch.tensor([one.temperature for one in parameters], dtype=torch.float32),
        top_ps=torch.tensor([one.top_p for one in parameters], dtype=torch.float32),
        top_ks=torch.tensor([one.top_k for one in parameters], dtype=torch.int64),
        min_ps=torch.tensor([one.min_p for one in parameters], dtype=torch.float32),
        seeds=torch.tensor([one.seed - (1 << 64) * (one.seed >= 1 << 63) for one in parameters], dtype=torch.int64),
        positions=torch.tensor([one.length for one in sequences], dtype=torch.int64),
        output_indices=torch.zeros(len(sequences), dtype=torch.int64),
        suppressed_ids=torch.tensor([[*ids, *[-1] * (MAX_SUPPRESSED_IDS - len(ids))] for ids in held_back]),
    )
    draw = [one for one in parameters if one.temperature > 0]
    mode = SamplingMode(
        draws=bool(draw),
        filters=any(one.top_k or one.top_p < 1 or one.min_p for one in draw),
        suppresses=any(held_back),
        logprobs=any(one.logprobs for one in parameters),
        penalises=any(one.has_penalties for one in parameters),
    )
    return rows, mode


def drawn_parameters(source: random.Random) -> SamplingParams:
    return SamplingParams(
        max_new_tokens=source.randint(1, 14),
        min_new_tokens=source.choice((0, 0, 3)),
        temperature=source.choice((0.0, 0.5, 1.0)),
        top_p=source.choice((1.0, 0.9)),
        top_k=source.choice((0, 0, 5)),
        min_p=source.choice((0.0, 0.1)),
        seed=source.choice((0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)),
        end_ids=source.choice(((), (1,), (1, 2, 3))),
        stop_token_ids=source.choice(((), (7,), tuple(range(100, 160)))),
        logprobs=source.random() < 0.2,
        repetition_penalty=source.choice((1.0, 1.0, 1.0, 1.2)),
    )


@pytest.mark.parametrize("seed", range(6))
def test_lasting_rows_of_sampling_parameters_are_those_of_the_requests(seed: int) -> None:
    traffic = Traffic(seed)
    source = random.Random(seed)
    own: dict[str, SamplingParams] = {}
    modes: set[SamplingMode] = set()
    for _ in range(150):
        plan = traffic.plan()
        sequences = [chunk.sequence for chunk in plan.chunks if chunk.samples]
        for one in sequences:
            if one.id not in own:
                own[one.id] = drawn_parameters(source)
                one.request = replace(one.request, sampling=own[one.id])
        if sequences:
            (ours, mode), (theirs, expected) = traffic.table.rows_of(sequences), slowly(sequences)
            for field in fields(SamplingRows):
                torch.testing.assert_close(getattr(ours, field.name), getattr(theirs, field.name), rtol=0, atol=0)
            assert mode == expected
            modes.add(mode)
        traffic.compute(plan)
    assert len(modes) > 5
