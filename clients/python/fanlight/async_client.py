"""AsyncClient: Client for tasks, with the same methods and arguments; see there and in client.py."""

# A timeout here is a deadline that the server knows, too: asyncio.timeout is no substitute.
# ruff: noqa: ASYNC109

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack, overload

import grpc
import grpc.aio

from fanlight.answers import Answer, Event, read_answer
from fanlight.async_chat import AsyncChat
from fanlight.channel import DEFAULT_ADDRESS, channel_options
from fanlight.client import ClientBase
from fanlight.counting import TextToken, TokenCount, read_text_tokens, read_token_count
from fanlight.errors import translated_errors
from fanlight.handles import EncodedImage, Handle, Media, Upload, digest_of, digests_of, read_encoded_image
from fanlight.media_sources import Images
from fanlight.media_store import AsyncMediaStore
from fanlight.requests import Message, Options, Prompt, PromptOptions, RequestOptions, build_setup
from fanlight.streams import AsyncStream, same_event, text_of
from fanlight.transfers import ByteSource, Deadline, ProgressCallback, UploadSource, sink_for
from fanlight.v1 import chat_pb2, inference_pb2, model_pb2, server_pb2


class AsyncClient(ClientBase):
    """A client for tasks, made inside a running event loop. Arguments as for Client.

    Files of images and clips are read, and image objects encoded, by the call that takes them: pass bytes, or what
    `upload` returns, where that takes long.
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
        self._media_store: AsyncMediaStore = AsyncMediaStore(self._channel)

    async def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Answer:
        """As `Client.generate`."""
        prepared = self._prepare(prompt, options)
        deadline = Deadline(prepared.timeout)

        def send() -> Awaitable[inference_pb2.GenerateResponse]:
            return self._inference.Generate(prepared.for_answer(), timeout=deadline.left())

        with translated_errors(prepared.request_id):
            return read_answer(await self._media_store.call(prepared.generation, send, deadline))

    def stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> AsyncStream[str]:
        """As `Client.stream`, for `async for`. Returns at once; errors of an upload are raised while iterating, too."""
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
        setup = build_setup(model or self._model, history, system, options)
        outbox.put_nowait(setup)
        deadline = Deadline(timeout)

        def start() -> Any:
            return self._inference.Chat(queued_requests(outbox), timeout=deadline.left())

        call = self._media_store.stream(setup, start, deadline, may_begin_again=False)  # turns may be on their way
        return AsyncChat(call, outbox, self._media_store)

    async def upload(
        self, source: UploadSource, *, progress: ProgressCallback | None = None, timeout: float | None = None
    ) -> Upload:
        """As `Client.upload`."""
        return await self._media_store.upload(ByteSource(source), self._deadline(timeout), progress)

    async def media(self, handles: Handle | Iterable[Handle], *, timeout: float | None = None) -> list[Media]:
        """As `Client.media`."""
        return await self._media_store.find(digests_of(handles), self._deadline(timeout))

    async def delete_media(self, handle: Handle, *, timeout: float | None = None) -> None:
        """As `Client.delete_media`."""
        await self._media_store.delete(digest_of(handle), self._deadline(timeout))

    @overload
    async def download(
        self, handle: Handle, to: None = None, *, progress: ProgressCallback | None = None, timeout: float | None = None
    ) -> bytes: ...

    @overload
    async def download(
        self,
        handle: Handle,
        to: str | os.PathLike[str],
        *,
        progress: ProgressCallback | None = None,
        timeout: float | None = None,
    ) -> Path: ...

    async def download(
        self,
        handle: Handle,
        to: str | os.PathLike[str] | None = None,
        *,
        progress: ProgressCallback | None = None,
        timeout: float | None = None,
    ) -> bytes | Path:
        """As `Client.download`."""
        with sink_for(to) as (sink, result):
            await self._media_store.download(digest_of(handle), sink, self._deadline(timeout), progress)
            return result()

    async def encode_images(
        self, images: Images, *, model: str | None = None, timeout: float | None = None
    ) -> list[EncodedImage]:
        """As `Client.encode_images`."""
        request = self._prepare_encoding(images, model)
        response = await self._media_store.encode(request, self._deadline(timeout))
        return [read_encoded_image(each) for each in response.images]

    async def count_tokens(self, prompt: Prompt, **options: Unpack[PromptOptions]) -> TokenCount:
        """As `Client.count_tokens`."""
        request, deadline = self._prepare_count(prompt, options)

        def send() -> Awaitable[model_pb2.CountTokensResponse]:
            return self._models.CountTokens(request, timeout=deadline.left())

        with translated_errors():
            return read_token_count(await self._media_store.call(request, send, deadline))

    async def tokenize(
        self,
        text: str,
        *,
        model: str | None = None,
        parse_special_tokens: bool = False,
        timeout: float | None = None,
    ) -> list[TextToken]:
        """As `Client.tokenize`."""
        request = model_pb2.TokenizeRequest(
            model=model or self._model, text=text, parse_special_tokens=parse_special_tokens
        )
        with translated_errors():
            return read_text_tokens(await self._models.Tokenize(request, timeout=self._timeout_or(timeout)))

    async def detokenize(
        self,
        ids: Iterable[int],
        *,
        model: str | None = None,
        spell_special_tokens: bool = False,
        timeout: float | None = None,
    ) -> str:
        """As `Client.detokenize`."""
        request = self._prepare_detokenizing(ids, model, spell_special_tokens)
        with translated_errors():
            return (await self._models.Detokenize(request, timeout=self._timeout_or(timeout))).text

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
