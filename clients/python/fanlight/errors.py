"""What can go wrong, as exceptions, and how a status or a failure message becomes one of them.

    FanlightError               everything below; .code .field .violations .reason .retry_after .request_id
    ├── InvalidRequest          INVALID_ARGUMENT, OUT_OF_RANGE: a field is wrong; .field names it
    │   └── RequestTooLarge     RESOURCE_EXHAUSTED because of the size of the message: waiting does not help
    ├── NotFound                NOT_FOUND: no such model or turn, or nothing held under a digest
    ├── AlreadyExists           ALREADY_EXISTS: the id of a running request or of an earlier turn
    ├── WrongState              FAILED_PRECONDITION, ABORTED: not now, in this order, or beside another upload
    ├── AccessDenied            UNAUTHENTICATED, PERMISSION_DENIED
    ├── Unimplemented           UNIMPLEMENTED: the server does not do this, or is older than the client
    ├── Overloaded              RESOURCE_EXHAUSTED: try again after .retry_after seconds
    ├── Unavailable             UNAVAILABLE: no server there, or it is shutting down
    ├── DeadlineExceeded        DEADLINE_EXCEEDED: the timeout of the call passed
    ├── Cancelled               CANCELLED: by this side, or by Cancel
    └── Internal                INTERNAL, UNKNOWN, DATA_LOSS: a fault of the server, or bytes that changed on the way

This file does not know calls or requests: it reads statuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from fanlight.v1 import errors_pb2

ERROR_DOMAIN = "fanlight"
REQUEST_ID_TRAILER = "fanlight-request-id"
STATUS_DETAILS_TRAILER = "grpc-status-details-bin"
REASON_PREFIX = "ERROR_REASON_"
TOO_LARGE_REASON = "MESSAGE_TOO_LARGE"
MEDIA_GONE_REASON = "MEDIA_NOT_FOUND"


@dataclass(frozen=True)
class FieldViolation:
    """One field of a request that is wrong: its path from the request message, and what is wrong with it."""

    field: str
    description: str


class FanlightError(Exception):
    """A call, an answer or a chat turn failed.

    code         the status code, a grpc.StatusCode
    message      what is wrong, for people
    violations   the fields that are wrong; empty when no field is to blame
    reason       name of a fanlight.v1 ErrorReason without its prefix, such as "PROMPT_TOO_LONG"; None if not given
    retry_after  seconds to wait before trying again; None if the server gave no such hint
    request_id   id of the request; None for calls that have none
    """

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode,
        violations: Iterable[FieldViolation] = (),
        reason: str | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.violations = tuple(violations)
        self.reason = reason
        self.retry_after = retry_after
        self.request_id = request_id

    @property
    def field(self) -> str | None:
        """Path of the first field that is wrong; None when no field is to blame."""
        return self.violations[0].field if self.violations else None

    def __str__(self) -> str:
        field = f" (field {self.field})" if self.field and self.field not in self.message else ""
        return f"{self.code.name}: {self.message}{field}"


class InvalidRequest(FanlightError):
    """A field of the request is wrong."""


class RequestTooLarge(InvalidRequest):
    """The message is larger than the server, or this client, takes."""


class NotFound(FanlightError):
    """There is no such model or turn, or nothing is held under a digest."""


class AlreadyExists(FanlightError):
    """The id is in use."""


class WrongState(FanlightError):
    """The call is right, but not at this time."""


class AccessDenied(FanlightError):
    """The server does not let this caller do this."""


class Unimplemented(FanlightError):
    """The server does not support this."""


class Overloaded(FanlightError):
    """The server has no room now; `retry_after` says when to try again."""


class Unavailable(FanlightError):
    """There is no server there, or it is shutting down."""


class DeadlineExceeded(FanlightError):
    """The timeout of the call passed."""


class Cancelled(FanlightError):
    """The call was cancelled."""


class Internal(FanlightError):
    """A fault of the server."""


ERROR_BY_CODE: dict[grpc.StatusCode, type[FanlightError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.FAILED_PRECONDITION: WrongState,
    grpc.StatusCode.ABORTED: WrongState,
    grpc.StatusCode.UNAUTHENTICATED: AccessDenied,
    grpc.StatusCode.PERMISSION_DENIED: AccessDenied,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
}

CODE_BY_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


class CallStatus(Protocol):
    """How a call ended, as both faces of grpc tell it."""

    def code(self) -> grpc.StatusCode:
        """The status code."""
        ...

    def details(self) -> str | None:
        """The status message."""
        ...

    def trailing_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """The trailers; values are bytes where the key ends in -bin."""
        ...


@contextmanager
def translated_errors(request_id: str | None = None) -> Iterator[None]:
    """Turns a grpc.RpcError, of a blocking or of an awaited call, into a FanlightError."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_call(error, request_id) from error


