"""The ways of computing one set of prompts that must all give transformers' own answers."""

from __future__ import annotations

import random
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fanlight_engine.checkpoints.families import Bidirectional
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.image_mask import ImageMask
from fanlight_engine.core.spans import spans_of
from tests.engine import (
    added_checkpoints,
    further_text_checkpoints,
    layered_checkpoints,
    scaled_checkpoints,
    span_checkpoints,
    text_checkpoints,
    tile_checkpoints,
)
from tests.engine.checkpoints import make_llama, make_llava, make_qwen2_5_vl
from tests.engine.driver import Comparison, Driver, compare, request_for
from tests.engine.reference import Case, Reference
from tests.engine.vision_checkpoints import make_llava_next, make_qwen2_vl

NEW_TOKENS = 16
MOST_NEAR_TIES = 0.005
TINY = Path(__file__).parents[2] / "models" / "fanlight-tiny"
MODELS = {
    "llama": make_llama,
    "qwen2_vl": make_qwen2_vl,
    "qwen2_5_vl": make_qwen2_5_vl,
    "llava": make_llava,
    "llava_next": make_llava_next,
    "fanlight-tiny": lambda path: TINY,
    **text_checkpoints.MODELS,
    **further_text_checkpoints.MODELS,
    **span_checkpoints.MODELS,
    **layered_checkpoints.MODELS,
    **tile_checkpoints.MODELS,
    **added_checkpoints.MODELS,
    **scaled_checkpoints.MODELS,
}
"""How to get each checkpoint's directory, given a place to make it in. Names begin with the model_type of a family."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How the same prompts are computed."""

    name: str
    settings: dict[str, Any]
    at_once: int = 16
    splits_images: bool = False
    """Whether chunks are so short that some begin inside a picture or clip; where its positions see each other, that
    some end before one. Prompts whose every token sees all others are never split."""
    presses: bool = False
    """Whether the KV cache holds little more than the longest request, so that preemption must happen."""
    repeats: bool = False
    """Whether everything is computed a second time, from what the prefix cache kept; the second answers count."""


ARRANGEMENTS = (
    Arrangement("alone", {"max_running_requests": 1}, at_once=1),
    Arrangement("in_random_batches", {"max_running_requests": 16}),
    Arrangement("in_chunks_inside_images", {"max_running_requests": 16, "max_step_tokens": 23}, splits_images=True),
    Arrangement("under_kv_pressure", {"max_running_requests": 16, "max_step_tokens": 96}, presses=True),
    Arrangement("again_from_the_prefix_cache", {"max_running_requests": 16, "max_step_tokens": 96}, repeats=True),
    Arrangement("on_pages_of_256", {"max_running_requests": 16, "max_step_tokens": 96, "page_size": 256}),
    Arrangement(
        "on_pages_of_256_under_pressure",
        {"max_running_requests": 16, "max_step_tokens": 96, "page_size": 256},
        presses=True,
    ),
)
SHORT_ARRANGEMENTS = ARRANGEMENTS[:5]
"""Those that the default suite has time for with every family."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A comparison, and proof that the arrangement did what its name says."""

    comparison: Comparison
    preemptions: int
    bidirectional: Bidirectional
    chunks_starting_inside_an_image: int
    chunks_ending_before_a_span: int
    largest_batch: int
    cached_tokens: int
    """Prompt tokens of the answers that were compared, found in the prefix cache."""
    steps_launched_ahead: int


def check_outcome(outcome: Outcome, arrangement: Arrangement, takes_images: bool) -> None:
    """Raise AssertionError unless few answers differ and the arrangement did what its name says."""
    allowed = max(1, MOST_NEAR_TIES * outcome.comparison.compared)  # of a few answers, one is no share
    if outcome.comparison.near_ties > allowed:
        raise AssertionError(f"{outcome.comparison} is more than a share of {MOST_NEAR_TIES} near ties")
    if outcome.largest_batch > arrangement.at_once:
        raise AssertionError(f"{outcome.largest_batch} requests ran at once, {arrangement.at_once} were meant to")
    if arrangement.at_once > 1 and not arrangement.presses and outcome.largest_batch < 4:
        raise AssertionError(f"the largest batch had {outcome.largest_batch} requests")
    if arrangement.presses and not outcome.preemptions:
        raise AssertionError("nothing was preempted")
    if arrangement.repeats and not outcome.cached_tokens:
        raise AssertionError("nothing was found in the prefix cache")
    if arrangement.splits_images and takes_images:
        _check_splits(outcome)


