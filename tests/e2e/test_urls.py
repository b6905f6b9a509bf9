"""Whoever chooses the URL of an image reaches nothing that the operator did not offer, and learns nothing either."""

from __future__ import annotations

import grpc

from tests.e2e.serving import Served
from tests.e2e.urls import allowed_hosts, fetching, refusal_where_urls_are_off, refusals, unlike


async def test_forbidden_urls_are_all_refused_with_one_text() -> None:
    async with fetching() as place:
        outcomes = await refusals(place)
    assert len({outcome.case.url for outcome in outcomes}) == len(outcomes) >= 30
    assert unlike(outcomes) == []


async def test_allowed_hosts_give_the_answer_of_the_bytes() -> None:
    async with fetching() as place:
        ways = await allowed_hosts(place)
    assert ways == dict.fromkeys(ways, True)


async def test_a_server_that_fetches_nothing_says_so(served: Served) -> None:
    refused = await refusal_where_urls_are_off(served)
    assert refused.code is grpc.StatusCode.UNIMPLEMENTED
    assert refused.field == "generation.conversation.messages[0].parts[0].image"
