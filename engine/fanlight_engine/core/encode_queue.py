"""Media that are to be encoded without generating anything: who waits, and whose turn it is. Knows no tensors.

The queue takes what a step's prefills leave of the encoder budget, in order of arrival. When a step leaves it nothing,
the prefills of the next one wait in its stead, so that neither can starve the other. A medium is pinned from `plan` to
`finish`, inside one step.
"""

from __future__ import annotations

from dataclasses import dataclass

from fanlight_engine.core.encoder_budget import EncodeJob, EncoderBudget
from fanlight_engine.core.messages import EncodeRequest


@dataclass(frozen=True, slots=True)
class PlannedEncode:
    """A request that is answered at the end of this step; `runs_tower` when a job was made for it."""

    request: EncodeRequest
    runs_tower: bool


class EncodeQueue:
    """Encode requests of one core."""

    def __init__(self, encoder: EncoderBudget) -> None:
        self.was_passed_over = False
        """Whether the last step left nothing to a queue that waited."""
        self.planned: list[PlannedEncode] = []
        """What this step answers."""
        self._encoder = encoder
        self._waiting: dict[str, EncodeRequest] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def add(self, request: EncodeRequest) -> None:
        """Queue a request behind all others."""
        assert request.request_id not in self._waiting
        self._waiting[request.request_id] = request

    def abort(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored."""
        self._waiting.pop(request_id, None)

    def plan(self, jobs: dict[bytes, EncodeJob]) -> None:
        """Take what is left of the step; new `jobs` are added. The head of the queue is never overtaken."""
        assert not self.planned, "the step before was not finished"
        for request in self._waiting.values():
            if not self._encoder.hold(request.media, jobs):
                break
            job = jobs.get(request.media.digest)
            runs_tower = job is not None and job.medium is request.media and not request.media.is_embedded
            self.planned.append(PlannedEncode(request, runs_tower))
        self.was_passed_over = bool(self._waiting) and not self.planned

    def finish(self) -> None:
        """Let go of what was planned, and forget it: it was answered."""
        for one in self.planned:
            self._encoder.let_go(one.request.media)
            del self._waiting[one.request.request_id]
        self.planned = []

    def check_integrity(self) -> None:
        """Raise AssertionError when something is planned, and with it pinned, between two steps."""
        if self.planned:
            raise AssertionError(f"{len(self.planned)} encode requests were planned and not answered")
