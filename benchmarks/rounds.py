"""Rounds in which everybody measures in turn, so that a machine that slows down for a while slows down all of them.

In a round each contender runs several times and counts at its best: what else the machine does only ever takes away. A
pass in which other processes took a part of the machine is measured again, as long as there are not too many of them.
Knows nothing of what is measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from benchmarks.neighbours import Neighbours

Contender = Callable[[], Mapping[str, float]]
"""Runs once; its figures by name, of each of which more is better."""
Figures = dict[tuple[str, str], tuple[float, ...]]
"""By contender and name of the figure: one for each round."""
MOST_CORES_TAKEN = 0.1
"""Cores that other processes may keep busy in a pass that counts."""


def take_turns(
    contenders: Mapping[str, Contender],
    rounds: int,
    passes: int,
    cores_taken: Callable[[], float] | None = None,
) -> Figures:
    """Measure `rounds` times, each the best of `passes`; one round before them warms up and is dropped.

    Another contender begins each time. `cores_taken` tells what others took since it was last asked; None asks the
    system. Half as many passes as there are may be measured again; then they count as they are.
    """
    cores_taken = cores_taken or Neighbours().cores_taken
    measured: dict[tuple[str, str], list[float]] = {}
    spare = rounds * passes // 2
    for number in range(rounds + 1):
        best: dict[tuple[str, str], float] = {}
        turn = 0
        while turn < (passes if number else 1):
            cores_taken()
            figures = _one_pass(contenders, number + turn)
            taken = cores_taken()
            if number and taken > MOST_CORES_TAKEN and spare:
                spare -= 1
                print(f"measured again: other processes took {taken:.1f} cores", file=sys.stderr, flush=True)
                continue
            turn += 1
            for key, value in figures.items():
                best[key] = max(value, best.get(key, value))
        if number:
            for key, value in best.items():
                measured.setdefault(key, []).append(value)
    return {key: tuple(values) for key, values in measured.items()}


def _one_pass(contenders: Mapping[str, Contender], first: int) -> dict[tuple[str, str], float]:
    """Everybody once."""
    names = list(contenders)
    first %= len(names)
    return {
        (name, figure): value
        for name in (*names[first:], *names[:first])
        for figure, value in contenders[name]().items()
    }
