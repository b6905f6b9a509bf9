"""Bar 2: greedy answers against transformers' own, the models of the path in every arrangement."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tests.engine.parity import MOST_NEAR_TIES, compare_everywhere
from tools.bars.table import Figure, judged

PROMPTS = 200
NAMES = ("llama", "qwen2_vl", "qwen2_5_vl", "llava", "llava_next", "fanlight-tiny")
"""`make show-families` compares all others, with fewer prompts."""


def measure_bar_2() -> Iterator[Figure]:
    """Rows for each model: what was compared in all arrangements together, and what it was put through."""
    torch.set_num_threads(1)
    for name in NAMES:
        yield from _measure(name)


def _measure(name: str) -> Iterator[Figure]:
    compared = compare_everywhere(name, PROMPTS)
    yield judged(
        2, f"{name}: answers equal to transformers'", f"{compared.answers} compared, {compared.arranged}",
        f"{PROMPTS} prompts in each", not compared.failures, "; ".join(compared.failures),
    )  # fmt: skip
    share = compared.near_ties / max(1, compared.answers)
    yield judged(
        2, f"{name}: first differences at near ties", f"{compared.near_ties} ({100 * share:.2f} %)",
        f"under {100 * MOST_NEAR_TIES:.1f} %", share < MOST_NEAR_TIES,
    )  # fmt: skip
    preemptions = sum(outcome.preemptions for outcome in compared.outcomes)
    yield judged(2, f"{name}: preemptions under KV pressure", preemptions, "at least 1", preemptions > 0)
    if compared.takes_images:
        inside = sum(outcome.chunks_starting_inside_an_image for outcome in compared.outcomes)
        yield judged(2, f"{name}: chunks that began inside an image", inside, "at least 1", inside > 0)
