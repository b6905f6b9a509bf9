"""Rows of a comparison: what was compared, whether it was equal, and what differed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fanlight import Answer


@dataclass(frozen=True, slots=True)
class Compared:
    """One thing that must be equal to another. `detail` says what was seen."""

    name: str
    equal: bool
    detail: str = ""
    near_tie: bool = False
    """Whether it counts as equal although a token differs, because the reference itself was undecided there."""


def differing(rows: Sequence[Compared]) -> list[Compared]:
    """The rows that are not equal."""
    return [row for row in rows if not row.equal]


def compared_answers(name: str, expected: Answer, got: Answer) -> Compared:
    """Whether two answers are the same to the last bit: text, token ids, logprobs, and how they ended."""
    for what in ("text", "token_ids", "logprobs", "finish_reason"):
        wanted, found = getattr(expected, what), getattr(got, what)
        if wanted != found:
            return Compared(name, False, f"{what} is {found!r}, not {wanted!r}")
    if not expected.tokens:
        return Compared(name, False, "both answers are empty, which compares nothing")
    return Compared(name, True, f"{len(got.tokens)} tokens")
