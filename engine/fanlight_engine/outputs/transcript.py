"""Collects what was said in a turn, as the history of the next one. Knows events and detokenisation only."""

from __future__ import annotations

from fanlight_engine.events import Delta, Event, Token
from fanlight_engine.outputs.detokenizer import Detokenizers
from fanlight_engine.request import TextPart


class Transcript:
    """The answer of one output, from its events. The request must ask for text and token ids."""

    def __init__(self, detokenizers: Detokenizers, skip_special_tokens: bool = True, index: int = 0) -> None:
        self._detokenizers = detokenizers
        self._skip_special_tokens = skip_special_tokens
        self._index = index
        self._texts: list[str] = []
        self._tokens: list[Token] = []

    def add(self, event: Event) -> None:
        """Take note of an event; all but this output's deltas are ignored."""
        if isinstance(event, Delta) and event.index == self._index:
            self._texts.append(event.text)
            self._tokens.extend(event.tokens)

    def part(self) -> TextPart:
        """What was said so far; its ids only where they say exactly this text (a stop string cuts through tokens)."""
        text = "".join(self._texts)
        ids = tuple(token.id for token in self._tokens)
        exact = bool(ids) and self._detokenizers.decode(ids, self._skip_special_tokens) == text
        return TextPart(text, ids if exact else None)
