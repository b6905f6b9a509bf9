"""CountTokens is a dry run: what it says is what a generation then uses, and what it refuses nobody may generate."""

from __future__ import annotations

import pytest

from fanlight.counting import TokenCount
from fanlight.v1 import generation_pb2
from tests.e2e.comparison import differing
from tests.e2e.count_refusals import compare_refusals
from tests.e2e.made_models import EMBEDDED
from tests.e2e.serving import Served
from tests.e2e.token_counts import compare_counts, count


@pytest.mark.parametrize("model", [EMBEDDED, "qwen2_vl", "llava_next"])
async def test_random_requests_use_what_was_counted(model: str) -> None:
    counts = await compare_counts(requests=24, models=[model])
    assert counts.unequal == []
    assert counts.requests == 24
    assert counts.refused <= 6, "refused requests show little"


async def test_what_may_not_be_generated_is_refused_in_the_same_words(served: Served) -> None:
    rows = await compare_refusals(served)
    assert differing(rows) == []
    assert len(rows) >= 60


async def test_a_prompt_without_room_for_an_answer_does_not_fit(served: Served) -> None:
    context = served.front.client.facts.context_length
    told = [await count(served.channel, tokens(length)) for length in (context - 1, context, context + 5)]
    assert all(isinstance(one, TokenCount) for one in told)
    assert [(one.fits, one.max_new_tokens, one.prompt_tokens) for one in told if isinstance(one, TokenCount)] == [
        (True, 1, context - 1),
        (False, 0, context),
        (False, 0, context + 5),
    ]


def tokens(length: int) -> generation_pb2.Generation:
    return generation_pb2.Generation(tokens=generation_pb2.TokensPrompt(ids=[5] * length))
