"""Bar 4: what can be proven of decode graphs and kernels without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from tools.bars.pytest_run import measure_tests
from tools.bars.table import Figure

PROOFS = (
    ("decode steps that read nothing back, allocate nothing and run on an imagined GPU", "test_decode_guard.py"),
    ("Triton's attention equal to the reference, at least 300 random steps", "test_triton_attention.py"),
    ("its kernels compiled ahead of time for sm_80, sm_90 and gfx942", "test_triton_compilation.py"),
    ("its launches, for whole devices and bounded", "test_triton_sizes.py"),
    ("graphs by buckets, largest first, and the loop without them", "test_graphs.py"),
    ("results that are read a step late, equal to the simple loop", "test_async_scheduling.py"),
)


def measure_bar_4() -> Iterator[Figure]:
    """A row per file of tests."""
    for what, file in PROOFS:
        yield measure_tests(4, what, f"tests/engine/{file}", "-m", "not real_model")
