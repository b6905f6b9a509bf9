"""Sizes of pictures that native preprocessing is tried on; knows nothing of what is done with them."""

from __future__ import annotations

import math
import random
from functools import cache

SIZES = 20_000
SIDES = (1, 4096)


@cache
def sampled_sizes(count: int = SIZES) -> tuple[tuple[int, int], ...]:
    """Seeded (width, height): half of them even, half with sides of every order of magnitude, many of them thin."""
    rng = random.Random(20_260)
    even = [(rng.randint(*SIDES), rng.randint(*SIDES)) for _ in range(count // 2)]
    return (*even, *((_any_order(rng), _any_order(rng)) for _ in range(count // 2)))


def _any_order(rng: random.Random) -> int:
    return int(math.exp(rng.uniform(0, math.log(SIDES[1] + 0.99))))
