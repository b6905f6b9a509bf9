"""A step from its launch until its tokens are read, and what becomes of one that fails.

    launch    the runner begins to compute the plan; what it samples stands in the sequences as UNREAD
    finish    wait for it, and say which chunks were computed and what they sampled

In between a second step may be launched, planned ahead. Sequences that end meanwhile, whatever ends them, are
nobody's any more: what a later step computed of them is dropped. Their pages may be given away at once, since the
device computes steps in the order of their launch, so whoever gets them writes behind whatever is on its way.

A step that fails, at its launch or when it is read, is taken back together with the one behind it, and each of its
chunks is computed alone, so that only the requests at fault suffer. A chunk can be computed again, since it writes the
same keys and values to the same places, and sampling depends on nothing but seed and position.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from fanlight_engine.core.scheduler import Chunk, Plan, Scheduler
from fanlight_engine.core.sequence import Sequence, Status
from fanlight_engine.model.runner import Launched, Runner, SampledToken

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A step that was launched, or whose launch failed."""

    plan: Plan
    sampling: list[Chunk]
    """The chunks that sample, in order."""
    launched: Launched | None
    """None where its launch failed."""
    error: Exception | None = None

    @property
    def is_alive(self) -> bool:
        """Whether somebody still waits for any of it."""
        return any(_is_alive(chunk) for chunk in self.plan.chunks)


@dataclass(slots=True)
class Outcome:
    """What came of a step."""

    computed: list[Chunk] = field(default_factory=list)
    sampled: list[tuple[Chunk, SampledToken]] = field(default_factory=list)
    failed: list[tuple[Sequence, Exception]] = field(default_factory=list)
    voids_the_step_behind: bool = False
    """Whether the step that was launched behind it was taken back, too."""


class Steps:
    """Launches and finishes the steps of one core."""

    def __init__(self, runner: Runner, scheduler: Scheduler) -> None:
        self._runner = runner
        self._scheduler = scheduler

    def launch(self, plan: Plan, after: StepInFlight | None = None) -> StepInFlight:
        """Begin to compute a plan; `after` is the step before it, if that is not finished. Raises nothing."""
        try:
            launched = self._runner.launch(plan, after.launched if after is not None else None)
        except Exception as error:  # a step runs foreign model code
            return StepInFlight(plan, [], None, error)
        sampling = [chunk for chunk in plan.chunks if self._scheduler.begun(chunk)]
        return StepInFlight(plan, sampling, launched)

    def finish(self, step: StepInFlight, behind: StepInFlight | None = None) -> Outcome:
        """Wait for a step; `behind` is the one that was launched behind it. Raises nothing."""
        try:
            if step.launched is None:
                assert step.error is not None
                raise step.error
            tokens = step.launched.read()
        except Exception as error:  # a device says only now that it failed
            _log.exception("a step of %d sequences failed", len(step.plan.chunks))
            return self._finish_failed(step, behind, error)
        running = Status.RUNNING  # asked for every sequence in every step, hence not by a call
        sampled = [pair for pair in zip(step.sampling, tokens, strict=True) if pair[1].sequence.status is running]
        return Outcome([chunk for chunk in step.plan.chunks if chunk.sequence.status is running], sampled)

    def _finish_failed(self, step: StepInFlight, behind: StepInFlight | None, error: Exception) -> Outcome:
        outcome = Outcome(voids_the_step_behind=behind is not None)
        for one in (behind, step):
            if one is not None:
                self._take_back(one)
        chunks = [chunk for chunk in step.plan.chunks if _is_alive(chunk)]
        if len(step.plan.chunks) == 1:
            outcome.failed = [(chunk.sequence, error) for chunk in chunks]
            return outcome
        for chunk in chunks:
            alone = self.finish(self.launch(Plan([chunk])))
            outcome.computed += alone.computed
            outcome.sampled += alone.sampled
            outcome.failed += alone.failed
        return outcome

    def _take_back(self, step: StepInFlight) -> None:
        self._runner.void(step.plan)
        for chunk in step.plan.chunks:
            if _is_alive(chunk):
                self._scheduler.taken_back(chunk)


def _is_alive(chunk: Chunk) -> bool:
    return chunk.sequence.status is Status.RUNNING
