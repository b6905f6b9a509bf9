"""Somebody who asks something short does not wait for a long prompt, and no long prompt waits long for short ones."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fanlight_engine.core.scheduler import SHORT_PART
from fanlight_engine.core.sequence import Status
from tests.engine.builders import picture, words
from tests.engine.test_scheduler import Core, chunks

STEP = 64
SHORT = STEP // SHORT_PART


def roomy(**changed: int | bool) -> Core:
    """A core of steps that hold a short prompt of eight tokens, with pages for everybody."""
    return Core(**{"pages": 400, "max_step_tokens": STEP, "max_running_requests": 8, **changed})


def test_a_short_prompt_is_computed_between_two_chunks_of_a_long_one() -> None:
    core = roomy()
    core.add("long", words(200), max_new_tokens=1)
    core.step()
    core.add("short", words(SHORT, seed=1), max_new_tokens=2)
    assert chunks(core.step()) == [("short", 0, SHORT)], "a step that costs little more than a decode"
    assert chunks(core.step()) == [("short", 8, 9), ("long", 64, 127)], "then the long one has its turn"
    core.run()


def test_streams_get_their_token_in_a_short_step_too() -> None:
    core = roomy()
    core.add("stream", words(3), max_new_tokens=9)
    core.add("long", words(200, seed=1), max_new_tokens=1)
    core.step()
    core.add("short", words(5, seed=2), max_new_tokens=1)
    assert chunks(core.step()) == [("stream", 3, 4), ("short", 0, 5)]
    core.run()


def test_two_short_steps_never_follow_each_other() -> None:
    core = roomy()
    core.add("long", words(300), max_new_tokens=1)
    core.step()
    for number in range(3):
        core.add(f"short-{number}", words(SHORT, seed=1 + number), max_new_tokens=1)
    firsts = [chunks(core.step())[0][0] for _ in range(5)]
    assert firsts == ["short-0", "long", "short-1", "long", "short-2"]
    core.run()


def test_several_that_fit_together_go_ahead_together() -> None:
    core = roomy()
    core.add("long", words(200), max_new_tokens=1)
    core.step()
    for number in range(3):
        core.add(f"short-{number}", words(3, seed=1 + number), max_new_tokens=1)
    assert chunks(core.step()) == [("short-0", 0, 3), ("short-1", 0, 3)]
    core.run()


def test_the_next_turn_of_a_long_conversation_is_short() -> None:
    core = roomy()
    core.add("turn", words(60), max_new_tokens=1)
    core.run()
    core.add("long", words(200, seed=1), max_new_tokens=1)
    core.step()
    core.add("next turn", words(64), max_new_tokens=1)
    assert chunks(core.step()) == [("next turn", 60, 64)]
    core.run()


def test_a_prompt_that_waits_is_passed_only_where_order_of_arrival_would_take_another_step() -> None:
    core = roomy()
    core.add("longer", words(40), max_new_tokens=1)
    core.add("short", words(4, seed=1), max_new_tokens=1)
    assert chunks(core.step()) == [("longer", 0, 40), ("short", 0, 4)], "one step holds both"
    core.add("long", words(64, seed=2), max_new_tokens=1)
    core.add("short again", words(4, seed=3), max_new_tokens=1)
    assert chunks(core.step()) == [("short again", 0, 4)]
    core.run()


def test_prompts_of_one_size_keep_their_order() -> None:
    core = roomy(max_running_requests=32)
    for number in range(20):
        core.add(f"{number:02}", words(SHORT, seed=number), max_new_tokens=1)
    core.run()
    assert core.finished == sorted(core.finished)


def test_a_prompt_that_brings_a_picture_does_not_go_ahead() -> None:
    core = roomy()
    core.add("long", words(200), max_new_tokens=1)
    core.step()
    core.add("picture", picture("a", 3), words(2), max_new_tokens=1)
    core.add("text", words(4, seed=1), max_new_tokens=1)
    assert chunks(core.step()) == [("text", 0, 4)]
    assert core.encoder.pins == 0
    core.run()


def test_nobody_goes_ahead_on_pages_or_rows_that_those_before_need() -> None:
    for changed in ({"pages": 52}, {"max_running_requests": 2}):
        core = roomy(**changed)
        core.add("long", words(150), max_new_tokens=1)
        core.step()
        waiting = core.add("waiting", words(48, seed=1), max_new_tokens=1)
        core.add("short", words(8, seed=2), max_new_tokens=1)
        while waiting.status is Status.WAITING:
            assert "short" in core.alive
            core.step()
        core.run()


@settings(max_examples=150, deadline=None)
@given(
    long_prompt=st.integers(65, 600),
    arrivals=st.lists(st.lists(st.integers(1, SHORT), max_size=3), min_size=1, max_size=40),
)
def test_a_stream_of_short_prompts_at_most_doubles_the_steps_of_a_long_one(
    long_prompt: int, arrivals: list[list[int]]
) -> None:
    core = roomy(pages=2_000, max_running_requests=60, prefix_cache=False)
    long = core.add("long", words(long_prompt), max_new_tokens=1)
    turns, passed_over = 0, 0
    for number in range(10_000):
        left = long.remaining
        plan = core.step()
        own = [chunk.length for chunk in plan.chunks if chunk.sequence is long]
        beside_decodes = STEP - sum(chunk.is_decode for chunk in plan.chunks)
        assert own in ([], [min(left, beside_decodes)]), "all that is left of the step, or nothing"
        turns, passed_over = turns + len(own), passed_over + (not own)
        if long.status is Status.FINISHED:
            break
        for place, length in enumerate(arrivals[number % len(arrivals)]):
            core.add(f"{number}-{place}", words(length, seed=number), max_new_tokens=2)
    assert long.status is Status.FINISHED
    assert passed_over <= turns
    for name in list(core.alive):
        core.abort(name)


@settings(max_examples=150, deadline=None)
@given(long_prompt=st.integers(200, 600), steps_before=st.integers(1, 3), length=st.integers(1, SHORT))
def test_a_short_prompt_never_waits_for_more_than_one_chunk_of_a_long_one(
    long_prompt: int, steps_before: int, length: int
) -> None:
    core = roomy()
    core.add("long", words(long_prompt), max_new_tokens=1)
    for _ in range(steps_before):
        core.step()
    short = core.add("short", words(length, seed=1), max_new_tokens=4)
    plans = []
    while not short.generated:
        plans.append(core.step())
    full = [plan for plan in plans if plan.tokens > 2 * SHORT]
    assert len(full) <= 1
    assert len(plans) <= 2
    core.run()
