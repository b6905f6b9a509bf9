"""The front refuses what no step of the core has room for, and a dry run says so before anything is generated."""

from __future__ import annotations

import pytest

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.checkpoints.families import Bidirectional
from fanlight_engine.client import CoreFacts
from fanlight_engine.errors import InvalidRequestError, Reason
from fanlight_engine.request import Generation, ImagePart, RawPrompt, TextPart
from tests.engine.conversations import png
from tests.engine.scripted_client import saying
from tests.engine.test_front import collect, running

ROWS = 16
"""Embedding rows of a picture of the checkpoint that is asked."""
PICTURE = ImagePart(png(60, 60))


@pytest.mark.parametrize(
    ("bidirectional", "parts", "reason"),
    [
        (Bidirectional.MEDIA, (TextPart("a"), PICTURE, PICTURE), Reason.IMAGE_TOO_LARGE),
        (Bidirectional.PROMPT, (PICTURE, TextPart("the river " * ROWS)), Reason.PROMPT_TOO_LONG),
    ],
)
async def test_a_span_that_no_step_has_room_for_is_refused_before_the_core_hears_of_it(
    bidirectional: Bidirectional, parts: tuple[ImagePart | TextPart, ...], reason: Reason, llava: Checkpoint
) -> None:
    facts = CoreFacts(512, 16, 64, 1 << 20, 256, bidirectional=bidirectional, longest_span=ROWS + 12)
    async with running(llava, saying([1]), facts) as (front, client):
        generation = Generation(RawPrompt(parts))
        with pytest.raises(InvalidRequestError, match=f"room for {ROWS + 12} of one request") as generating:
            await collect(front.generate(generation, "r"))
        with pytest.raises(InvalidRequestError, match="raise max_step_tokens by") as counting:
            await front.count_tokens(generation)
        for caught in (generating.value, counting.value):
            assert (caught.violations[0].field, caught.reason) == ("raw", reason)
        assert client.received == []
        await collect(front.generate(Generation(RawPrompt((PICTURE, TextPart("a")))), "r"))
        assert len(client.added) == 1
