"""The one error table: an exception becomes a reason of the published enum, and each reason has one status code.

    engine exception --> Refusal(reason, message, violations, retry_after) --> reason.code
    ServiceError     -->

Knows gRPC's codes and the engine's exceptions, but no protobuf: `convert.failures` writes a Refusal into messages. An
exception that is not in the table is a bug: the caller gets a fixed text and an id, the log gets the traceback.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum

import grpc

from fanlight_engine.errors import (
    CoreFailureError,
    DigestMismatchError,
    DuplicateRequestError,
    EngineStoppedError,
    MediaStoreError,
    MissingTemplateError,
    OverloadedError,
    Reason,
    RequestError,
    StoreFullError,
    UnknownModelError,
    UnsupportedRequestError,
    UploadOffsetError,
    UploadReplacedError,
    UploadTooLargeError,
    Violation,
)

log = logging.getLogger("fanlight.server")

RETRY_AFTER_RESTART_SECONDS = 1.0
"""Hint while the engine loads or the server drains: long enough for a balancer to look elsewhere."""

RETRY_AFTER_STORE_FULL_SECONDS = 5.0
"""Hint while uploads in use leave no room: about as long as a request holds one."""


class ErrorReason(StrEnum):
    """The names of fanlight.v1.ErrorReason, without their prefix."""

    MALFORMED_MESSAGE = "MALFORMED_MESSAGE"
    UNKNOWN_FIELD = "UNKNOWN_FIELD"
    FIELD_REQUIRED = "FIELD_REQUIRED"
    FIELD_INVALID = "FIELD_INVALID"
    UNSUPPORTED = "UNSUPPORTED"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    MODEL_NOT_FOUND = "MODEL_NOT_FOUND"
    MODALITY_UNSUPPORTED = "MODALITY_UNSUPPORTED"
    TEMPLATE_REFUSED = "TEMPLATE_REFUSED"
    PROMPT_TOO_LONG = "PROMPT_TOO_LONG"
    TOO_MANY_IMAGES = "TOO_MANY_IMAGES"
    IMAGE_COUNT_MISMATCH = "IMAGE_COUNT_MISMATCH"
    IMAGE_FORMAT_UNSUPPORTED = "IMAGE_FORMAT_UNSUPPORTED"
    IMAGE_UNDECODABLE = "IMAGE_UNDECODABLE"
    IMAGE_TOO_LARGE = "IMAGE_TOO_LARGE"
    REQUEST_ID_IN_USE = "REQUEST_ID_IN_USE"
    CHAT_NOT_SET_UP = "CHAT_NOT_SET_UP"
    CHAT_ALREADY_SET_UP = "CHAT_ALREADY_SET_UP"
    TURN_QUEUE_FULL = "TURN_QUEUE_FULL"
    TURN_NOT_FOUND = "TURN_NOT_FOUND"
    TURN_ID_IN_USE = "TURN_ID_IN_USE"
    OVERLOADED = "OVERLOADED"
    DRAINING = "DRAINING"
    ENGINE_UNAVAILABLE = "ENGINE_UNAVAILABLE"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    INTERNAL = "INTERNAL"
    IMAGE_OPTION_INVALID = "IMAGE_OPTION_INVALID"
    TOO_MANY_VIDEOS = "TOO_MANY_VIDEOS"
    VIDEO_UNDECODABLE = "VIDEO_UNDECODABLE"
    VIDEO_TOO_LARGE = "VIDEO_TOO_LARGE"
    VIDEO_OPTION_INVALID = "VIDEO_OPTION_INVALID"
    TENSOR_INVALID = "TENSOR_INVALID"
    EMBEDDINGS_MISMATCH = "EMBEDDINGS_MISMATCH"
    MEDIA_NOT_FOUND = "MEDIA_NOT_FOUND"
    MEDIA_URL_UNAVAILABLE = "MEDIA_URL_UNAVAILABLE"
    UPLOAD_DIGEST_MISMATCH = "UPLOAD_DIGEST_MISMATCH"
    UPLOAD_TOO_LARGE = "UPLOAD_TOO_LARGE"
    MEDIA_STORE_FULL = "MEDIA_STORE_FULL"
    UPLOAD_OFFSET_WRONG = "UPLOAD_OFFSET_WRONG"
    UPLOAD_REPLACED = "UPLOAD_REPLACED"
    MEDIA_TOO_LARGE = "MEDIA_TOO_LARGE"


CODE_BY_REASON: dict[ErrorReason, grpc.StatusCode] = {
    ErrorReason.MALFORMED_MESSAGE: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.UNKNOWN_FIELD: grpc.StatusCode.UNIMPLEMENTED,
    ErrorReason.FIELD_REQUIRED: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.FIELD_INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.UNSUPPORTED: grpc.StatusCode.UNIMPLEMENTED,
    ErrorReason.MESSAGE_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorReason.MODEL_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorReason.MODALITY_UNSUPPORTED: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.TEMPLATE_REFUSED: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.PROMPT_TOO_LONG: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.TOO_MANY_IMAGES: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.IMAGE_COUNT_MISMATCH: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.IMAGE_FORMAT_UNSUPPORTED: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.IMAGE_UNDECODABLE: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.IMAGE_TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.REQUEST_ID_IN_USE: grpc.StatusCode.ALREADY_EXISTS,
    ErrorReason.CHAT_NOT_SET_UP: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorReason.CHAT_ALREADY_SET_UP: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorReason.TURN_QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorReason.TURN_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorReason.TURN_ID_IN_USE: grpc.StatusCode.ALREADY_EXISTS,
    ErrorReason.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorReason.DRAINING: grpc.StatusCode.UNAVAILABLE,
    ErrorReason.ENGINE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorReason.DEADLINE_EXCEEDED: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorReason.INTERNAL: grpc.StatusCode.INTERNAL,
    ErrorReason.IMAGE_OPTION_INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.TOO_MANY_VIDEOS: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.VIDEO_UNDECODABLE: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.VIDEO_TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.VIDEO_OPTION_INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.TENSOR_INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.EMBEDDINGS_MISMATCH: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.MEDIA_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorReason.MEDIA_URL_UNAVAILABLE: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.UPLOAD_DIGEST_MISMATCH: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.UPLOAD_TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorReason.MEDIA_STORE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorReason.UPLOAD_OFFSET_WRONG: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorReason.UPLOAD_REPLACED: grpc.StatusCode.ABORTED,
    ErrorReason.MEDIA_TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
}

_REASON_OF_ENGINE: dict[Reason, ErrorReason] = {
    Reason.INVALID_ARGUMENT: ErrorReason.FIELD_INVALID,
    Reason.EMPTY_PROMPT: ErrorReason.FIELD_REQUIRED,
    Reason.PROMPT_TOO_LONG: ErrorReason.PROMPT_TOO_LONG,
    Reason.SAMPLING_OUT_OF_RANGE: ErrorReason.FIELD_INVALID,
    Reason.TOKEN_OUT_OF_RANGE: ErrorReason.FIELD_INVALID,
    Reason.IMAGE_UNREADABLE: ErrorReason.IMAGE_UNDECODABLE,
    Reason.IMAGE_FORMAT_UNSUPPORTED: ErrorReason.IMAGE_FORMAT_UNSUPPORTED,
    Reason.IMAGE_TOO_LARGE: ErrorReason.IMAGE_TOO_LARGE,
    Reason.TOO_MANY_IMAGES: ErrorReason.TOO_MANY_IMAGES,
    Reason.IMAGE_COUNT_MISMATCH: ErrorReason.IMAGE_COUNT_MISMATCH,
    Reason.MODALITY_UNSUPPORTED: ErrorReason.MODALITY_UNSUPPORTED,
    Reason.IMAGE_OPTION_INVALID: ErrorReason.IMAGE_OPTION_INVALID,
    Reason.VIDEO_UNREADABLE: ErrorReason.VIDEO_UNDECODABLE,
    Reason.VIDEO_TOO_LARGE: ErrorReason.VIDEO_TOO_LARGE,
    Reason.VIDEO_OPTION_INVALID: ErrorReason.VIDEO_OPTION_INVALID,
    Reason.TOO_MANY_VIDEOS: ErrorReason.TOO_MANY_VIDEOS,
    Reason.TENSOR_INVALID: ErrorReason.TENSOR_INVALID,
    Reason.EMBEDDINGS_MISMATCH: ErrorReason.EMBEDDINGS_MISMATCH,
    Reason.MEDIA_TOO_LARGE: ErrorReason.MEDIA_TOO_LARGE,
    Reason.MEDIA_NOT_FOUND: ErrorReason.MEDIA_NOT_FOUND,
    Reason.MEDIA_URL_UNAVAILABLE: ErrorReason.MEDIA_URL_UNAVAILABLE,
    Reason.CHAT_TEMPLATE_MISSING: ErrorReason.TEMPLATE_REFUSED,
    Reason.CHAT_TEMPLATE_FAILED: ErrorReason.TEMPLATE_REFUSED,
    Reason.MODEL_NOT_FOUND: ErrorReason.MODEL_NOT_FOUND,
    Reason.REQUEST_ID_IN_USE: ErrorReason.REQUEST_ID_IN_USE,
    Reason.OVERLOADED: ErrorReason.OVERLOADED,
    Reason.SHUTTING_DOWN: ErrorReason.ENGINE_UNAVAILABLE,
    Reason.ENGINE_FAILURE: ErrorReason.INTERNAL,
}

_REASON_OF_STORE: dict[type[MediaStoreError], ErrorReason] = {
    DigestMismatchError: ErrorReason.UPLOAD_DIGEST_MISMATCH,
    UploadTooLargeError: ErrorReason.UPLOAD_TOO_LARGE,
    StoreFullError: ErrorReason.MEDIA_STORE_FULL,
    UploadOffsetError: ErrorReason.UPLOAD_OFFSET_WRONG,
    UploadReplacedError: ErrorReason.UPLOAD_REPLACED,
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call, an answer or a turn ends without its result. `retry_after` is seconds, None when retrying is vain."""

    reason: ErrorReason
    message: str
    violations: tuple[Violation, ...] = ()
    retry_after: float | None = None

    @property
    def code(self) -> grpc.StatusCode:
        """The status code of its reason."""
        return CODE_BY_REASON[self.reason]


