"""Which threads of a server do the work on media: looked at from outside, every millisecond, while requests run.

Nothing is instrumented: a sampler reads where each thread stands. A look at a thread counts as work on media when any
of its frames is in code that decodes or preprocesses.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from types import FrameType

from tests.e2e.asking import Ask, answers_together, long_ask
from tests.e2e.pictures import photograph_of_20_megapixels, picture
from tests.e2e.serving import Served

CORE_THREAD = "fanlight-core"
MEDIA_THREADS = "fanlight-media"
_SECONDS_BETWEEN_LOOKS = 0.001
_WORK_ON_MEDIA = (
    "/PIL/",
    "/av/",
    "/image_processing",
    "/video_processing",
    "/inputs/media/images",
    "/inputs/media/native/",
    "/inputs/media/preprocessing",
    "/inputs/media/tensors",
    "/inputs/media/video/",
    "/inputs/media/wrapped",
)
_STEP = ("/core/engine.py", "step")


@dataclass(slots=True)
class Looks:
    """How often threads were seen at work, by name; those of a pool count together."""

    in_all: int = 0
    """Moments at which all threads were looked at."""
    in_step: int = 0
    """Of the core's thread: inside a step."""
    media_in_step: int = 0
    media_by_thread: Counter[str] = field(default_factory=Counter)

    @property
    def share_of_step_loop(self) -> float:
        """Part of the step loop's time that went into media."""
        return self.media_in_step / self.in_step

    def share_of(self, thread: str) -> float:
        """Part of a thread's time that went into media."""
        return self.media_by_thread[thread] / self.in_all


class ThreadSampler:
    """Looks at all threads of this process but its own until it is stopped."""

    def __init__(self) -> None:
        self.looks = Looks()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="thread-sampler", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> Looks:
        """What was seen."""
        self._ended.set()
        self._thread.join()
        return self.looks

    def _watch(self) -> None:
        while not self._ended.wait(_SECONDS_BETWEEN_LOOKS):
            self.looks.in_all += 1
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            for ident, frame in sys._current_frames().items():
                self._look(names.get(ident, "a foreign thread"), frame)

    def _look(self, thread: str, frame: FrameType) -> None:
        in_step = works_on_media = False
        below: FrameType | None = frame
        while below is not None:
            code = below.f_code
            in_step = in_step or (code.co_filename.endswith(_STEP[0]) and code.co_name == _STEP[1])
            works_on_media = works_on_media or any(part in code.co_filename for part in _WORK_ON_MEDIA)
            below = below.f_back
        if works_on_media:
            self.looks.media_by_thread[thread.rsplit("_", 1)[0]] += 1
        if thread == CORE_THREAD and in_step:
            self.looks.in_step += 1
            self.looks.media_in_step += works_on_media


async def look_at_threads(served: Served, first_picture: int, streams: int = 4, photographs: int = 4) -> Looks:
    """Streams that go on all the while, and beside them large photographs and small pictures that are all new."""
    photos = [
        await asyncio.to_thread(photograph_of_20_megapixels, first_picture + number) for number in range(photographs)
    ]
    flowing = [long_ask(number, picture(first_picture + number), 400) for number in range(streams)]
    heavy = [Ask("What is it?", (photo, picture(first_picture + 100 + number))) for number, photo in enumerate(photos)]
    sampler = ThreadSampler()
    sampler.start()
    try:
        await answers_together(served.client, [*flowing, *heavy])
    finally:
        looks = sampler.stop()
    return looks
