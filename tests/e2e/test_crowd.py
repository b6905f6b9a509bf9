"""Thirty-two image streams at once: nobody's answer depends on who else is there, and nothing is left behind."""

from __future__ import annotations

from tests.e2e.crowd import disturbed_crowd, whole_crowd
from tests.e2e.serving import Served


async def test_all_of_32_image_streams_complete_with_the_answers_they_have_alone(served: Served) -> None:
    outcome = await whole_crowd(served, first_picture=100)
    assert outcome.completed == 32
    assert outcome.changed == []
    assert outcome.before.differences(outcome.after) == []


async def test_neighbours_of_streams_that_are_cancelled_closed_or_lost_do_not_notice(served: Served) -> None:
    outcome = await disturbed_crowd(served, first_picture=200)
    assert outcome.completed == 8
    assert outcome.changed == []
    assert outcome.before.differences(outcome.after) == []
