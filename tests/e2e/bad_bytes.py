"""Calls that are refused before there is a message: broken bytes, unknown fields, and sizes beyond the limits."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
import grpc.aio

from fanlight.errors import FanlightError, error_from_call
from fanlight_server.rpc.options import MAX_RECEIVE_MESSAGE_BYTES
from tests.e2e.bad_input import asking, text

GENERATE = "/fanlight.v1.InferenceService/Generate"
_START_GROUP_100 = b"\xa3\x06"
_END_GROUP_100 = b"\xa4\x06"
_FIELD_2000 = b"\x82\x7d\x02hi"
_UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_metadata_size", 1 << 20)]


@dataclass(frozen=True)
class BadBytes:
    """What is sent, and the status and reason that it gets. A reason of None: gRPC itself refuses, without details."""

    name: str
    data: bytes
    code: grpc.StatusCode
    reason: str | None
    metadata: tuple[tuple[str, str], ...] = ()
    compression: grpc.Compression = grpc.Compression.NoCompression


def bad_bytes() -> list[BadBytes]:
    """Every row."""
    fine = asking(text("AAAAAAAA"), max_new_tokens=1).SerializeToString()
    malformed, exhausted = "MALFORMED_MESSAGE", grpc.StatusCode.RESOURCE_EXHAUSTED
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    too_large = bytes(MAX_RECEIVE_MESSAGE_BYTES + 1)
    return [
        BadBytes("malformed bytes", b"\xff\xff\xff", invalid, malformed),
        BadBytes("a message cut short", fine[:-3], invalid, malformed),
        BadBytes("text that is not UTF-8", fine.replace(b"AAAAAAAA", b"AAA\xff\xfeAAA"), invalid, malformed),
        BadBytes("nesting of 150", _START_GROUP_100 * 150 + _END_GROUP_100 * 150, invalid, malformed),
        BadBytes("an unknown field", fine + _FIELD_2000, grpc.StatusCode.UNIMPLEMENTED, "UNKNOWN_FIELD"),
        BadBytes("a message above the limit", too_large, exhausted, None),
        BadBytes("a gzip bomb", too_large, exhausted, None, compression=grpc.Compression.Gzip),
        BadBytes("17 KiB of metadata", fine, exhausted, None, metadata=(("x-long", "a" * (17 << 10)),)),
    ]


async def refusal_of_bytes(address: str, bad: BadBytes) -> FanlightError:
    """Send bytes that must be refused, on a connection of their own, and return how they were."""
    async with grpc.aio.insecure_channel(address, _UNLIMITED) as channel:
        call = channel.unary_unary(GENERATE)
        try:
            answer = await call(bad.data, metadata=bad.metadata, compression=bad.compression)
        except grpc.aio.AioRpcError as error:
            return error_from_call(error)
    raise AssertionError(f"it was answered: {answer!r}")
