from fanlight.v1 import errors_pb2 as _errors_pb2
from fanlight.v1 import media_pb2 as _media_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_STOP_SEQUENCE: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CONTEXT_FULL: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]
    FINISH_REASON_INTERRUPTED: _ClassVar[FinishReason]
    FINISH_REASON_ERROR: _ClassVar[FinishReason]

class EncoderUse(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCODER_USE_UNSPECIFIED: _ClassVar[EncoderUse]
    ENCODER_USE_ENCODED: _ClassVar[EncoderUse]
    ENCODER_USE_CACHED: _ClassVar[EncoderUse]
    ENCODER_USE_PROVIDED: _ClassVar[EncoderUse]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_STOP_SEQUENCE: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CONTEXT_FULL: FinishReason
FINISH_REASON_CANCELLED: FinishReason
FINISH_REASON_INTERRUPTED: FinishReason
FINISH_REASON_ERROR: FinishReason
ENCODER_USE_UNSPECIFIED: EncoderUse
ENCODER_USE_ENCODED: EncoderUse
ENCODER_USE_CACHED: EncoderUse
ENCODER_USE_PROVIDED: EncoderUse

class Accepted(_message.Message):
    __slots__ = ("request_id", "prompt_tokens", "image_tokens", "cached_tokens", "seed")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_tokens: int
    image_tokens: int
    cached_tokens: int
    seed: int
    def __init__(self, request_id: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., image_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., seed: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("queue_position", "images_encoded", "images_total", "prefill_tokens_done", "prefill_tokens_total")
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    IMAGES_ENCODED_FIELD_NUMBER: _ClassVar[int]
    IMAGES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_DONE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    queue_position: int
    images_encoded: int
    images_total: int
    prefill_tokens_done: int
    prefill_tokens_total: int
    def __init__(self, queue_position: _Optional[int] = ..., images_encoded: _Optional[int] = ..., images_total: _Optional[int] = ..., prefill_tokens_done: _Optional[int] = ..., prefill_tokens_total: _Optional[int] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("index", "text", "tokens")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("id", "logprob")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    id: int
    logprob: float
    def __init__(self, id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("index", "reason", "stop_sequence", "completion_tokens", "error")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    index: int
    reason: FinishReason
    stop_sequence: str
    completion_tokens: int
    error: _errors_pb2.Failure
    def __init__(self, index: _Optional[int] = ..., reason: _Optional[_Union[FinishReason, str]] = ..., stop_sequence: _Optional[str] = ..., completion_tokens: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.Failure, _Mapping]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "image_tokens", "cached_tokens", "completion_tokens", "images", "encoder_cache_hits", "timings", "media")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    ENCODER_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    image_tokens: int
    cached_tokens: int
    completion_tokens: int
    images: int
    encoder_cache_hits: int
    timings: Timings
    media: _containers.RepeatedCompositeFieldContainer[MediaUsage]
    def __init__(self, prompt_tokens: _Optional[int] = ..., image_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., images: _Optional[int] = ..., encoder_cache_hits: _Optional[int] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., media: _Optional[_Iterable[_Union[MediaUsage, _Mapping]]] = ...) -> None: ...

class MediaUsage(_message.Message):
    __slots__ = ("modality", "tokens", "embeddings", "encoder")
    MODALITY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    ENCODER_FIELD_NUMBER: _ClassVar[int]
    modality: _media_pb2.Modality
    tokens: int
    embeddings: int
    encoder: EncoderUse
    def __init__(self, modality: _Optional[_Union[_media_pb2.Modality, str]] = ..., tokens: _Optional[int] = ..., embeddings: _Optional[int] = ..., encoder: _Optional[_Union[EncoderUse, str]] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queue", "decode_media", "preprocess", "encode", "prefill", "first_token", "inter_token", "total")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    DECODE_MEDIA_FIELD_NUMBER: _ClassVar[int]
    PREPROCESS_FIELD_NUMBER: _ClassVar[int]
    ENCODE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    INTER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    queue: _duration_pb2.Duration
    decode_media: _duration_pb2.Duration
    preprocess: _duration_pb2.Duration
    encode: _duration_pb2.Duration
    prefill: _duration_pb2.Duration
    first_token: _duration_pb2.Duration
    inter_token: _duration_pb2.Duration
    total: _duration_pb2.Duration
    def __init__(self, queue: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., decode_media: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., preprocess: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., encode: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., prefill: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., first_token: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., inter_token: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., total: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...
