"""Media are decoded and preprocessed beside the step loop and the event loop, never in them."""

from __future__ import annotations

import threading

from tests.e2e.media_threads import CORE_THREAD, MEDIA_THREADS, look_at_threads
from tests.e2e.serving import Served


async def test_neither_the_step_loop_nor_the_event_loop_works_on_media(served: Served) -> None:
    looks = await look_at_threads(served, first_picture=1500, photographs=2)
    assert looks.in_step > 0
    assert looks.media_in_step == 0
    assert looks.media_by_thread[MEDIA_THREADS] > 0, "somebody did the work, and it was seen"
    assert looks.share_of(CORE_THREAD) == 0
    assert looks.share_of(threading.current_thread().name) < 0.01, "asking what is taken is all that it does"