def error_from_call(error: grpc.RpcError, request_id: str | None = None) -> FanlightError:
    """The exception for a failed call. `request_id` is used when the trailers name none."""
    status = cast(CallStatus, error)
    # Pair by pair: grpc.aio's metadata has keys(), but older versions fail when a dict is made of them.
    trailers = dict(iter(status.trailing_metadata() or ()))
    told_id = trailers.get(REQUEST_ID_TRAILER)
    details = decode_details(trailers.get(STATUS_DETAILS_TRAILER))
    message = status.details() or "the call failed and the server did not say why"
    return make_error(
        status.code(),
        message,
        violations=[FieldViolation(each.field, each.description) for each in details.bad_request.field_violations],
        reason=details.error_info.reason or None,
        retry_after=seconds_or_none(details.retry_info, "retry_delay"),
        request_id=told_id if isinstance(told_id, str) else request_id,
    )


def error_from_failure(failure: errors_pb2.Failure, request_id: str | None = None) -> FanlightError:
    """The exception for a failure that came as a message: of one answer, or of one chat turn."""
    return make_error(
        CODE_BY_NUMBER.get(failure.code, grpc.StatusCode.UNKNOWN),
        failure.message,
        violations=[FieldViolation(each.field, each.description) for each in failure.field_violations],
        reason=reason_name(failure.reason),
        retry_after=seconds_or_none(failure, "retry_after"),
        request_id=request_id,
    )


def media_are_gone(error: FanlightError) -> bool:
    """Whether an error says that the server no longer holds something that the request named."""
    return error.reason == MEDIA_GONE_REASON


def invalid_field(field: str, description: str) -> InvalidRequest:
    """The exception for a field that this client can already see is wrong."""
    return InvalidRequest(
        f"{field}: {description}",
        code=grpc.StatusCode.INVALID_ARGUMENT,
        violations=[FieldViolation(field, description)],
        reason="FIELD_INVALID",
    )


def make_error(
    code: grpc.StatusCode,
    message: str,
    *,
    violations: list[FieldViolation],
    reason: str | None,
    retry_after: float | None,
    request_id: str | None,
) -> FanlightError:
    """The exception of the class that fits the code."""
    kind = ERROR_BY_CODE.get(code, Internal)
    if kind is Overloaded and is_about_size(message, reason):
        kind = RequestTooLarge
    return kind(
        message, code=code, violations=violations, reason=reason, retry_after=retry_after, request_id=request_id
    )


def is_about_size(message: str, reason: str | None) -> bool:
    """Whether a RESOURCE_EXHAUSTED is about the size of the message."""
    # grpc itself refuses large messages, on either side, with no details to read but this text.
    return reason == TOO_LARGE_REASON or (reason is None and "message larger than max" in message)


@dataclass(frozen=True)
class StatusDetails:
    """The details of a google.rpc.Status that this client reads; empty messages for those that are missing."""

    bad_request: error_details_pb2.BadRequest
    error_info: error_details_pb2.ErrorInfo
    retry_info: error_details_pb2.RetryInfo


def decode_details(trailer: str | bytes | None) -> StatusDetails:
    """Reads the serialised google.rpc.Status of a trailer. Details that cannot be read count as missing."""
    found = StatusDetails(error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo())
    if not isinstance(trailer, bytes):
        return found
    with suppress(DecodeError):  # the status code and its text still stand
        for detail in status_pb2.Status.FromString(trailer).details:
            for message in (found.bad_request, found.error_info, found.retry_info):
                if detail.TypeName() == message.DESCRIPTOR.full_name:
                    detail.Unpack(message)
    return found


def reason_name(reason: int) -> str | None:
    """Name of an ErrorReason without its prefix; None for none, and for values newer than this client."""
    if reason == errors_pb2.ERROR_REASON_UNSPECIFIED or reason not in errors_pb2.ErrorReason.values():
        return None
    return errors_pb2.ErrorReason.Name(cast(errors_pb2.ErrorReason, reason)).removeprefix(REASON_PREFIX)


def seconds_or_none(message: errors_pb2.Failure | error_details_pb2.RetryInfo, field: str) -> float | None:
    """The duration in `field` in seconds; None when it is not set."""
    return getattr(message, field).ToTimedelta().total_seconds() if message.HasField(field) else None
