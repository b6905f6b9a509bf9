"""Client and AsyncClient: one channel to a server, and a method for each thing to ask.

Both are thin: requests are built in requests.py, answers read in answers.py, errors translated in errors.py. The two
classes have the same methods with the same arguments, which a test holds them to.
"""

# A timeout here is a deadline that the server knows, too: asyncio.timeout is no substitute.
# ruff: noqa: ASYNC109

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import grpc
import grpc.aio

from fanlight.answers import Answer, Event, read_answer
from fanlight.channel import DEFAULT_ADDRESS, channel_options
from fanlight.chat import AsyncChat, Chat
from fanlight.errors import translated_errors
from fanlight.requests import Message, Options, PreparedRequest, Prompt, RequestOptions, build_setup, prepare_request
from fanlight.streams import AsyncStream, Stream, same_event, text_of
from fanlight.v1 import chat_pb2, inference_pb2, model_pb2, server_pb2
from fanlight.v1.inference_pb2_grpc import InferenceServiceStub
from fanlight.v1.model_pb2_grpc import ModelServiceStub
from fanlight.v1.server_pb2_grpc import ServerServiceStub


class ClientBase:
    """The stubs of a channel, and calls that are started alike by threads and tasks."""

    def __init__(
        self, channel: grpc.Channel | grpc.aio.Channel, address: str, model: str | None, timeout: float | None
    ) -> None:
        self._address = address
        self._model = model
        self._timeout = timeout
        self._inference = InferenceServiceStub(channel)
        self._models = ModelServiceStub(channel)
        self._server = ServerServiceStub(channel)

    def _prepare(self, prompt: Prompt, options: RequestOptions) -> PreparedRequest:
        return prepare_request(prompt, options, self._model, self._timeout)

    def _timeout_or(self, timeout: float | None) -> float | None:
        return self._timeout if timeout is None else timeout

    def _start_stream(self, prompt: Prompt, options: RequestOptions) -> tuple[Any, str]:
        prepared = self._prepare(prompt, options)
        call = self._inference.GenerateStream(prepared.for_stream(), timeout=prepared.timeout)
        return call, prepared.request_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address!r})"


