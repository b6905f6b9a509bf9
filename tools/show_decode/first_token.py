"""Bar 3: how long somebody waits who asks something short while a prompt of 4,000 tokens is computed."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.checkpoints import language_model
from benchmarks.short_requests import DECODE_STEPS_ALLOWED, LONG_PROMPT, measure_short_requests
from tools.bars.table import Figure, judged


def measure_bar_3() -> Iterator[Figure]:
    """The median wait, in decode steps beyond the chunk that the request came into."""
    waits = measure_short_requests(language_model())
    steps = statistics.median(one.decode_steps_beside_the_chunk for one in waits.waits)
    required = f"one chunk + under {DECODE_STEPS_ALLOWED} decode steps"
    yield judged(
        3, f"first token of a short request beside {LONG_PROMPT} tokens", f"one chunk + {steps:.1f} decode steps",
        required, steps < DECODE_STEPS_ALLOWED, waits.text(),
    )  # fmt: skip
