from fanlight.v1 import generation_pb2 as _generation_pb2
from fanlight.v1 import media_pb2 as _media_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "family", "modalities", "context_length", "vocabulary_size", "limits", "special_tokens", "sampling_defaults", "fingerprint", "base_model")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    MODALITIES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    family: str
    modalities: _containers.RepeatedScalarFieldContainer[_media_pb2.Modality]
    context_length: int
    vocabulary_size: int
    limits: ModelLimits
    special_tokens: SpecialTokens
    sampling_defaults: _generation_pb2.Sampling
    fingerprint: str
    base_model: str
    def __init__(self, name: _Optional[str] = ..., family: _Optional[str] = ..., modalities: _Optional[_Iterable[_Union[_media_pb2.Modality, str]]] = ..., context_length: _Optional[int] = ..., vocabulary_size: _Optional[int] = ..., limits: _Optional[_Union[ModelLimits, _Mapping]] = ..., special_tokens: _Optional[_Union[SpecialTokens, _Mapping]] = ..., sampling_defaults: _Optional[_Union[_generation_pb2.Sampling, _Mapping]] = ..., fingerprint: _Optional[str] = ..., base_model: _Optional[str] = ...) -> None: ...

class ModelLimits(_message.Message):
    __slots__ = ("max_images_per_request", "max_image_bytes", "max_image_pixels", "max_image_side", "max_image_aspect_ratio", "max_stop_strings", "max_stop_string_characters", "max_stop_token_ids", "max_videos_per_request", "max_video_bytes", "max_video_frames", "max_video_seconds", "max_video_pixels", "low_detail_tokens")
    MAX_IMAGES_PER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    MAX_IMAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_IMAGE_PIXELS_FIELD_NUMBER: _ClassVar[int]
    MAX_IMAGE_SIDE_FIELD_NUMBER: _ClassVar[int]
    MAX_IMAGE_ASPECT_RATIO_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_STRING_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_VIDEOS_PER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    MAX_VIDEO_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_VIDEO_FRAMES_FIELD_NUMBER: _ClassVar[int]
    MAX_VIDEO_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_VIDEO_PIXELS_FIELD_NUMBER: _ClassVar[int]
    LOW_DETAIL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    max_images_per_request: int
    max_image_bytes: int
    max_image_pixels: int
    max_image_side: int
    max_image_aspect_ratio: float
    max_stop_strings: int
    max_stop_string_characters: int
    max_stop_token_ids: int
    max_videos_per_request: int
    max_video_bytes: int
    max_video_frames: int
    max_video_seconds: int
    max_video_pixels: int
    low_detail_tokens: int
    def __init__(self, max_images_per_request: _Optional[int] = ..., max_image_bytes: _Optional[int] = ..., max_image_pixels: _Optional[int] = ..., max_image_side: _Optional[int] = ..., max_image_aspect_ratio: _Optional[float] = ..., max_stop_strings: _Optional[int] = ..., max_stop_string_characters: _Optional[int] = ..., max_stop_token_ids: _Optional[int] = ..., max_videos_per_request: _Optional[int] = ..., max_video_bytes: _Optional[int] = ..., max_video_frames: _Optional[int] = ..., max_video_seconds: _Optional[int] = ..., max_video_pixels: _Optional[int] = ..., low_detail_tokens: _Optional[int] = ...) -> None: ...

class SpecialTokens(_message.Message):
    __slots__ = ("eos_token_ids", "bos_token_id", "image_token_id", "video_token_id")
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    IMAGE_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    VIDEO_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bos_token_id: int
    image_token_id: int
    video_token_id: int
    def __init__(self, eos_token_ids: _Optional[_Iterable[int]] = ..., bos_token_id: _Optional[int] = ..., image_token_id: _Optional[int] = ..., video_token_id: _Optional[int] = ...) -> None: ...

class CountTokensRequest(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: _generation_pb2.Generation
    def __init__(self, generation: _Optional[_Union[_generation_pb2.Generation, _Mapping]] = ...) -> None: ...

class CountTokensResponse(_message.Message):
    __slots__ = ("prompt_tokens", "image_tokens", "media", "kv_blocks", "kv_block_size", "context_length", "max_new_tokens", "fits")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FITS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    image_tokens: int
    media: _containers.RepeatedCompositeFieldContainer[MediaCount]
    kv_blocks: int
    kv_block_size: int
    context_length: int
    max_new_tokens: int
    fits: bool
    def __init__(self, prompt_tokens: _Optional[int] = ..., image_tokens: _Optional[int] = ..., media: _Optional[_Iterable[_Union[MediaCount, _Mapping]]] = ..., kv_blocks: _Optional[int] = ..., kv_block_size: _Optional[int] = ..., context_length: _Optional[int] = ..., max_new_tokens: _Optional[int] = ..., fits: bool = ...) -> None: ...

class MediaCount(_message.Message):
    __slots__ = ("field", "modality", "tokens", "embeddings", "mask_ranges", "original_size", "resized_size", "grid", "tiles", "frames", "frame_times")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    MODALITY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    MASK_RANGES_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    RESIZED_SIZE_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    TILES_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    FRAME_TIMES_FIELD_NUMBER: _ClassVar[int]
    field: str
    modality: _media_pb2.Modality
    tokens: int
    embeddings: int
    mask_ranges: _containers.RepeatedCompositeFieldContainer[PositionRange]
    original_size: _media_pb2.Size
    resized_size: _media_pb2.Size
    grid: _media_pb2.Grid
    tiles: TileGrid
    frames: int
    frame_times: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, field: _Optional[str] = ..., modality: _Optional[_Union[_media_pb2.Modality, str]] = ..., tokens: _Optional[int] = ..., embeddings: _Optional[int] = ..., mask_ranges: _Optional[_Iterable[_Union[PositionRange, _Mapping]]] = ..., original_size: _Optional[_Union[_media_pb2.Size, _Mapping]] = ..., resized_size: _Optional[_Union[_media_pb2.Size, _Mapping]] = ..., grid: _Optional[_Union[_media_pb2.Grid, _Mapping]] = ..., tiles: _Optional[_Union[TileGrid, _Mapping]] = ..., frames: _Optional[int] = ..., frame_times: _Optional[_Iterable[float]] = ...) -> None: ...

class PositionRange(_message.Message):
    __slots__ = ("start", "length")
    START_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    start: int
    length: int
    def __init__(self, start: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class TileGrid(_message.Message):
    __slots__ = ("columns", "rows", "has_thumbnail")
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    HAS_THUMBNAIL_FIELD_NUMBER: _ClassVar[int]
    columns: int
    rows: int
    has_thumbnail: bool
    def __init__(self, columns: _Optional[int] = ..., rows: _Optional[int] = ..., has_thumbnail: bool = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model", "text", "parse_special_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PARSE_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    parse_special_tokens: bool
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., parse_special_tokens: bool = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[TextToken]
    def __init__(self, tokens: _Optional[_Iterable[_Union[TextToken, _Mapping]]] = ...) -> None: ...

class TextToken(_message.Message):
    __slots__ = ("id", "data", "offset")
    ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    id: int
    data: bytes
    offset: int
    def __init__(self, id: _Optional[int] = ..., data: _Optional[bytes] = ..., offset: _Optional[int] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("model", "ids", "spell_special_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    SPELL_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    ids: _containers.RepeatedScalarFieldContainer[int]
    spell_special_tokens: bool
    def __init__(self, model: _Optional[str] = ..., ids: _Optional[_Iterable[int]] = ..., spell_special_tokens: bool = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...
