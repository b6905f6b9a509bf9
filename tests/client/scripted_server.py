"""A grpc.aio server in a thread that answers as a test tells it to. Knows no engine, only the generated servicers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from scripted_media import ScriptedMedia, refuse

from fanlight.v1 import chat_pb2, errors_pb2, events_pb2, inference_pb2, media_pb2, model_pb2, server_pb2
from fanlight.v1.inference_pb2_grpc import InferenceServiceServicer, add_InferenceServiceServicer_to_server
from fanlight.v1.media_service_pb2_grpc import add_MediaServiceServicer_to_server
from fanlight.v1.model_pb2_grpc import ModelServiceServicer, add_ModelServiceServicer_to_server
from fanlight.v1.server_pb2_grpc import ServerServiceServicer, add_ServerServiceServicer_to_server

WAIT_SECONDS = 10.0

Script = Callable[[Any, Any], AsyncIterator[Any]]


class ScriptedServer(InferenceServiceServicer, ModelServiceServicer, ServerServiceServicer):
    """Set `stream_script`, `chat_script` or `generate_script`; read `requests` and wait for `call_was_cancelled`.

    `media` is its MediaService, which it says it has once `features` names FEATURE_MEDIA_UPLOAD.
    """

    def __init__(self) -> None:
        self.stream_script: Script = answer_script("a", " b", " c")
        self.chat_script: Script = echoing_chat
        self.generate_script: Callable[[Any, Any], Awaitable[Any]] = whole_answer
        self.requests: list[Any] = []
        self.features: list[server_pb2.Feature] = []
        self.max_receive_message_bytes = 0
        self.media = ScriptedMedia()
        self.call_was_cancelled = threading.Event()

    async def Generate(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        return await self.generate_script(request, context)

    async def GenerateStream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.requests.append(request)
        async for response in self._noting_cancellation(self.stream_script(request, context)):
            yield response

    async def Chat(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        async for response in self._noting_cancellation(self.chat_script(self._noted(request_iterator), context)):
            yield response

    async def Cancel(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        return inference_pb2.CancelResponse(outcome=inference_pb2.CANCEL_OUTCOME_UNKNOWN)

    async def ListModels(self, request: Any, context: Any) -> Any:
        return model_pb2.ListModelsResponse(models=[model_pb2.Model(name="tiny"), model_pb2.Model(name="other")])

    async def GetModel(self, request: Any, context: Any) -> Any:
        return model_pb2.GetModelResponse(model=model_pb2.Model(name=request.name or "tiny"))

    async def GetServerInfo(self, request: Any, context: Any) -> Any:
        limits = server_pb2.ServerLimits(max_receive_message_bytes=self.max_receive_message_bytes)
        return server_pb2.GetServerInfoResponse(version="1.2.3", features=self.features, limits=limits)

    async def CountTokens(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        return TOKEN_COUNT

    async def Tokenize(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        data = request.text.encode()
        tokens = [model_pb2.TextToken(id=byte, data=bytes([byte]), offset=place) for place, byte in enumerate(data)]
        return model_pb2.TokenizeResponse(tokens=tokens)

    async def Detokenize(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        return model_pb2.DetokenizeResponse(text=bytes(request.ids).decode(errors="replace"))

    async def _noted(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            self.requests.append(request)
            yield request

    async def _noting_cancellation(self, responses: AsyncIterator[Any]) -> AsyncIterator[Any]:
        try:
            async for response in responses:
                yield response
        except (asyncio.CancelledError, GeneratorExit):
            self.call_was_cancelled.set()
            raise


class ServerThread:
    """Runs a ScriptedServer on a loop of its own, so that blocking clients can be tested against it."""

    def __init__(self) -> None:
        self.scripted = ScriptedServer()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.address = self._run(self._start())

    async def _start(self) -> str:
        self._server = grpc.aio.server(options=[("grpc.max_receive_message_length", 16 * 1024 * 1024)])
        add_InferenceServiceServicer_to_server(self.scripted, self._server)
        add_ModelServiceServicer_to_server(self.scripted, self._server)
        add_ServerServiceServicer_to_server(self.scripted, self._server)
        add_MediaServiceServicer_to_server(self.scripted.media, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return f"127.0.0.1:{port}"

    def stop(self) -> None:
        self._run(self._server.stop(grace=None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_SECONDS)
        self._loop.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS)


def stream_response(**event: Any) -> inference_pb2.GenerateStreamResponse:
    return inference_pb2.GenerateStreamResponse(**event)


USAGE = events_pb2.Usage(
    prompt_tokens=40,
    image_tokens=16,
    cached_tokens=8,
    completion_tokens=3,
    images=1,
    encoder_cache_hits=1,
    timings=events_pb2.Timings(first_token=Duration(nanos=250_000_000), inter_token=Duration(nanos=20_000_000)),
    media=[
        events_pb2.MediaUsage(
            modality=media_pb2.MODALITY_IMAGE, tokens=18, embeddings=16, encoder=events_pb2.ENCODER_USE_CACHED
        )
    ],
)

TOKEN_COUNT = model_pb2.CountTokensResponse(
    prompt_tokens=60,
    image_tokens=32,
    media=[
        model_pb2.MediaCount(
            field="generation.conversation.messages[0].parts[0].image",
            modality=media_pb2.MODALITY_IMAGE,
            tokens=18,
            embeddings=16,
            mask_ranges=[model_pb2.PositionRange(start=3, length=10), model_pb2.PositionRange(start=14, length=6)],
            original_size=media_pb2.Size(width=640, height=480),
            resized_size=media_pb2.Size(width=64, height=64),
            tiles=model_pb2.TileGrid(columns=2, rows=1, has_thumbnail=True),
        ),
        model_pb2.MediaCount(
            field="generation.conversation.messages[0].parts[1].video",
            modality=media_pb2.MODALITY_VIDEO,
            tokens=16,
            embeddings=16,
            mask_ranges=[model_pb2.PositionRange(start=25, length=16)],
            grid=media_pb2.Grid(t=2, h=4, w=8),
            frames=4,
            frame_times=[0.0, 0.5, 1.0, 1.5],
        ),
    ],
    kv_blocks=4,
    kv_block_size=16,
    context_length=2048,
    max_new_tokens=1988,
    fits=True,
)


def answer_events(pieces: Iterable[str], request_id: str = "", **finished: Any) -> list[dict[str, Any]]:
    """The events of a whole answer, as keyword arguments of a response message."""
    ending: dict[str, Any] = {"reason": events_pb2.FINISH_REASON_STOP, **finished}
    deltas = [
        {"delta": events_pb2.Delta(text=piece, tokens=[events_pb2.Token(id=7 + place, logprob=-0.5)])}
        for place, piece in enumerate(pieces)
    ]
    return [
        {"accepted": events_pb2.Accepted(request_id=request_id, prompt_tokens=40, image_tokens=16, seed=99)},
        {"progress": events_pb2.Progress(images_encoded=1, images_total=1)},
        *deltas,
        {"finished": events_pb2.Finished(**ending)},
        {"usage": USAGE},
    ]


def answer_script(*pieces: str, **finished: Any) -> Script:
    """A script that streams a whole answer."""

    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        for event in answer_events(pieces, request.request_id, **finished):
            yield stream_response(**event)

    return script


async def endless_answer(request: Any, context: Any) -> AsyncIterator[Any]:
    """A script that sends one piece and then waits for ever."""
    yield stream_response(delta=events_pb2.Delta(text="first"))
    await asyncio.Event().wait()


async def whole_answer(request: Any, context: Any) -> Any:
    finished = events_pb2.Finished(reason=events_pb2.FINISH_REASON_STOP_SEQUENCE, stop_sequence="\n")
    tokens = [events_pb2.Token(id=7, logprob=-0.5), events_pb2.Token(id=8)]
    answer = inference_pb2.Answer(text="a cat", tokens=tokens, finished=finished)
    return inference_pb2.GenerateResponse(request_id=request.request_id, seed=99, answers=[answer], usage=USAGE)


async def echoing_chat(requests: Any, context: Any) -> AsyncIterator[Any]:
    """A script that answers each turn with its own last text, letter by letter."""
    async for request in requests:
        if request.HasField("setup"):
            yield chat_pb2.ChatResponse(ready=chat_pb2.ChatReady(model=request.setup.model or "tiny"))
        elif request.HasField("turn"):
            text = request.turn.messages[-1].parts[-1].text
            for event in answer_events(text):
                yield chat_pb2.ChatResponse(turn_id=request.turn.turn_id, **event)


def rich_status(code: grpc.StatusCode, message: str, *details: Message) -> tuple[tuple[str, bytes], ...]:
    """Trailers with a google.rpc.Status."""
    status = status_pb2.Status(code=code.value[0], message=message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return (("grpc-status-details-bin", status.SerializeToString()),)


def refusal(code: grpc.StatusCode, message: str, *details: Message, trailers: tuple[Any, ...] = ()) -> Script:
    """A script that refuses the call with rich details."""

    async def script(request: Any, context: Any) -> AsyncIterator[Any]:
        context.set_trailing_metadata((*rich_status(code, message, *details), *trailers))
        await context.abort(code, message)
        yield

    return script


def bad_field(field: str, description: str) -> error_details_pb2.BadRequest:
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=description)
    return error_details_pb2.BadRequest(field_violations=[violation])


MEDIA_GONE = errors_pb2.Failure(code=5, message="nothing held", reason=errors_pb2.ERROR_REASON_MEDIA_NOT_FOUND)


def forgetful(server: ScriptedServer, script: Script, times: int = 1) -> Script:
    """A script that lets go of all media and says so, `times` times, and then goes on as `script`."""
    left = [times]

    async def forgetting(request: Any, context: Any) -> AsyncIterator[Any]:
        if left[0]:
            left[0] -= 1
            server.media.held.clear()
            await refuse(context, grpc.StatusCode.NOT_FOUND, "nothing held", "MEDIA_NOT_FOUND")
        async for response in script(request, context):
            yield response

    return forgetting
