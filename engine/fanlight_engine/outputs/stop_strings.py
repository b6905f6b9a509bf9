"""Finds stop strings in a text that comes in pieces, and holds back what could still become one.

The match that is complete first wins (of two complete at the same character, the longer), so the result does not depend
on how the text was cut into pieces. Knows nothing of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Released:
    """Text that may leave, and the stop string that ended it, if one did."""

    text: str
    stop: str | None = None


class StopMatcher:
    """One output's stop strings. With `include`, a matched one stays at the end of the text."""

    def __init__(self, stops: tuple[str, ...], include: bool) -> None:
        self._stops = stops
        self._include = include
        self._held = ""
        self.searches = bool(stops)
        """Whether there is anything to find; text need not be fed otherwise."""

    def feed(self, piece: str) -> Released:
        """Take a piece; after a match nothing may be fed any more."""
        text = self._held + piece
        match = self._first_match(text)
        if match is not None:
            end, stop = match
            self._held = ""
            return Released(text[: end if self._include else end - len(stop)], stop)
        kept = self._longest_beginning_at_end_of(text)
        self._held = text[len(text) - kept :]
        return Released(text[: len(text) - kept])

    def flush(self) -> str:
        """What is held back, at the end of the output: it did not become a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        """(end, stop) of the match that ends first; the held text alone holds none."""
        ends = [(start + len(stop), -len(stop), stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if not ends:
            return None
        end, _, stop = min(ends)
        return end, stop

    def _longest_beginning_at_end_of(self, text: str) -> int:
        """How many characters at the end of `text` are the beginning of a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
