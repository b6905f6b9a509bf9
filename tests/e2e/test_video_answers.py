"""Clips and tiled pictures are answered as transformers itself answers them, token for token."""

from __future__ import annotations

from tests.e2e.comparison import differing
from tests.e2e.made_models import EMBEDDED
from tests.e2e.video_answers import compare_videos

FORMS = 14
TURNS = 3
PICTURES = 10


async def test_clips_in_every_form_are_answered_as_transformers_answers_them() -> None:
    rows = await compare_videos(prompts=FORMS, pictures=0, models=[EMBEDDED])
    assert differing(rows) == []
    assert len(rows) == FORMS + TURNS


async def test_clips_are_answered_alike_by_another_family() -> None:
    rows = await compare_videos(prompts=FORMS, pictures=0, models=["qwen2_vl"])
    assert differing(rows) == []
    assert len(rows) == FORMS


async def test_tiles_of_every_aspect_ratio_are_answered_as_transformers_answers_them() -> None:
    rows = await compare_videos(pictures=PICTURES, models=[])
    assert differing(rows) == []
    assert len(rows) == PICTURES
