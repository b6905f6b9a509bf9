"""Answers that arrive piece by piece: one call, iterated by a thread or by a task.

What a stream does with a message is written once, in AnswerStream; Stream and AsyncStream only fetch messages. Closing
a stream, or losing the last reference to it, cancels its request on the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import grpc
import grpc.aio

from fanlight.answers import Answer, AnswerReader, Delta, Event, FinishReason, Token, Usage, read_event
from fanlight.errors import FanlightError, error_from_call
from fanlight.v1 import inference_pb2

Piece = TypeVar("Piece")

END_OF_CALL: Any = grpc.aio.EOF  # pyright: ignore[reportAttributeAccessIssue] - missing from the published stubs


def text_of(event: Event) -> str | None:
    """The text that an event brings; None for none."""
    return event.text or None if isinstance(event, Delta) else None


def same_event(event: Event) -> Event:
    """The event itself, for streams of all events."""
    return event


class AnswerView:
    """What can be asked of an answer while it arrives and after."""

    _reader: AnswerReader

    @property
    def request_id(self) -> str:
        """Id of the request, for `cancel`."""
        return self._reader.request_id

    @property
    def seed(self) -> int | None:
        """Seed in use; None before the request was accepted."""
        return self._reader.seed

    @property
    def text(self) -> str:
        """The text so far."""
        return self._reader.text

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The tokens so far; none unless token_ids or logprobs were asked for."""
        return self._reader.tokens

    @property
    def usage(self) -> Usage | None:
        """What the request took; None before its end."""
        return self._reader.usage

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended; None before its end."""
        return self._reader.finish_reason

    @property
    def answer(self) -> Answer:
        """The answer so far: the whole one after the stream's end."""
        return self._reader.answer


class AnswerStream(AnswerView, Generic[Piece]):
    """A call for one answer, and what it picks from each event. A piece of None is skipped."""

    def __init__(self, call: Any, request_id: str, pick: Callable[[Event], Piece | None], raise_failure: bool) -> None:
        self._reader = AnswerReader(request_id)
        self._call = call
        self._pick = pick
        self._raise_failure = raise_failure
        self._ended = False

    def _take(self, response: inference_pb2.GenerateStreamResponse) -> Piece | None:
        event = read_event(response)
        if event is None:
            return None
        self._reader.take(event)
        return self._pick(event)

    def _finish(self) -> None:
        """The call ended well. Raises the answer's own error, once, if that is how the answer ended."""
        self._ended = True
        if self._raise_failure and self._reader.error:
            raise self._reader.error

    def _fail(self, error: grpc.RpcError) -> FanlightError:
        self._ended = True
        return error_from_call(error, self.request_id)

    def _cancel(self) -> None:
        if not self._ended:
            self._ended = True
            self._call.cancel()

    def __del__(self) -> None:
        # Only calls that were started have the attribute: __init__ may have raised before.
        if hasattr(self, "_ended"):
            self._cancel()


class Stream(AnswerStream[Piece], Iterator[Piece]):
    """Iterate to receive. Afterwards `usage`, `finish_reason` and `answer` tell the rest."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Piece:
        while not self._ended:
            try:
                response = next(self._call)
            except StopIteration:
                self._finish()
            except FanlightError:  # of an upload that came first
                self._ended = True
                raise
            except grpc.RpcError as error:
                if not self._ended:  # else another thread closed this stream while this one was receiving
                    raise self._fail(error) from error
            else:
                piece = self._take(response)
                if piece is not None:
                    return piece
        raise StopIteration

    def close(self) -> None:
        """Cancels the request unless it has ended."""
        self._cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncStream(AnswerStream[Piece], AsyncIterator[Piece]):
    """Iterate with `async for` to receive. Afterwards `usage`, `finish_reason` and `answer` tell the rest."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        while not self._ended:
            response = await self._receive()
            piece = None if response is END_OF_CALL else self._take(response)
            if piece is not None:
                return piece
        raise StopAsyncIteration

    async def _receive(self) -> Any:
        try:
            response = await self._call.read()
        except FanlightError:  # of an upload that came first
            self._ended = True
            raise
        except grpc.RpcError as error:
            raise self._fail(error) from error
        except asyncio.CancelledError:
            if not self._ended:
                raise
            return END_OF_CALL  # another task closed this stream while this one was receiving
        if response is END_OF_CALL:
            self._finish()
        return response

    async def close(self) -> None:
        """Cancels the request unless it has ended."""
        self._cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