class Client(ClientBase):
    """A client for threads. It keeps one channel, which threads may share: one client is enough for a program.

    address      host:port of the server
    model        name of the model to ask; None: the server's default
    timeout      seconds for each call that names none of its own, chats excepted; None: no limit
    credentials  for a server that speaks TLS; None: plain text
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        model: str | None = None,
        timeout: float | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        options = channel_options()
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, credentials, options)
        super().__init__(self._channel, address, model, timeout)

    def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Answer:
        """Returns a whole answer.

        prompt   a string, a sequence of messages (`system`, `user`, `assistant`), a `raw_prompt` or a `tokens_prompt`
        options  images=, system=, model=, request_id=, timeout= and all of sampling and output: see RequestOptions

        Raises FanlightError; TypeError for an unknown option; OSError for an image file that cannot be read.
        """
        prepared = self._prepare(prompt, options)
        with translated_errors(prepared.request_id):
            return read_answer(self._inference.Generate(prepared.for_answer(), timeout=prepared.timeout))

    def stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Stream[str]:
        """Returns an iterator over the answer's text, which then has its usage and finish reason.

        Arguments and errors as for `generate`; those of the server are raised while iterating.
        """
        call, request_id = self._start_stream(prompt, options)
        return Stream(call, request_id, text_of, raise_failure=True)

    def events(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Stream[Event]:
        """Returns an iterator over every event: Accepted, Progress, Delta, Finished, Usage.

        Arguments and errors as for `stream`, but that an answer which fails on its own ends with Finished.error, which
        is not raised.
        """
        call, request_id = self._start_stream(prompt, options)
        return Stream(call, request_id, same_event, raise_failure=False)

    def chat(
        self,
        *,
        history: Sequence[Message] = (),
        system: str | None = None,
        model: str | None = None,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> Chat:
        """Opens a conversation: `with client.chat() as chat:` waits until it is set up, then `chat.send(...)`.

        history  messages said before
        system   instructions before those
        timeout  seconds for the whole conversation; None: no limit
        options  sampling and output of turns that bring none
        """
        outbox: queue.SimpleQueue[chat_pb2.ChatRequest | None] = queue.SimpleQueue()
        outbox.put(build_setup(model or self._model, history, system, options))
        return Chat(self._inference.Chat(iter(outbox.get, None), timeout=timeout), outbox)

    def cancel(self, request_id: str, *, timeout: float | None = None) -> inference_pb2.CancelOutcome:
        """Cancels a request by its id and returns what was found, as a CANCEL_OUTCOME value of fanlight.v1."""
        request = inference_pb2.CancelRequest(request_id=request_id)
        with translated_errors(request_id):
            return self._inference.Cancel(request, timeout=self._timeout_or(timeout)).outcome

    def models(self, *, timeout: float | None = None) -> list[model_pb2.Model]:
        """The models of the server, the default one first."""
        request = model_pb2.ListModelsRequest()
        with translated_errors():
            return list(self._models.ListModels(request, timeout=self._timeout_or(timeout)).models)

    def model(self, name: str | None = None, *, timeout: float | None = None) -> model_pb2.Model:
        """One model: its limits, special tokens and sampling defaults. None: the one that this client asks."""
        request = model_pb2.GetModelRequest(name=name or self._model)
        with translated_errors():
            return self._models.GetModel(request, timeout=self._timeout_or(timeout)).model

    def server_info(self, *, timeout: float | None = None) -> server_pb2.GetServerInfoResponse:
        """Version, features and limits of the server."""
        request = server_pb2.GetServerInfoRequest()
        with translated_errors():
            return self._server.GetServerInfo(request, timeout=self._timeout_or(timeout))

    def close(self) -> None:
        """Closes the channel. Calls that are still open are cancelled."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(ClientBase):
    """A client for tasks, made inside a running event loop. Arguments as for Client.

    Image files are read, and image objects encoded, by the call that takes them: pass bytes where that takes long.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        model: str | None = None,
        timeout: float | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        options = channel_options()
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options)
        else:
            self._channel = grpc.aio.secure_channel(address, credentials, options)
        super().__init__(self._channel, address, model, timeout)

    async def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Answer:
        """As `Client.generate`."""
        prepared = self._prepare(prompt, options)
        with translated_errors(prepared.request_id):
            return read_answer(await self._inference.Generate(prepared.for_answer(), timeout=prepared.timeout))

    def stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> AsyncStream[str]:
        """As `Client.stream`, for `async for`."""
        call, request_id = self._start_stream(prompt, options)
        return AsyncStream(call, request_id, text_of, raise_failure=True)

    def events(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> AsyncStream[Event]:
        """As `Client.events`, for `async for`."""
        call, request_id = self._start_stream(prompt, options)
        return AsyncStream(call, request_id, same_event, raise_failure=False)

    def chat(
        self,
        *,
        history: Sequence[Message] = (),
        system: str | None = None,
        model: str | None = None,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> AsyncChat:
        """As `Client.chat`, for `async with`."""
        outbox: asyncio.Queue[chat_pb2.ChatRequest | None] = asyncio.Queue()
        outbox.put_nowait(build_setup(model or self._model, history, system, options))
        return AsyncChat(self._inference.Chat(queued_requests(outbox), timeout=timeout), outbox)

    async def cancel(self, request_id: str, *, timeout: float | None = None) -> inference_pb2.CancelOutcome:
        """As `Client.cancel`."""
        request = inference_pb2.CancelRequest(request_id=request_id)
        with translated_errors(request_id):
            return (await self._inference.Cancel(request, timeout=self._timeout_or(timeout))).outcome

    async def models(self, *, timeout: float | None = None) -> list[model_pb2.Model]:
        """As `Client.models`."""
        request = model_pb2.ListModelsRequest()
        with translated_errors():
            return list((await self._models.ListModels(request, timeout=self._timeout_or(timeout))).models)

    async def model(self, name: str | None = None, *, timeout: float | None = None) -> model_pb2.Model:
        """As `Client.model`."""
        request = model_pb2.GetModelRequest(name=name or self._model)
        with translated_errors():
            return (await self._models.GetModel(request, timeout=self._timeout_or(timeout))).model

    async def server_info(self, *, timeout: float | None = None) -> server_pb2.GetServerInfoResponse:
        """As `Client.server_info`."""
        request = server_pb2.GetServerInfoRequest()
        with translated_errors():
            return await self._server.GetServerInfo(request, timeout=self._timeout_or(timeout))

    async def close(self) -> None:
        """Closes the channel. Calls that are still open are cancelled."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def queued_requests(outbox: asyncio.Queue[chat_pb2.ChatRequest | None]) -> AsyncIterator[chat_pb2.ChatRequest]:
    """The requests of a chat as they are queued, until None."""
    while (request := await outbox.get()) is not None:
        yield request
