"""Bar 5: batches that mix two LoRA adapters and the base."""

from __future__ import annotations

from collections.abc import Iterator

from tools.bars.pytest_run import measure_tests
from tools.bars.table import Figure


def measure_bar_5() -> Iterator[Figure]:
    """In the engine against peft's own generate, and through a server by name."""
    yield measure_tests(
        5, "mixed batches equal to each adapter and the base alone, in the engine", "tests/engine/test_lora.py"
    )
    yield measure_tests(5, "adapters by name through a server", "tests/e2e/test_loras.py")
