"""Refusals -> google.rpc.Status (the status of a call) and fanlight.v1.Failure (a message, because the call goes on).

Details stay below 4 KiB and 10 violations: more arrives at a client as RESOURCE_EXHAUSTED instead of as itself.
"""

from __future__ import annotations

import math

from google.rpc import error_details_pb2, status_pb2

from fanlight.v1 import errors_pb2
from fanlight_server.convert.values import duration_of
from fanlight_server.status import Refusal

ERROR_DOMAIN = "fanlight"
REQUEST_ID_TRAILER = "fanlight-request-id"
STATUS_DETAILS_TRAILER = "grpc-status-details-bin"
RETRY_PUSHBACK_TRAILER = "grpc-retry-pushback-ms"
MAX_VIOLATIONS = 10
MAX_DETAILS_BYTES = 4096
_MAX_MESSAGE_BYTES = 1024
_MAX_DESCRIPTION_BYTES = 512


def trailers_of(refusal: Refusal, request_id: str) -> tuple[tuple[str, str | bytes], ...]:
    """Trailing metadata of a refused call."""
    trailers: list[tuple[str, str | bytes]] = [
        (REQUEST_ID_TRAILER, request_id),
        (STATUS_DETAILS_TRAILER, rich_status_of(refusal, request_id).SerializeToString()),
    ]
    if refusal.retry_after is not None:
        trailers.append((RETRY_PUSHBACK_TRAILER, str(math.ceil(refusal.retry_after * 1000))))
    return tuple(trailers)


def status_text_of(refusal: Refusal) -> str:
    """The text of a status, cut to a length that always fits."""
    return _cut(refusal.message, _MAX_MESSAGE_BYTES)


def rich_status_of(refusal: Refusal, request_id: str) -> status_pb2.Status:
    """The refusal with all its details, the last violations left out where they would not fit."""
    violations = list(_violations(refusal))
    while True:
        status = _rich_status(refusal, request_id, violations)
        if status.ByteSize() <= MAX_DETAILS_BYTES or not violations:
            return status
        violations.pop()


def failure_of(refusal: Refusal) -> errors_pb2.Failure:
    """The refusal as a message."""
    return errors_pb2.Failure(
        code=_number(refusal),
        message=status_text_of(refusal),
        reason=f"ERROR_REASON_{refusal.reason}",
        field_violations=[
            errors_pb2.FieldViolation(field=field, description=description)
            for field, description in _violations(refusal)
        ],
        retry_after=None if refusal.retry_after is None else duration_of(refusal.retry_after),
    )


def _rich_status(refusal: Refusal, request_id: str, violations: list[tuple[str, str]]) -> status_pb2.Status:
    status = status_pb2.Status(code=_number(refusal), message=status_text_of(refusal))
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=refusal.reason, domain=ERROR_DOMAIN))
    status.details.add().Pack(error_details_pb2.RequestInfo(request_id=request_id))
    if violations:
        bad_request = error_details_pb2.BadRequest()
        for field, description in violations:
            bad_request.field_violations.add(field=field, description=description)
        status.details.add().Pack(bad_request)
    if refusal.retry_after is not None:
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=duration_of(refusal.retry_after)))
    return status


def _violations(refusal: Refusal) -> tuple[tuple[str, str], ...]:
    return tuple(
        (_cut(violation.field, _MAX_DESCRIPTION_BYTES), _cut(violation.description, _MAX_DESCRIPTION_BYTES))
        for violation in refusal.violations[:MAX_VIOLATIONS]
    )


def _number(refusal: Refusal) -> int:
    return refusal.code.value[0]


def _cut(text: str, limit: int) -> str:
    """At most `limit` bytes of UTF-8, and never a part of a character."""
    encoded = text.encode("utf-8", errors="replace")
    return text if len(encoded) <= limit else encoded[: limit - 3].decode("utf-8", errors="ignore") + "..."
