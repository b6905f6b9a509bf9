from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_MALFORMED_MESSAGE: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_FIELD: _ClassVar[ErrorReason]
    ERROR_REASON_FIELD_REQUIRED: _ClassVar[ErrorReason]
    ERROR_REASON_FIELD_INVALID: _ClassVar[ErrorReason]
    ERROR_REASON_UNSUPPORTED: _ClassVar[ErrorReason]
    ERROR_REASON_MESSAGE_TOO_LARGE: _ClassVar[ErrorReason]
    ERROR_REASON_MODEL_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_MODALITY_UNSUPPORTED: _ClassVar[ErrorReason]
    ERROR_REASON_TEMPLATE_REFUSED: _ClassVar[ErrorReason]
    ERROR_REASON_PROMPT_TOO_LONG: _ClassVar[ErrorReason]
    ERROR_REASON_TOO_MANY_IMAGES: _ClassVar[ErrorReason]
    ERROR_REASON_IMAGE_COUNT_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_IMAGE_FORMAT_UNSUPPORTED: _ClassVar[ErrorReason]
    ERROR_REASON_IMAGE_UNDECODABLE: _ClassVar[ErrorReason]
    ERROR_REASON_IMAGE_TOO_LARGE: _ClassVar[ErrorReason]
    ERROR_REASON_REQUEST_ID_IN_USE: _ClassVar[ErrorReason]
    ERROR_REASON_CHAT_NOT_SET_UP: _ClassVar[ErrorReason]
    ERROR_REASON_CHAT_ALREADY_SET_UP: _ClassVar[ErrorReason]
    ERROR_REASON_TURN_QUEUE_FULL: _ClassVar[ErrorReason]
    ERROR_REASON_TURN_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_TURN_ID_IN_USE: _ClassVar[ErrorReason]
    ERROR_REASON_OVERLOADED: _ClassVar[ErrorReason]
    ERROR_REASON_DRAINING: _ClassVar[ErrorReason]
    ERROR_REASON_ENGINE_UNAVAILABLE: _ClassVar[ErrorReason]
    ERROR_REASON_DEADLINE_EXCEEDED: _ClassVar[ErrorReason]
    ERROR_REASON_INTERNAL: _ClassVar[ErrorReason]
    ERROR_REASON_IMAGE_OPTION_INVALID: _ClassVar[ErrorReason]
    ERROR_REASON_TOO_MANY_VIDEOS: _ClassVar[ErrorReason]
    ERROR_REASON_VIDEO_UNDECODABLE: _ClassVar[ErrorReason]
    ERROR_REASON_VIDEO_TOO_LARGE: _ClassVar[ErrorReason]
    ERROR_REASON_VIDEO_OPTION_INVALID: _ClassVar[ErrorReason]
    ERROR_REASON_TENSOR_INVALID: _ClassVar[ErrorReason]
    ERROR_REASON_EMBEDDINGS_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_MEDIA_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_MEDIA_URL_UNAVAILABLE: _ClassVar[ErrorReason]
    ERROR_REASON_UPLOAD_DIGEST_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_UPLOAD_TOO_LARGE: _ClassVar[ErrorReason]
    ERROR_REASON_MEDIA_STORE_FULL: _ClassVar[ErrorReason]
    ERROR_REASON_UPLOAD_OFFSET_WRONG: _ClassVar[ErrorReason]
    ERROR_REASON_UPLOAD_REPLACED: _ClassVar[ErrorReason]
    ERROR_REASON_MEDIA_TOO_LARGE: _ClassVar[ErrorReason]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_MALFORMED_MESSAGE: ErrorReason
ERROR_REASON_UNKNOWN_FIELD: ErrorReason
ERROR_REASON_FIELD_REQUIRED: ErrorReason
ERROR_REASON_FIELD_INVALID: ErrorReason
ERROR_REASON_UNSUPPORTED: ErrorReason
ERROR_REASON_MESSAGE_TOO_LARGE: ErrorReason
ERROR_REASON_MODEL_NOT_FOUND: ErrorReason
ERROR_REASON_MODALITY_UNSUPPORTED: ErrorReason
ERROR_REASON_TEMPLATE_REFUSED: ErrorReason
ERROR_REASON_PROMPT_TOO_LONG: ErrorReason
ERROR_REASON_TOO_MANY_IMAGES: ErrorReason
ERROR_REASON_IMAGE_COUNT_MISMATCH: ErrorReason
ERROR_REASON_IMAGE_FORMAT_UNSUPPORTED: ErrorReason
ERROR_REASON_IMAGE_UNDECODABLE: ErrorReason
ERROR_REASON_IMAGE_TOO_LARGE: ErrorReason
ERROR_REASON_REQUEST_ID_IN_USE: ErrorReason
ERROR_REASON_CHAT_NOT_SET_UP: ErrorReason
ERROR_REASON_CHAT_ALREADY_SET_UP: ErrorReason
ERROR_REASON_TURN_QUEUE_FULL: ErrorReason
ERROR_REASON_TURN_NOT_FOUND: ErrorReason
ERROR_REASON_TURN_ID_IN_USE: ErrorReason
ERROR_REASON_OVERLOADED: ErrorReason
ERROR_REASON_DRAINING: ErrorReason
ERROR_REASON_ENGINE_UNAVAILABLE: ErrorReason
ERROR_REASON_DEADLINE_EXCEEDED: ErrorReason
ERROR_REASON_INTERNAL: ErrorReason
ERROR_REASON_IMAGE_OPTION_INVALID: ErrorReason
ERROR_REASON_TOO_MANY_VIDEOS: ErrorReason
ERROR_REASON_VIDEO_UNDECODABLE: ErrorReason
ERROR_REASON_VIDEO_TOO_LARGE: ErrorReason
ERROR_REASON_VIDEO_OPTION_INVALID: ErrorReason
ERROR_REASON_TENSOR_INVALID: ErrorReason
ERROR_REASON_EMBEDDINGS_MISMATCH: ErrorReason
ERROR_REASON_MEDIA_NOT_FOUND: ErrorReason
ERROR_REASON_MEDIA_URL_UNAVAILABLE: ErrorReason
ERROR_REASON_UPLOAD_DIGEST_MISMATCH: ErrorReason
ERROR_REASON_UPLOAD_TOO_LARGE: ErrorReason
ERROR_REASON_MEDIA_STORE_FULL: ErrorReason
ERROR_REASON_UPLOAD_OFFSET_WRONG: ErrorReason
ERROR_REASON_UPLOAD_REPLACED: ErrorReason
ERROR_REASON_MEDIA_TOO_LARGE: ErrorReason

class Failure(_message.Message):
    __slots__ = ("code", "message", "reason", "field_violations", "retry_after")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FIELD_VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    reason: ErrorReason
    field_violations: _containers.RepeatedCompositeFieldContainer[FieldViolation]
    retry_after: _duration_pb2.Duration
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., reason: _Optional[_Union[ErrorReason, str]] = ..., field_violations: _Optional[_Iterable[_Union[FieldViolation, _Mapping]]] = ..., retry_after: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class FieldViolation(_message.Message):
    __slots__ = ("field", "description")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    field: str
    description: str
    def __init__(self, field: _Optional[str] = ..., description: _Optional[str] = ...) -> None: ...
