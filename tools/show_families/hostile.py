"""Bar 4: hostile checkpoints, each through the real command, and what the command said of them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.hostile_checkpoints import HOSTILE, MAKERS, Hostile
from tests.e2e.refused_starts import EXIT_CHECKPOINT, MOST_BYTES, MOST_SECONDS, Outcome, outcome_of
from tools.bars.table import Figure, judged


def measure_bar_4() -> Iterator[Figure]:
    """A row per checkpoint and command, and the most memory and time that any of them took."""
    ended: list[tuple[Hostile, str, Outcome]] = []
    with tempfile.TemporaryDirectory() as folder:
        good = {name: make(Path(folder) / "good" / name) for name, make in MAKERS.items()}
        for number, one in enumerate(HOSTILE):
            print(f"  {one.name}", file=sys.stderr, flush=True)
            directory = one.make(Path(folder) / str(number) / one.base, good[one.base])
            ended.append((one, "serve", outcome_of("serve", one.serve(directory))))
            if one.is_seen_by_config:
                ended.append((one, "config --show", outcome_of("config", ["--show", str(directory)])))
        rows = [_row(hostile, command, outcome, folder) for hostile, command, outcome in ended]
    yield from rows
    peak = max(outcome.peak_bytes for _, _, outcome in ended)
    slowest = max(outcome.seconds for _, _, outcome in ended)
    left = [process for _, _, outcome in ended for process in outcome.left_behind]
    yield judged(
        4, "most memory of a command, libraries included", f"{peak >> 20} MiB", f"at most {MOST_BYTES >> 20} MiB",
        peak <= MOST_BYTES,
    )  # fmt: skip
    yield judged(
        4, "longest time of a command, imports included", f"{slowest:.1f} s", f"within {MOST_SECONDS:.0f} s",
        slowest <= MOST_SECONDS,
    )  # fmt: skip
    yield judged(4, "processes that a command left behind", len(left), "0", not left, "; ".join(left))


def _row(hostile: Hostile, command: str, outcome: Outcome, folder: str) -> Figure:
    wrong = outcome.mismatches(hostile.told)
    told = outcome.message.replace(f"{folder}/", "")
    return judged(
        4, f"{hostile.name} ({command})", f"exit code {outcome.exit_code}", f"{EXIT_CHECKPOINT}, file and fix",
        not wrong, "; ".join([told, *wrong]),
    )  # fmt: skip