class ServiceError(Exception):
    """What the server itself refuses, before or beside the engine."""

    def __init__(
        self,
        reason: ErrorReason,
        message: str,
        violations: Iterable[Violation] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.refusal = Refusal(reason, message, tuple(violations), retry_after)

    @classmethod
    def of(cls, refusal: Refusal) -> ServiceError:
        """The error that carries a refusal made elsewhere."""
        return ServiceError(refusal.reason, refusal.message, refusal.violations, refusal.retry_after)


class StreamLostError(Exception):
    """The client is gone: nothing more can be written to its stream."""


def field_error(field: str, description: str, reason: ErrorReason = ErrorReason.FIELD_INVALID) -> ServiceError:
    """The error that blames one field; `field` is its path from the request message."""
    return ServiceError(reason, f"{field}: {description}", (Violation(field, description),))


def missing_field(field: str, description: str) -> ServiceError:
    """The error for a required field that is unset or empty."""
    return field_error(field, description, ErrorReason.FIELD_REQUIRED)


def draining_error() -> ServiceError:
    """The error for work that arrives, or is still open, when the server shuts down."""
    return ServiceError(
        ErrorReason.DRAINING,
        "the server is shutting down: send the request to another server, or again in a moment",
        retry_after=RETRY_AFTER_RESTART_SECONDS,
    )


def loading_error() -> ServiceError:
    """The error for work that arrives before the engine is ready."""
    return ServiceError(
        ErrorReason.ENGINE_UNAVAILABLE,
        "the server is still loading its model: send the request again in a moment",
        retry_after=RETRY_AFTER_RESTART_SECONDS,
    )


@contextmanager
def fields_named(name_field: Callable[[str], str]) -> Iterator[None]:
    """Inside, the engine's complaints about fields come out with the paths that `name_field` gives them."""
    try:
        yield
    except RequestError as error:
        raise ServiceError.of(explain(error, "", name_field)) from error


def explain(error: Exception, request_id: str, name_field: Callable[[str], str] = str) -> Refusal:
    """The refusal for an exception. `name_field` turns the engine's field paths into paths of the request message.

    What the table does not hold is logged with its traceback; the caller learns the id to ask about and nothing else.
    """
    refusal = _look_up(error)
    if refusal is None:
        log.error("unexpected exception in request %s", request_id, exc_info=error)
        return Refusal(ErrorReason.INTERNAL, f"internal error of the server, logged there as request {request_id}")
    if isinstance(error, RequestError):
        named = tuple(replace(violation, field=name_field(violation.field)) for violation in refusal.violations)
        message = "; ".join(f"{violation.field}: {violation.description}" for violation in named)
        return replace(refusal, violations=named, message=message)
    return refusal


def _look_up(error: Exception) -> Refusal | None:
    match error:
        case ServiceError():
            return error.refusal
        case RequestError():
            return Refusal(_reason_of_request_error(error), str(error), tuple(error.violations))
        case MediaStoreError() if type(error) in _REASON_OF_STORE:
            return _refusal_of_store(error)
        case DuplicateRequestError():
            return Refusal(ErrorReason.REQUEST_ID_IN_USE, "a request with this id is running; choose another")
        case OverloadedError():
            message = f"too many requests are waiting: try again in {error.retry_after:.1f} s"
            return Refusal(ErrorReason.OVERLOADED, message, retry_after=error.retry_after)
        case EngineStoppedError():
            message = "the engine stopped: send the request again in a moment"
            return Refusal(ErrorReason.ENGINE_UNAVAILABLE, message, retry_after=RETRY_AFTER_RESTART_SECONDS)
        case CoreFailureError():
            message = "the engine failed while computing this request; nothing in the request is known to be wrong"
            return Refusal(ErrorReason.INTERNAL, message)
        case _:
            return None


def _refusal_of_store(error: MediaStoreError) -> Refusal:
    """The store's texts are written for callers, with what was got, the limit and the fix."""
    message = str(error)
    violations = (Violation("offset", message),) if isinstance(error, UploadOffsetError) else ()
    retry_after = RETRY_AFTER_STORE_FULL_SECONDS if isinstance(error, StoreFullError) else None
    return Refusal(_REASON_OF_STORE[type(error)], message, violations, retry_after)


def _reason_of_request_error(error: RequestError) -> ErrorReason:
    """The class says which code it must be; the engine's reason says which of that code's reasons."""
    match error:
        case UnsupportedRequestError():
            return ErrorReason.UNSUPPORTED
        case UnknownModelError():
            return ErrorReason.MODEL_NOT_FOUND
        case MissingTemplateError():
            return ErrorReason.TEMPLATE_REFUSED
        case _:
            return _REASON_OF_ENGINE[error.reason]
