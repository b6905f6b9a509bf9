"""Bombs and broken files get their status, cost little, and nobody else notices."""

from __future__ import annotations

import pytest

from fanlight_engine.checkpoints.checkpoint import read_checkpoint
from fanlight_server.default_model import default_model_path
from tests.e2e.bad_media import BadMedia, bad_media
from tests.e2e.bad_tensors import TowerFacts
from tests.e2e.hostile_media import HostileOutcome, send_bad_media
from tests.e2e.serving import ServerProcess

ONE_CLIP_IN = 5
"""Every clip is opened by a process of its own; `make show-media` sends all of them."""


def some_bad_media() -> list[BadMedia]:
    rows = bad_media(TowerFacts.of(read_checkpoint(default_model_path())))
    seen = [row for row in rows if row.part.video.data][::ONE_CLIP_IN]
    return [row for row in rows if not row.part.video.data] + seen


@pytest.fixture(scope="module")
async def outcome(process: ServerProcess) -> HostileOutcome:
    return await send_bad_media(process, some_bad_media())


def test_every_bad_medium_gets_its_status(outcome: HostileOutcome) -> None:
    assert len({row.bad.name for row in outcome.sent}) == len(outcome.sent) >= 40
    assert {row.bad.name: row.mismatches for row in outcome.sent if row.mismatches} == {}


def test_none_costs_much_memory(outcome: HostileOutcome) -> None:
    assert [(row.bad.name, row.extra_bytes) for row in outcome.sent if not row.is_in_memory] == []


def test_no_neighbour_notices(outcome: HostileOutcome) -> None:
    neighbours = outcome.neighbours
    assert neighbours.all_unchanged
    assert neighbours.next_answered == len(outcome.sent)
