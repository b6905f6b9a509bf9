"""Checkpoints without a processor of their own answer about files as about the same pixels precomputed."""

from __future__ import annotations

import pytest

from tests.e2e.comparison import differing
from tests.e2e.native_models import MODELS, SIZES, compare_native

CLIPS = 5
ROWS = {
    "native qwen2_5_vl": 2 * (len(SIZES) + CLIPS) + 1,
    "native llava": len(SIZES) + CLIPS + 1,
    "native llava_next": len(SIZES) + 1,
}


@pytest.mark.parametrize("model", MODELS)
async def test_files_are_answered_as_the_same_pixels_precomputed(model: str) -> None:
    rows = await compare_native(len(SIZES), CLIPS, models=[model])
    assert differing(rows) == []
    assert len(rows) == ROWS[model]
