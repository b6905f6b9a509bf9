"""Exceptions of the engine; knows nothing of gRPC codes (the server has one table that maps these to statuses).

EngineError
├── RequestError                 the caller's fault; names the field
│   ├── InvalidRequestError      a value is malformed, out of range, or can never fit
│   ├── UnsupportedRequestError  well formed, but this build or this checkpoint cannot do it
│   ├── UnknownModelError        names a model that is not served
│   └── MissingTemplateError     a conversation for a checkpoint without a chat template
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
        self.violations = (Violation(field, description),)
        self.reason = reason


class InvalidRequestError(RequestError):
    """A value is malformed, out of range, or can never fit."""


class UnsupportedRequestError(RequestError):
    """Well formed, but this build or this checkpoint cannot do it."""


class UnknownModelError(RequestError):
    """Names a model that is not served."""


class MissingTemplateError(RequestError):
    """A conversation was sent to a checkpoint that ships no chat template."""


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
