from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Feature(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FEATURE_UNSPECIFIED: _ClassVar[Feature]
    FEATURE_CHAT: _ClassVar[Feature]
    FEATURE_RAW_PROMPT: _ClassVar[Feature]
    FEATURE_TOKENS_PROMPT: _ClassVar[Feature]
    FEATURE_IMAGE_DATA: _ClassVar[Feature]
    FEATURE_LOGPROBS: _ClassVar[Feature]
    FEATURE_PREFIX_CACHE: _ClassVar[Feature]
    FEATURE_ENCODER_CACHE: _ClassVar[Feature]
    FEATURE_MEDIA_UPLOAD: _ClassVar[Feature]
    FEATURE_MEDIA_URL: _ClassVar[Feature]
    FEATURE_MEDIA_TENSORS: _ClassVar[Feature]
    FEATURE_VIDEO: _ClassVar[Feature]
    FEATURE_COUNT_TOKENS: _ClassVar[Feature]
FEATURE_UNSPECIFIED: Feature
FEATURE_CHAT: Feature
FEATURE_RAW_PROMPT: Feature
FEATURE_TOKENS_PROMPT: Feature
FEATURE_IMAGE_DATA: Feature
FEATURE_LOGPROBS: Feature
FEATURE_PREFIX_CACHE: Feature
FEATURE_ENCODER_CACHE: Feature
FEATURE_MEDIA_UPLOAD: Feature
FEATURE_MEDIA_URL: Feature
FEATURE_MEDIA_TENSORS: Feature
FEATURE_VIDEO: Feature
FEATURE_COUNT_TOKENS: Feature

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("version", "revision", "features", "limits", "models")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    version: str
    revision: str
    features: _containers.RepeatedScalarFieldContainer[Feature]
    limits: ServerLimits
    models: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[str] = ..., revision: _Optional[str] = ..., features: _Optional[_Iterable[_Union[Feature, str]]] = ..., limits: _Optional[_Union[ServerLimits, _Mapping]] = ..., models: _Optional[_Iterable[str]] = ...) -> None: ...

class ServerLimits(_message.Message):
    __slots__ = ("max_receive_message_bytes", "max_send_message_bytes", "max_requests", "max_queued_turns", "chat_setup_timeout", "heartbeat_interval", "max_upload_bytes")
    MAX_RECEIVE_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_SEND_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_TURNS_FIELD_NUMBER: _ClassVar[int]
    CHAT_SETUP_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    MAX_UPLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    max_receive_message_bytes: int
    max_send_message_bytes: int
    max_requests: int
    max_queued_turns: int
    chat_setup_timeout: _duration_pb2.Duration
    heartbeat_interval: _duration_pb2.Duration
    max_upload_bytes: int
    def __init__(self, max_receive_message_bytes: _Optional[int] = ..., max_send_message_bytes: _Optional[int] = ..., max_requests: _Optional[int] = ..., max_queued_turns: _Optional[int] = ..., chat_setup_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., heartbeat_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max_upload_bytes: _Optional[int] = ...) -> None: ...
