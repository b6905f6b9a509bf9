"""Bar 3: what `fanlight config --show` says of each setting's source, with each layer changed in turn."""

from __future__ import annotations

from collections.abc import Iterator

from tools.bars.pytest_run import measure_tests
from tools.bars.table import Figure

TESTS = ("tests/e2e/test_config_command.py", "tests/engine/test_contradictions.py")


def measure_bar_3() -> Iterator[Figure]:
    """A row per test file: a text, a vision and the embedded checkpoint; then settings that contradict each other."""
    for file, what in zip(TESTS, ("sources and values of three checkpoints", "contradictory settings"), strict=True):
        yield measure_tests(3, what, file)