def _check_splits(outcome: Outcome) -> None:
    if outcome.bidirectional is Bidirectional.NONE and not outcome.chunks_starting_inside_an_image:
        raise AssertionError("no chunk began inside a picture or clip")
    if outcome.bidirectional is Bidirectional.MEDIA and not outcome.chunks_ending_before_a_span:
        raise AssertionError("no chunk ended before a picture that is computed as a whole")


def run_arrangement(
    reference: Reference, cases: list[Case], arrangement: Arrangement, runs_ahead: bool | None = None
) -> Outcome:
    """Compute the cases as arranged, in an order and batches drawn from a fixed seed, and compare every answer.

    `runs_ahead` as in Engine; None leaves it to device and settings.
    """
    bidirectional = reference.checkpoint.family.bidirectional
    config = EngineConfig(torch_threads=1, **_sized(arrangement, cases, bidirectional))
    driver = Driver(config, reference.checkpoint, runs_ahead)
    requests = [request_for(case, number, reference.checkpoint, NEW_TOKENS) for number, case in enumerate(cases)]
    order = random.Random(arrangement.name).sample(requests, len(requests))
    for _ in range(2 if arrangement.repeats else 1):
        driver.run_in_random_batches(order, random.Random(3), arrangement.at_once)
    answers = [driver.answers[request.request_id] for request in requests]
    return Outcome(
        compare(answers, cases),
        driver.engine.statistics().preemptions,
        bidirectional,
        driver.chunks_starting_inside_an_image,
        driver.chunks_ending_before_a_span,
        driver.largest_batch,
        sum(answer.prefilled.cached_tokens for answer in answers if answer.prefilled),
        driver.steps_launched_ahead,
    )


def _sized(arrangement: Arrangement, cases: list[Case], bidirectional: Bidirectional) -> dict[str, Any]:
    """The arrangement's settings; under pressure, just the pages that the longest request needs and one more.

    A step has room for what must be computed in one, beside a token of every other request.
    """
    longest = max(len(case.prompt_ids) for case in cases) + NEW_TOKENS
    page_size = arrangement.settings.get("page_size", 16)
    settings = {"context_length": longest, **arrangement.settings}
    span = max(_longest_span(case, bidirectional) for case in cases)
    if span and "max_step_tokens" in settings:
        settings["max_step_tokens"] = max(settings["max_step_tokens"], span + settings["max_running_requests"] - 1)
    if arrangement.presses:
        settings["kv_pages"] = 1 + -(-longest // page_size) + 1
    return settings


def _longest_span(case: Case, bidirectional: Bidirectional) -> int:
    mask = ImageMask(case.media, case.mask_runs, len(case.prompt_ids))
    return spans_of(bidirectional, mask, len(case.prompt_ids)).longest.length


@dataclass(slots=True)
class Compared:
    """What came of one model in every arrangement."""

    takes_images: bool
    kinds: tuple[str, ...]
    outcomes: list[Outcome] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def answers(self) -> int:
        """Answers that were compared."""
        return sum(outcome.comparison.compared for outcome in self.outcomes)

    @property
    def near_ties(self) -> int:
        """First differences at near ties."""
        return sum(outcome.comparison.near_ties for outcome in self.outcomes)

    @property
    def arranged(self) -> str:
        """In how many arrangements nothing differed, in words."""
        return f"{len(self.outcomes)} of {len(ARRANGEMENTS)} arrangements"


def compare_everywhere(name: str, prompts: int) -> Compared:
    """Make the model of that name, and compare its answers to so many prompts in every arrangement."""
    with tempfile.TemporaryDirectory() as folder:
        reference = Reference(MODELS[name](Path(folder) / name))
        cases = reference.cases(prompts, NEW_TOKENS)
        takes_images = reference.checkpoint.takes_images
        compared = Compared(takes_images, tuple(dict.fromkeys(case.kind for case in cases)))
        for arrangement in ARRANGEMENTS:
            print(f"  {name}, {arrangement.name}", file=sys.stderr, flush=True)
            try:
                outcome = run_arrangement(reference, cases, arrangement)
                check_outcome(outcome, arrangement, takes_images)
            except AssertionError as error:
                compared.failures.append(f"{arrangement.name}: {error}")
            else:
                compared.outcomes.append(outcome)
    return compared
