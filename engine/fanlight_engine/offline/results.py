"""What offline callers get back: a whole answer, collected from the events of its request."""

from __future__ import annotations

from collections.abc import AsyncIterable
from dataclasses import dataclass

from fanlight_engine.errors import CoreFailureError
from fanlight_engine.events import Delta, Event, Finished, Token, Usage
from fanlight_engine.request import FinishReason


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to one prompt. `tokens` is empty unless token ids or logprobs were asked for."""

    text: str
    tokens: tuple[Token, ...]
    finish_reason: FinishReason
    stop_sequence: str | None
    usage: Usage

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids of the tokens."""
        return tuple(token.id for token in self.tokens)


async def collect(events: AsyncIterable[Event]) -> Completion:
    """The whole answer. Raises what the events raise, and CoreFailureError for an answer that failed on its own."""
    texts: list[str] = []
    tokens: list[Token] = []
    finished: Finished | None = None
    usage: Usage | None = None
    async for event in events:
        if isinstance(event, Delta):
            texts.append(event.text)
            tokens.extend(event.tokens)
        elif isinstance(event, Finished):
            finished = event
        elif isinstance(event, Usage):
            usage = event
    assert finished is not None, "every request that is not refused finishes"
    assert usage is not None, "usage comes last"
    if finished.reason is FinishReason.ERROR:
        raise CoreFailureError(finished.error or "the answer failed")
    return Completion("".join(texts), tuple(tokens), finished.reason, finished.stop_sequence, usage)
