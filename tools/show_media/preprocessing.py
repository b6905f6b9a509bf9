"""Bars 1 and 2: the reference's vectors, the property test over all sizes, and the pixels of every kind of file."""

from __future__ import annotations

import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fanlight_engine.config import EngineConfig
from fanlight_engine.inputs.media import images
from tests.engine.test_native_dynamic_resolution import IMAGE_BUDGETS, sampled_sizes
from tests.engine.test_pixel_oracle import EXPECTED, ORACLE
from tools.bars.commands import run
from tools.bars.table import Figure, judged

LEAST_SIZES = 20_000
TESTS = (
    "native_config",
    "native_dynamic_resolution",
    "native_patches",
    "native_processor",
    "native_tiling",
    "video_sampling",
)
"""Where the vectors are."""


def measure_bar_1() -> Iterator[Figure]:
    """A row per file of tests, and what the property test goes through."""
    files = [f"tests/engine/test_{name}.py" for name in TESTS]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        done = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}", *files)
        passed, asked = _outcomes(report)
    for file in files:
        module = Path(file).stem
        right, all_of_them = passed[module], asked[module]
        yield judged(
            1, f"{module}: tests passed", f"{right} of {all_of_them}", "all", 0 < right == all_of_them, done.last_lines
        )  # fmt: skip
    sizes = len(sampled_sizes())
    yield judged(
        1, f"sizes of 1 to 4096 in image, video and tiling modes, under {len(IMAGE_BUDGETS)} budgets", f"{sizes:,}",
        f"at least {LEAST_SIZES:,}", sizes >= LEAST_SIZES and done.exit_code == 0,
    )  # fmt: skip


def measure_bar_2() -> Iterator[Figure]:
    """How many files of the oracle decode to its pixels."""
    config = EngineConfig()
    decoded = {name: np.asarray(images.decode((ORACLE / name).read_bytes(), config)) for name in EXPECTED}
    unequal = [name for name, pixels in EXPECTED.items() if not np.array_equal(decoded[name], pixels)]
    yield judged(
        2, "files whose pixels are those of the oracle", f"{len(EXPECTED) - len(unequal)} of {len(EXPECTED)}", "all",
        not unequal, ", ".join(unequal),
    )  # fmt: skip


def _outcomes(report: Path) -> tuple[Counter[str], Counter[str]]:
    """Tests that passed and tests that ran, by module."""
    passed: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        module = case.get("classname", "").rsplit(".", 1)[-1]
        asked[module] += 1
        passed[module] += not {"failure", "error", "skipped"} & {child.tag for child in case}
    return passed, asked
