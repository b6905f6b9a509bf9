"""A status becomes the right exception with everything that its details say."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from scripted_server import ScriptedServer, bad_field, endless_answer, refusal, rich_status

import fanlight
from fanlight import AsyncClient, Client
from fanlight.errors import FanlightError, decode_details, reason_name

FIELD = "generation.conversation.messages[1].parts[0].image"


def test_a_bad_field_is_named_with_its_reason(client: Client, server: ScriptedServer) -> None:
    server.stream_script = refusal(
        grpc.StatusCode.INVALID_ARGUMENT,
        "the image is cut off",
        bad_field(FIELD, "cut off"),
        error_details_pb2.ErrorInfo(domain="fanlight", reason="IMAGE_UNDECODABLE"),
    )
    with pytest.raises(fanlight.InvalidRequest) as refused:
        list(client.stream("What?", request_id="mine"))
    error = refused.value
    assert (error.field, error.reason, error.request_id) == (FIELD, "IMAGE_UNDECODABLE", "mine")
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert error.retry_after is None
    assert error.violations == (fanlight.FieldViolation(FIELD, "cut off"),)
    assert str(error) == f"INVALID_ARGUMENT: the image is cut off (field {FIELD})"


async def test_overload_says_when_to_try_again(async_client: AsyncClient, server: ScriptedServer) -> None:
    server.stream_script = refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "the queue is full",
        error_details_pb2.RetryInfo(retry_delay=Duration(seconds=1, nanos=500_000_000)),
        error_details_pb2.ErrorInfo(domain="fanlight", reason="OVERLOADED"),
        trailers=(("fanlight-request-id", "theirs"),),
    )
    with pytest.raises(fanlight.Overloaded) as refused:
        await anext(async_client.stream("What?"))
    assert refused.value.retry_after == 1.5
    assert refused.value.request_id == "theirs"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.NOT_FOUND, fanlight.NotFound),
        (grpc.StatusCode.ALREADY_EXISTS, fanlight.AlreadyExists),
        (grpc.StatusCode.FAILED_PRECONDITION, fanlight.WrongState),
        (grpc.StatusCode.UNAUTHENTICATED, fanlight.AccessDenied),
        (grpc.StatusCode.UNIMPLEMENTED, fanlight.Unimplemented),
        (grpc.StatusCode.UNAVAILABLE, fanlight.Unavailable),
        (grpc.StatusCode.CANCELLED, fanlight.Cancelled),
        (grpc.StatusCode.INTERNAL, fanlight.Internal),
        (grpc.StatusCode.UNKNOWN, fanlight.Internal),
        (grpc.StatusCode.DATA_LOSS, fanlight.Internal),
    ],
)
def test_each_code_has_its_exception(
    client: Client, server: ScriptedServer, code: grpc.StatusCode, kind: type[FanlightError]
) -> None:
    server.stream_script = refusal(code, "no")
    with pytest.raises(kind) as refused:
        list(client.stream("What?"))
    assert refused.value.code is code
    assert type(refused.value) is kind


def test_a_message_that_the_server_finds_too_large_is_no_overload(client: Client) -> None:
    with pytest.raises(fanlight.RequestTooLarge):
        client.generate("What?", images=[bytes(17 * 1024 * 1024)])


async def test_a_message_beyond_the_clients_own_limit_is_refused_alike(async_client: AsyncClient) -> None:
    with pytest.raises(fanlight.RequestTooLarge):
        await async_client.generate("What?", images=[bytes(33 * 1024 * 1024)])


def test_a_timeout_is_a_deadline(client: Client, server: ScriptedServer) -> None:
    server.stream_script = endless_answer
    with pytest.raises(fanlight.DeadlineExceeded):
        list(client.stream("What?", timeout=0.2))


async def test_a_whole_answer_that_is_refused(async_client: AsyncClient, server: ScriptedServer) -> None:
    async def refuse(request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no model 'big'")

    server.generate_script = refuse
    with pytest.raises(fanlight.NotFound) as refused:
        await async_client.generate("What?", model="big", request_id="mine")
    assert refused.value.request_id == "mine"
    assert refused.value.reason is None


def test_no_server_is_unavailable() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(fanlight.Unavailable):
        client.server_info()


def test_details_that_cannot_be_read_count_as_missing() -> None:
    assert decode_details(b"\xff\xff").error_info.reason == ""
    assert decode_details(None).bad_request.field_violations == []
    trailer = rich_status(grpc.StatusCode.INTERNAL, "no", error_details_pb2.DebugInfo(detail="not for clients"))
    assert decode_details(trailer[0][1]).error_info.reason == ""


def test_a_reason_newer_than_the_client_is_none() -> None:
    assert reason_name(10) == "PROMPT_TOO_LONG"
    assert reason_name(0) is None
    assert reason_name(9999) is None


def test_a_client_can_be_made_in_any_loop() -> None:
    async def ask() -> None:
        async with AsyncClient("127.0.0.1:1") as client:
            with pytest.raises(fanlight.Unavailable):
                await client.models()

    asyncio.run(ask())
