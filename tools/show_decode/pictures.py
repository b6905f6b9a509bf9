"""Bar 2: eight requests at once with a picture each, against transformers and OpenVINO GenAI."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import vlm
from benchmarks.peers.catalog import OPENVINO_PICTURES
from tools.bars.ratios import measure_ratios
from tools.bars.table import Figure, not_measurable


def measure_bar_2() -> Iterator[Figure]:
    """Requests per second, from encoded pictures to texts."""
    yield from measure_ratios(2, lambda: vlm.measure().comparisons)
    if OPENVINO_PICTURES.missing:
        what = f"{vlm.REQUESTS} pictures, {OPENVINO_PICTURES.name}"
        yield not_measurable(2, what, "goal 1.00, printed", OPENVINO_PICTURES.missing)
