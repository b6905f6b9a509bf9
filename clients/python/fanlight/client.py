"""Client: one channel to a server, and a method for each thing to ask. AsyncClient, in async_client.py, is its twin.

Both are thin: requests are built in requests.py, answers read in answers.py, errors translated in errors.py, media
uploaded in media_store.py. The two classes have the same methods with the same arguments, which a test holds them to.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack, overload

import grpc
import grpc.aio

from fanlight.answers import Answer, Event, read_answer
from fanlight.channel import DEFAULT_ADDRESS, channel_options
from fanlight.chat import Chat
from fanlight.counting import TextToken, TokenCount, read_text_tokens, read_token_count
from fanlight.errors import translated_errors
from fanlight.fields import extend_field
from fanlight.handles import EncodedImage, Handle, Media, Upload, digest_of, digests_of, read_encoded_image
from fanlight.media_sources import Images, build_images
from fanlight.media_store import MediaStore
from fanlight.requests import (
    Message,
    Options,
    PreparedRequest,
    Prompt,
    PromptOptions,
    RequestOptions,
    build_setup,
    prepare_prompt,
    prepare_request,
)
from fanlight.streams import Stream, same_event, text_of
from fanlight.transfers import ByteSource, Deadline, ProgressCallback, UploadSource, sink_for
from fanlight.v1 import chat_pb2, inference_pb2, media_service_pb2, model_pb2, server_pb2
from fanlight.v1.inference_pb2_grpc import InferenceServiceStub
from fanlight.v1.model_pb2_grpc import ModelServiceStub
from fanlight.v1.server_pb2_grpc import ServerServiceStub


class ClientBase:
    """The stubs of a channel, and requests that are prepared alike for threads and tasks."""

    _media_store: Any  # each face has its own: MediaStore or AsyncMediaStore

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

    def _start_stream(self, prompt: Prompt, options: RequestOptions) -> tuple[Any, str]:
        prepared = self._prepare(prompt, options)
        deadline = Deadline(prepared.timeout)

        def start() -> Any:
            return self._inference.GenerateStream(prepared.for_stream(), timeout=deadline.left())

        return self._media_store.stream(prepared.generation, start, deadline), prepared.request_id

    def _prepare_count(self, prompt: Prompt, options: PromptOptions) -> tuple[model_pb2.CountTokensRequest, Deadline]:
        generation, timeout = prepare_prompt(prompt, options, self._model, self._timeout)
        return model_pb2.CountTokensRequest(generation=generation), Deadline(timeout)

    def _prepare_encoding(self, images: Images, model: str | None) -> media_service_pb2.EncodeImagesRequest:
        return media_service_pb2.EncodeImagesRequest(model=model or self._model, images=build_images(images))

    def _prepare_detokenizing(
        self, ids: Iterable[int], model: str | None, spell_special_tokens: bool
    ) -> model_pb2.DetokenizeRequest:
        name = model or self._model
        request = model_pb2.DetokenizeRequest(model=name, spell_special_tokens=spell_special_tokens)
        extend_field(request, "ids", ids, "ids")
        return request

    def _timeout_or(self, timeout: float | None) -> float | None:
        return self._timeout if timeout is None else timeout

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self._timeout_or(timeout))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address!r})"


class Client(ClientBase):
    """A client for threads. It keeps one channel, which threads may share: one client is enough for a program.

    Images and clips above 4 MiB are uploaded before the request that has them, if the server takes uploads, and so are
    smaller ones of a request that would be too large. What the server holds already is not sent again.

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
        self._media_store: MediaStore = MediaStore(self._channel)

    def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Answer:
        """Returns a whole answer.

        prompt   a string, a sequence of messages (`system`, `user`, `assistant`), a `raw_prompt` or a `tokens_prompt`
        options  images=, video=, system=, model=, request_id=, timeout= and all of sampling and output: see
                 RequestOptions

        Raises FanlightError; TypeError for an unknown option; OSError for a file that cannot be read.
        """
        prepared = self._prepare(prompt, options)
        deadline = Deadline(prepared.timeout)

        def send() -> inference_pb2.GenerateResponse:
            return self._inference.Generate(prepared.for_answer(), timeout=deadline.left())

        with translated_errors(prepared.request_id):
            return read_answer(self._media_store.call(prepared.generation, send, deadline))

    def stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Stream[str]:
        """Returns an iterator over the answer's text, which then has its usage and finish reason.

        Arguments and errors as for `generate`; those of the server are raised while iterating, but for those of an
        upload that has to come first.
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
        setup = build_setup(model or self._model, history, system, options)
        deadline = Deadline(timeout)
        self._media_store.move_out(setup, deadline)
        outbox.put(setup)
        call = self._inference.Chat(iter(outbox.get, None), timeout=deadline.left())
        return Chat(call, outbox, self._media_store)

    def upload(
        self, source: UploadSource, *, progress: ProgressCallback | None = None, timeout: float | None = None
    ) -> Upload:
        """Uploads a file, or what the server lacks of it, and returns a handle for `images=`, `video=` and messages.

        An upload that breaks off goes on where the server has got to, a few times in a row without progress; one that
        failed is resumed by the next call with the same file.

        source    the path of a file, its bytes, or an image object such as a PIL image, which goes as PNG
        progress  called with the bytes passed on and their number in all, from another thread, as the former grow
        timeout   seconds for everything together; None: the client's

        Raises FanlightError, and OSError for a file that cannot be read.
        """
        return self._media_store.upload(ByteSource(source), self._deadline(timeout), progress)

    def media(self, handles: Handle | Iterable[Handle], *, timeout: float | None = None) -> list[Media]:
        """What the server says about handles or digests, in their order: held, partial or absent, and which facts.

        handles  one handle or digest, or several
        """
        return self._media_store.find(digests_of(handles), self._deadline(timeout))

    def delete_media(self, handle: Handle, *, timeout: float | None = None) -> None:
        """Deletes what the server holds under a handle or digest. Raises NotFound where that is nothing."""
        self._media_store.delete(digest_of(handle), self._deadline(timeout))

    @overload
    def download(
        self, handle: Handle, to: None = None, *, progress: ProgressCallback | None = None, timeout: float | None = None
    ) -> bytes: ...

    @overload
    def download(
        self,
        handle: Handle,
        to: str | os.PathLike[str],
        *,
        progress: ProgressCallback | None = None,
        timeout: float | None = None,
    ) -> Path: ...

    def download(
        self,
        handle: Handle,
        to: str | os.PathLike[str] | None = None,
        *,
        progress: ProgressCallback | None = None,
        timeout: float | None = None,
    ) -> bytes | Path:
        """Returns the bytes of an upload, or the safetensors file of embeddings; checked against their digest.

        A download that breaks off goes on where it was, a few times in a row without progress.

        to        write them to this file, which appears when all of it is there, and return its path instead
        progress  called with the bytes that have come and their number in all
        """
        with sink_for(to) as (sink, result):
            self._media_store.download(digest_of(handle), sink, self._deadline(timeout), progress)
            return result()

    def encode_images(
        self, images: Images, *, model: str | None = None, timeout: float | None = None
    ) -> list[EncodedImage]:
        """Runs the vision encoder and has the embeddings kept: handles for `images=`, and for `download`."""
        request = self._prepare_encoding(images, model)
        response = self._media_store.encode(request, self._deadline(timeout))
        return [read_encoded_image(each) for each in response.images]

    def count_tokens(self, prompt: Prompt, **options: Unpack[PromptOptions]) -> TokenCount:
        """Counts a prompt as `generate` would take it, without generating: its length, and what each image takes.

        Arguments and errors as for `generate`, but that a prompt which is too long is counted: `fits` is False.
        """
        request, deadline = self._prepare_count(prompt, options)

        def send() -> model_pb2.CountTokensResponse:
            return self._models.CountTokens(request, timeout=deadline.left())

        with translated_errors():
            return read_token_count(self._media_store.call(request, send, deadline))

    def tokenize(
        self,
        text: str,
        *,
        model: str | None = None,
        parse_special_tokens: bool = False,
        timeout: float | None = None,
    ) -> list[TextToken]:
        """Splits a text into tokens, without a template or a beginning-of-sequence token.

        parse_special_tokens  special tokens spelled out in the text become those tokens
        """
        request = model_pb2.TokenizeRequest(
            model=model or self._model, text=text, parse_special_tokens=parse_special_tokens
        )
        with translated_errors():
            return read_text_tokens(self._models.Tokenize(request, timeout=self._timeout_or(timeout)))

    def detokenize(
        self,
        ids: Iterable[int],
        *,
        model: str | None = None,
        spell_special_tokens: bool = False,
        timeout: float | None = None,
    ) -> str:
        """Joins tokens to text; bytes that make no character are U+FFFD.

        spell_special_tokens  special tokens appear in the text, spelled out
        """
        request = self._prepare_detokenizing(ids, model, spell_special_tokens)
        with translated_errors():
            return self._models.Detokenize(request, timeout=self._timeout_or(timeout)).text

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
