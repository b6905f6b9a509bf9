"""Bad requests over a socket: each gets its status, the path of its field, and a text without names of types."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest

from fanlight.v1 import errors_pb2, generation_pb2, inference_pb2, media_pb2, model_pb2
from fanlight_engine.errors import (
    DigestMismatchError,
    InvalidRequestError,
    MediaStoreError,
    Reason,
    StoreFullError,
    UnknownMediaError,
    UnsupportedRequestError,
    UploadOffsetError,
    UploadReplacedError,
    UploadTooLargeError,
    Violation,
)
from fanlight_server.convert.failures import MAX_DETAILS_BYTES, rich_status_of
from fanlight_server.status import CODE_BY_REASON, ErrorReason, Refusal, explain
from tests.server.conftest import Served
from tests.server.messages import conversation, generate, read_refusal, refusal, stream, user

GENERATE = "/fanlight.v1.InferenceService/Generate"
STREAM = "/fanlight.v1.InferenceService/GenerateStream"
CHAT = "/fanlight.v1.InferenceService/Chat"

INVALID = grpc.StatusCode.INVALID_ARGUMENT
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED
UPLOAD = "/fanlight.v1.MediaService/UploadMedia"
DOWNLOAD = "/fanlight.v1.MediaService/DownloadMedia"


def message(*parts: generation_pb2.Part, role: Any = generation_pb2.ROLE_USER) -> generation_pb2.Generation:
    return conversation(generation_pb2.Message(role=role, parts=parts))


TEXT = generation_pb2.Part(text="Hi")

REFUSED: dict[str, tuple[Any, grpc.StatusCode, str, str]] = {
    "no generation": (inference_pb2.GenerateRequest(), INVALID, "FIELD_REQUIRED", "generation"),
    "no prompt": (generation_pb2.Generation(), INVALID, "FIELD_REQUIRED", "generation.prompt"),
    "empty conversation": (
        generation_pb2.Generation(conversation=generation_pb2.Conversation()),
        INVALID,
        "FIELD_REQUIRED",
        "generation.conversation.messages",
    ),
    "no role": (message(TEXT, role=0), INVALID, "FIELD_REQUIRED", "generation.conversation.messages[0].role"),
    "unknown role": (message(TEXT, role=77), INVALID, "FIELD_INVALID", "generation.conversation.messages[0].role"),
    "no parts": (message(), INVALID, "FIELD_REQUIRED", "generation.conversation.messages[0].parts"),
    "empty part": (
        message(TEXT, generation_pb2.Part()),
        INVALID,
        "FIELD_REQUIRED",
        "generation.conversation.messages[0].parts[1]",
    ),
    "image without a source": (
        message(TEXT, generation_pb2.Part(image=media_pb2.Image())),
        INVALID,
        "FIELD_REQUIRED",
        "generation.conversation.messages[0].parts[1].image",
    ),
    "empty raw prompt": (
        generation_pb2.Generation(raw=generation_pb2.RawPrompt()),
        INVALID,
        "FIELD_REQUIRED",
        "generation.raw.parts",
    ),
    "image of a token prompt without a source": (
        generation_pb2.Generation(tokens=generation_pb2.TokensPrompt(ids=[1], images=[media_pb2.Image()])),
        INVALID,
        "FIELD_REQUIRED",
        "generation.tokens.images[0]",
    ),
    "nothing to send back": (
        generation_pb2.Generation(
            conversation=conversation().conversation,
            config=generation_pb2.GenerationConfig(output=generation_pb2.OutputOptions(text=False)),
        ),
        INVALID,
        "FIELD_INVALID",
        "generation.config.output",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_is_missing_is_named(served: Served, case: str) -> None:
    request, code, reason, field = REFUSED[case]
    if isinstance(request, generation_pb2.Generation):
        request = inference_pb2.GenerateRequest(generation=request)
    refused = await refusal(served.inference.Generate(request))
    assert (refused.code, refused.reason, refused.domain) == (code, reason, "fanlight")
    assert refused.fields == [field]
    assert refused.text.startswith(f"{field}: ")
    assert refused.request_id == refused.trailers["fanlight-request-id"] != ""
    assert served.backend.generations == []


async def test_the_engines_paths_come_out_below_generation(served: Served) -> None:
    served.backend.by_hand = True
    call = served.inference.Generate(generate())
    error = InvalidRequestError("conversation.messages[1].parts[0].image", "is no image")
    (await served.backend.next_run()).fail(error)
    refused = await refusal(call)
    assert refused.fields == ["generation.conversation.messages[1].parts[0].image"]
    assert refused.text == "generation.conversation.messages[1].parts[0].image: is no image"


@pytest.mark.parametrize(
    "raw", [b"\xff\xff\xff", b"\x12\x7f\x01", b"\x0a\x02\xff\xfe"], ids=["garbage", "cut off", "not UTF-8"]
)
@pytest.mark.parametrize("method", [GENERATE, STREAM, CHAT, UPLOAD, DOWNLOAD])
async def test_malformed_bytes_are_refused_without_names_of_types(served: Served, method: str, raw: bytes) -> None:
    refused = await raw_refusal(served, method, raw)
    assert (refused.code, refused.reason) == (INVALID, "MALFORMED_MESSAGE")
    for name in ("Request", "protobuf", "fanlight.v1", "Error", "0x"):
        assert name not in refused.text


async def test_malformed_bytes_are_refused_by_health_and_reflection_too(served: Served) -> None:
    for method in ("/grpc.health.v1.Health/Check", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"):
        refused = await raw_refusal(served, method, b"\xff\xff\xff")
        assert (refused.code, refused.reason) == (INVALID, "MALFORMED_MESSAGE")


async def test_deep_nesting_is_refused(served: Served) -> None:
    groups = b"\xfb\x01" * 150 + b"\xfc\x01" * 150  # groups of an unknown field number, each inside the other
    assert (await raw_refusal(served, GENERATE, groups)).code is INVALID


async def test_unknown_fields_are_refused_with_path_and_number(served: Served) -> None:
    unknown = b"\x98\x06\x01"  # field 99
    request = generate(conversation=conversation(user("a"), user("b")).conversation)
    parts = request.generation.conversation.messages[1].parts
    parts[0].MergeFromString(unknown)
    request.generation.config.sampling.MergeFromString(unknown)
    refused = await refusal(served.inference.Generate(request))
    assert (refused.code, refused.reason) == (UNIMPLEMENTED, "UNKNOWN_FIELD")
    assert refused.fields == ["generation.conversation.messages[1].parts[0]", "generation.config.sampling"]
    assert "99" in refused.text
    top = await raw_refusal(served, GENERATE, unknown)
    assert (top.code, top.fields) == (UNIMPLEMENTED, ["the request message"])


async def test_an_unknown_method_is_unimplemented(served: Served) -> None:
    refused = await raw_refusal(served, "/fanlight.v1.InferenceService/Divine", b"")
    assert (refused.code, refused.reason) == (UNIMPLEMENTED, "UNSUPPORTED")


async def test_an_unknown_model_is_not_found(served: Served) -> None:
    refused = await refusal(served.models.GetModel(model_pb2.GetModelRequest(name="gpt")))
    assert (refused.code, refused.reason, refused.fields) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND", ["name"])


async def test_cancel_without_an_id_is_refused(served: Served) -> None:
    refused = await refusal(served.inference.Cancel(inference_pb2.CancelRequest()))
    assert (refused.code, refused.fields) == (INVALID, ["request_id"])


async def test_a_message_above_the_limit_is_refused(served: Served) -> None:
    image = generation_pb2.Part(image=media_pb2.Image(data=bytes(33 << 20)))
    refused = await refusal(served.inference.Generate(inference_pb2.GenerateRequest(generation=message(image))))
    assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_an_image_above_the_default_limit_of_grpc_arrives(served: Served) -> None:
    image = generation_pb2.Part(image=media_pb2.Image(data=bytes(8 << 20)))
    response = await served.inference.Generate(inference_pb2.GenerateRequest(generation=message(image)))
    assert response.answers[0].text == "Hello world"


async def test_the_server_answers_after_all_of_this(served: Served) -> None:
    for _ in range(3):
        await raw_refusal(served, GENERATE, b"\xff")
    responses = [response async for response in served.inference.GenerateStream(stream())]
    assert responses[-1].WhichOneof("event") == "usage"


def test_details_stay_small_however_much_is_wrong() -> None:
    violations = tuple(Violation(f"generation.field[{i}]" * 20, "is wrong: \u00fc" * 200) for i in range(100))
    status = rich_status_of(Refusal(ErrorReason.FIELD_INVALID, "x" * 100_000, violations), "id" * 64)
    assert status.ByteSize() <= MAX_DETAILS_BYTES
    assert len(status.details) >= 2, "reason and request id are always there"


def test_the_table_has_every_reason_of_the_contract_and_no_other() -> None:
    published = {name.removeprefix("ERROR_REASON_") for name, _ in errors_pb2.ErrorReason.items()} - {"UNSPECIFIED"}
    assert {reason.value for reason in ErrorReason} == published
    assert set(CODE_BY_REASON) == set(ErrorReason)


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_of_the_engine_has_one_of_the_contract(reason: Reason) -> None:
    refused = explain(InvalidRequestError("prompt", "is wrong", reason), "id")
    assert refused.reason in CODE_BY_REASON
    if reason.value in ErrorReason.__members__:
        assert refused.reason.value == reason.value


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (UnknownMediaError("f", "is not held"), "NOT_FOUND", "MEDIA_NOT_FOUND"),
        (UnsupportedRequestError("f", "no URLs here"), "UNIMPLEMENTED", "UNSUPPORTED"),
        (InvalidRequestError("f", "is none", Reason.VIDEO_UNREADABLE), "INVALID_ARGUMENT", "VIDEO_UNDECODABLE"),
        (DigestMismatchError("other bytes"), "INVALID_ARGUMENT", "UPLOAD_DIGEST_MISMATCH"),
        (UploadTooLargeError("too many"), "INVALID_ARGUMENT", "UPLOAD_TOO_LARGE"),
        (StoreFullError("full"), "RESOURCE_EXHAUSTED", "MEDIA_STORE_FULL"),
        (UploadOffsetError("begin at 7", 7), "FAILED_PRECONDITION", "UPLOAD_OFFSET_WRONG"),
        (UploadReplacedError("another one"), "ABORTED", "UPLOAD_REPLACED"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_refusals_of_media_have_their_status(error: Exception, code: str, reason: str) -> None:
    refused = explain(error, "id")
    assert (refused.code.name, refused.reason.value) == (code, reason)
    assert refused.message.endswith(str(error))


def test_a_refusal_of_the_store_that_nobody_foresaw_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    refused = explain(MediaStoreError("in /secret/file"), "id")
    assert refused.reason is ErrorReason.INTERNAL
    assert "secret" not in refused.message
    assert "secret" in caplog.text


async def raw_refusal(served: Served, method: str, raw: bytes) -> Any:
    """Send bytes as they are; the shape of the method does not matter to a client that reads one answer."""
    call = served.channel.stream_stream(method)(iter([raw]))
    try:
        await call.read()
        code = await call.code()
    except grpc.aio.AioRpcError as error:
        return read_refusal(error)
    raise AssertionError(f"the call ended {code}")
