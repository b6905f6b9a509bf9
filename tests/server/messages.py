"""Short ways to write requests, and to read what came back."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from fanlight.v1 import chat_pb2, generation_pb2, inference_pb2

_END_OF_STREAM = vars(grpc.aio)["EOF"]


def user(text: str) -> generation_pb2.Message:
    return generation_pb2.Message(role=generation_pb2.ROLE_USER, parts=[generation_pb2.Part(text=text)])


def conversation(*messages: generation_pb2.Message) -> generation_pb2.Generation:
    return generation_pb2.Generation(conversation=generation_pb2.Conversation(messages=messages or (user("Hi"),)))


def generate(request_id: str | None = None, **generation: Any) -> inference_pb2.GenerateRequest:
    made = generation_pb2.Generation(**generation) if generation else conversation()
    return inference_pb2.GenerateRequest(request_id=request_id, generation=made)


def stream(request_id: str | None = None, **generation: Any) -> inference_pb2.GenerateStreamRequest:
    made = generation_pb2.Generation(**generation) if generation else conversation()
    return inference_pb2.GenerateStreamRequest(request_id=request_id, generation=made)


def setup(**fields: Any) -> chat_pb2.ChatRequest:
    return chat_pb2.ChatRequest(setup=chat_pb2.ChatSetup(**fields))


def turn(text: str, **fields: Any) -> chat_pb2.ChatRequest:
    return chat_pb2.ChatRequest(turn=chat_pb2.ChatTurn(messages=[user(text)], **fields))


def interrupt(turn_id: str | None = None) -> chat_pb2.ChatRequest:
    return chat_pb2.ChatRequest(interrupt=chat_pb2.ChatInterrupt(turn_id=turn_id))


def kinds(responses: Iterable[Any]) -> list[str]:
    return [response.WhichOneof("event") for response in responses]


async def rest_of(call: Any) -> list[Any]:
    """What a stream still says, up to its end; for calls that are read message by message."""
    responses = []
    while (response := await call.read()) is not _END_OF_STREAM:
        responses.append(response)
    return responses


@dataclass(frozen=True)
class Refused:
    """The status of a failed call, with its details unpacked."""

    code: grpc.StatusCode
    text: str
    fields: list[str]
    reason: str
    domain: str
    retry_seconds: float | None
    request_id: str
    trailers: dict[str, Any]
    details_bytes: int


async def refusal(call: Awaitable[Any]) -> Refused:
    """Await a call that must fail, and read its status."""
    try:
        result = await call
    except grpc.aio.AioRpcError as error:
        return read_refusal(error)
    raise AssertionError(f"the call succeeded: {result}")


def read_refusal(error: grpc.aio.AioRpcError) -> Refused:
    trailers = dict(error.trailing_metadata())
    raw = trailers.get("grpc-status-details-bin", b"")
    assert isinstance(raw, bytes)
    bad, info = error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo()
    retry, request = error_details_pb2.RetryInfo(), error_details_pb2.RequestInfo()
    for detail in status_pb2.Status.FromString(raw).details:
        for message in (bad, info, retry, request):
            if detail.TypeName() == message.DESCRIPTOR.full_name:
                detail.Unpack(message)
    return Refused(
        code=error.code(),
        text=error.details() or "",
        fields=[violation.field for violation in bad.field_violations],
        reason=info.reason,
        domain=info.domain,
        retry_seconds=retry.retry_delay.ToTimedelta().total_seconds() if retry.HasField("retry_delay") else None,
        request_id=request.request_id,
        trailers=trailers,
        details_bytes=len(raw),
    )
