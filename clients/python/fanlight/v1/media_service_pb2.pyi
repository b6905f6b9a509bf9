from fanlight.v1 import media_pb2 as _media_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MediaState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEDIA_STATE_UNSPECIFIED: _ClassVar[MediaState]
    MEDIA_STATE_HELD: _ClassVar[MediaState]
    MEDIA_STATE_PARTIAL: _ClassVar[MediaState]
    MEDIA_STATE_ABSENT: _ClassVar[MediaState]
MEDIA_STATE_UNSPECIFIED: MediaState
MEDIA_STATE_HELD: MediaState
MEDIA_STATE_PARTIAL: MediaState
MEDIA_STATE_ABSENT: MediaState

class UploadMediaRequest(_message.Message):
    __slots__ = ("digest", "offset", "total_bytes", "data")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    digest: str
    offset: int
    total_bytes: int
    data: bytes
    def __init__(self, digest: _Optional[str] = ..., offset: _Optional[int] = ..., total_bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class UploadMediaResponse(_message.Message):
    __slots__ = ("media", "was_held")
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    WAS_HELD_FIELD_NUMBER: _ClassVar[int]
    media: Media
    was_held: bool
    def __init__(self, media: _Optional[_Union[Media, _Mapping]] = ..., was_held: bool = ...) -> None: ...

class Media(_message.Message):
    __slots__ = ("digest", "state", "size_bytes", "committed_bytes", "content_type", "size", "time_to_live")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_LIVE_FIELD_NUMBER: _ClassVar[int]
    digest: str
    state: MediaState
    size_bytes: int
    committed_bytes: int
    content_type: str
    size: _media_pb2.Size
    time_to_live: _duration_pb2.Duration
    def __init__(self, digest: _Optional[str] = ..., state: _Optional[_Union[MediaState, str]] = ..., size_bytes: _Optional[int] = ..., committed_bytes: _Optional[int] = ..., content_type: _Optional[str] = ..., size: _Optional[_Union[_media_pb2.Size, _Mapping]] = ..., time_to_live: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class BatchGetMediaRequest(_message.Message):
    __slots__ = ("digests",)
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, digests: _Optional[_Iterable[str]] = ...) -> None: ...

class BatchGetMediaResponse(_message.Message):
    __slots__ = ("media",)
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    media: _containers.RepeatedCompositeFieldContainer[Media]
    def __init__(self, media: _Optional[_Iterable[_Union[Media, _Mapping]]] = ...) -> None: ...

class DeleteMediaRequest(_message.Message):
    __slots__ = ("digest",)
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    digest: str
    def __init__(self, digest: _Optional[str] = ...) -> None: ...

class DeleteMediaResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DownloadMediaRequest(_message.Message):
    __slots__ = ("digest", "offset")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    digest: str
    offset: int
    def __init__(self, digest: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class DownloadMediaResponse(_message.Message):
    __slots__ = ("data", "total_bytes")
    DATA_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    total_bytes: int
    def __init__(self, data: _Optional[bytes] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class EncodeImagesRequest(_message.Message):
    __slots__ = ("model", "images")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    model: str
    images: _containers.RepeatedCompositeFieldContainer[_media_pb2.Image]
    def __init__(self, model: _Optional[str] = ..., images: _Optional[_Iterable[_Union[_media_pb2.Image, _Mapping]]] = ...) -> None: ...

class EncodeImagesResponse(_message.Message):
    __slots__ = ("images",)
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    images: _containers.RepeatedCompositeFieldContainer[EncodedImage]
    def __init__(self, images: _Optional[_Iterable[_Union[EncodedImage, _Mapping]]] = ...) -> None: ...

class EncodedImage(_message.Message):
    __slots__ = ("embeddings_id", "model_fingerprint", "grid", "embeddings", "hidden_size", "size_bytes", "was_cached")
    EMBEDDINGS_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAS_CACHED_FIELD_NUMBER: _ClassVar[int]
    embeddings_id: str
    model_fingerprint: str
    grid: _media_pb2.Grid
    embeddings: int
    hidden_size: int
    size_bytes: int
    was_cached: bool
    def __init__(self, embeddings_id: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., grid: _Optional[_Union[_media_pb2.Grid, _Mapping]] = ..., embeddings: _Optional[int] = ..., hidden_size: _Optional[int] = ..., size_bytes: _Optional[int] = ..., was_cached: bool = ...) -> None: ...
