"""Tokens of one output -> deltas: detokenised, cut at stop strings, each token leaving with the last of its text.

Knows nothing of the core, of requests or of time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from fanlight_engine.events import Delta, Token
from fanlight_engine.outputs.detokenizer import Detokenizer
from fanlight_engine.outputs.stop_strings import Released, StopMatcher
from fanlight_engine.request import OutputOptions


@dataclass(slots=True)
class _WaitingToken:
    token: Token
    end: int | None
    """Where its text ends, in characters of the output; None while the detokenizer has not settled it."""


class OutputAssembler:
    """One output's way from ids to deltas.

    `push` takes tokens one at a time and says whether a stop string ended the output; `take` gives what may leave. The
    text of the first `min_new_tokens` tokens is not searched for stop strings.
    """

    def __init__(
        self, index: int, detokenizer: Detokenizer, matcher: StopMatcher, options: OutputOptions, min_new_tokens: int
    ) -> None:
        self.completion_tokens = 0
        self.stop: str | None = None
        self._index = index
        self._detokenizer = detokenizer
        self._matcher = matcher
        self._options = options
        self._min_new_tokens = min_new_tokens
        self._wants_tokens = options.token_ids or options.logprobs
        self._decoded_characters = 0
        self._released_characters = 0
        self._released = ""
        self._waiting: deque[_WaitingToken] = deque()

    def push(self, token_id: int, logprob: float | None) -> bool:
        """Take the next token; True when its text completed a stop string, after which no more may be pushed."""
        self.completion_tokens += 1
        if self._wants_tokens:
            self._waiting.append(_WaitingToken(Token(token_id, logprob if self._options.logprobs else None), None))
        piece = self._detokenizer.push(token_id)
        if piece:
            if self._matcher.searches and self.completion_tokens > self._min_new_tokens:
                self._release(piece, self._matcher.feed(piece))
            else:  # as a rule
                self._decoded_characters += len(piece)
                self._released_characters += len(piece)
                self._released += piece
        if self._waiting and self._detokenizer.settled:
            self._settle_tokens()
        return self.stop is not None

    def finish(self) -> None:
        """The output has ended: what was held back may leave, unless it completes a stop string."""
        if self.stop is None:
            piece = self._detokenizer.flush()
            self._release(piece, self._matcher.feed(piece))
        if self.stop is None:
            self._release("", Released(self._matcher.flush()))
        self._settle_tokens()

    def take(self) -> Delta | None:
        """Everything that may leave since the last call; None when that is nothing."""
        text, self._released = self._released if self._options.text else "", ""
        if not self._waiting:
            return Delta(self._index, text) if text else None
        tokens: list[Token] = []
        while self._waiting and self._has_left(self._waiting[0]):
            tokens.append(self._waiting.popleft().token)
        return Delta(self._index, text, tuple(tokens)) if text or tokens else None

    def _release(self, piece: str, released: Released) -> None:
        self._decoded_characters += len(piece)
        self._released_characters += len(released.text)
        self._released += released.text
        self.stop = released.stop

    def _settle_tokens(self) -> None:
        for waiting in reversed(self._waiting):
            if waiting.end is not None:
                break
            waiting.end = self._decoded_characters

    def _has_left(self, waiting: _WaitingToken) -> bool:
        return waiting.end is not None and waiting.end <= self._released_characters
