"""Exceptions of the engine; knows nothing of gRPC codes (the server has one table that maps these to statuses).

EngineError
├── RequestError                 the caller's fault; names the field
│   ├── InvalidRequestError      a value is malformed, out of range, or can never fit
│   ├── UnsupportedRequestError  well formed, but this build or this checkpoint cannot do it
│   ├── UnknownModelError        names a model that is not served
│   ├── UnknownMediaError        names an upload or embeddings that are not held for this caller
│   └── MissingTemplateError     a conversation for a checkpoint without a chat template
├── MediaStoreError              an upload was refused
│   ├── DigestMismatchError      the uploaded bytes are not those that were announced
│   ├── UploadTooLargeError      the upload is larger than any single one may be
│   ├── StoreFullError           what is held and in use leaves no room
│   ├── UploadOffsetError        a resumed upload does not begin where the committed bytes end
│   └── UploadReplacedError      another upload of the same digest took over
├── DuplicateRequestError        the request id is in use
├── OverloadedError              the waiting queue is full; carries retry_after
├── EngineStoppedError           the core is stopping or dead
├── CoreFailureError             the core failed while computing this request
└── StartupError                 the process cannot serve
    ├── ConfigError              a setting is unknown, malformed or contradictory
    └── CheckpointError          the checkpoint cannot be loaded or is not supported
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_LONGEST_QUOTE = 400


class Reason(StrEnum):
    """Stable machine-readable reason of a refused request; the contract publishes the same names."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    EMPTY_PROMPT = "EMPTY_PROMPT"
    PROMPT_TOO_LONG = "PROMPT_TOO_LONG"
    SAMPLING_OUT_OF_RANGE = "SAMPLING_OUT_OF_RANGE"
    TOKEN_OUT_OF_RANGE = "TOKEN_OUT_OF_RANGE"
    IMAGE_UNREADABLE = "IMAGE_UNREADABLE"
    IMAGE_FORMAT_UNSUPPORTED = "IMAGE_FORMAT_UNSUPPORTED"
    IMAGE_TOO_LARGE = "IMAGE_TOO_LARGE"
    TOO_MANY_IMAGES = "TOO_MANY_IMAGES"
    IMAGE_COUNT_MISMATCH = "IMAGE_COUNT_MISMATCH"
    MODALITY_UNSUPPORTED = "MODALITY_UNSUPPORTED"
    IMAGE_OPTION_INVALID = "IMAGE_OPTION_INVALID"
    VIDEO_UNREADABLE = "VIDEO_UNREADABLE"
    VIDEO_TOO_LARGE = "VIDEO_TOO_LARGE"
    VIDEO_OPTION_INVALID = "VIDEO_OPTION_INVALID"
    TOO_MANY_VIDEOS = "TOO_MANY_VIDEOS"
    TENSOR_INVALID = "TENSOR_INVALID"
    EMBEDDINGS_MISMATCH = "EMBEDDINGS_MISMATCH"
    MEDIA_TOO_LARGE = "MEDIA_TOO_LARGE"
    MEDIA_NOT_FOUND = "MEDIA_NOT_FOUND"
    MEDIA_URL_UNAVAILABLE = "MEDIA_URL_UNAVAILABLE"
    CHAT_TEMPLATE_MISSING = "CHAT_TEMPLATE_MISSING"
    CHAT_TEMPLATE_FAILED = "CHAT_TEMPLATE_FAILED"
    MODEL_NOT_FOUND = "MODEL_NOT_FOUND"
    REQUEST_ID_IN_USE = "REQUEST_ID_IN_USE"
    OVERLOADED = "OVERLOADED"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    ENGINE_FAILURE = "ENGINE_FAILURE"


@dataclass(frozen=True, slots=True)
class Violation:
    """One offending field: `field` is a path below the Generation, `description` says what, the limit and the fix."""

    field: str
    description: str


class EngineError(Exception):
    """Base of everything the engine raises on purpose."""


class RequestError(EngineError):
    """A request was refused because of what it says."""

    def __init__(self, field: str, description: str, reason: Reason = Reason.INVALID_ARGUMENT) -> None:
        super().__init__(f"{field}: {description}")
        self.violations: tuple[Violation, ...] = (Violation(field, description),)
        self.reason = reason


class InvalidRequestError(RequestError):
    """A value is malformed, out of range, or can never fit."""


class UnsupportedRequestError(RequestError):
    """Well formed, but this build or this checkpoint cannot do it."""


class UnknownModelError(RequestError):
    """Names a model that is not served."""


class UnknownMediaError(RequestError):
    """Names an upload or embeddings that are not held for this caller: never sent, dropped, or somebody else's."""

    def __init__(self, field: str, description: str) -> None:
        super().__init__(field, description, Reason.MEDIA_NOT_FOUND)


class MissingTemplateError(RequestError):
    """A conversation was sent to a checkpoint that ships no chat template."""


class MediaStoreError(EngineError):
    """An upload was refused; its text says what, the limit and the fix."""


class DigestMismatchError(MediaStoreError):
    """The uploaded bytes have another digest, or another length, than was announced; nothing of them is kept."""


class UploadTooLargeError(MediaStoreError):
    """The upload is larger than any single one may be."""


class StoreFullError(MediaStoreError):
    """What is held and in use leaves no room; nothing of the upload is kept."""


class UploadOffsetError(MediaStoreError):
    """A resumed upload does not begin at `committed_bytes`, where what the store has of it ends."""

    def __init__(self, message: str, committed_bytes: int) -> None:
        super().__init__(message)
        self.committed_bytes = committed_bytes


class UploadReplacedError(MediaStoreError):
    """Another upload of the same digest by the same caller began; the newest goes on."""


class DuplicateRequestError(EngineError):
    """The request id is already in use by a running request of the same principal."""


class OverloadedError(EngineError):
    """The waiting queue is full. `retry_after` is an estimate in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineStoppedError(EngineError):
    """The core is stopping or dead; nothing new is accepted."""


class CoreFailureError(EngineError):
    """The core failed while computing this request; its neighbours were not touched."""


class StartupError(EngineError):
    """The process cannot serve."""


class ConfigError(StartupError):
    """A setting is unknown, malformed or contradictory."""


class CheckpointError(StartupError):
    """The checkpoint cannot be loaded, or is of a kind that is not supported."""


def in_one_line(error: BaseException) -> str:
    """What an exception of a library says, for an error of ours: on one line, and the beginning of what is long."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= _LONGEST_QUOTE else f"{words[:_LONGEST_QUOTE]}..."
