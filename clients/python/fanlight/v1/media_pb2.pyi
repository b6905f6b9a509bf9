from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Detail(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DETAIL_UNSPECIFIED: _ClassVar[Detail]
    DETAIL_AUTO: _ClassVar[Detail]
    DETAIL_LOW: _ClassVar[Detail]
    DETAIL_HIGH: _ClassVar[Detail]

class PatchLayout(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PATCH_LAYOUT_UNSPECIFIED: _ClassVar[PatchLayout]
    PATCH_LAYOUT_TOWER: _ClassVar[PatchLayout]
    PATCH_LAYOUT_ROW_MAJOR: _ClassVar[PatchLayout]

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_TYPE_UNSPECIFIED: _ClassVar[DataType]
    DATA_TYPE_FLOAT32: _ClassVar[DataType]
    DATA_TYPE_FLOAT16: _ClassVar[DataType]
    DATA_TYPE_BFLOAT16: _ClassVar[DataType]

class Modality(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODALITY_UNSPECIFIED: _ClassVar[Modality]
    MODALITY_TEXT: _ClassVar[Modality]
    MODALITY_IMAGE: _ClassVar[Modality]
    MODALITY_VIDEO: _ClassVar[Modality]
DETAIL_UNSPECIFIED: Detail
DETAIL_AUTO: Detail
DETAIL_LOW: Detail
DETAIL_HIGH: Detail
PATCH_LAYOUT_UNSPECIFIED: PatchLayout
PATCH_LAYOUT_TOWER: PatchLayout
PATCH_LAYOUT_ROW_MAJOR: PatchLayout
DATA_TYPE_UNSPECIFIED: DataType
DATA_TYPE_FLOAT32: DataType
DATA_TYPE_FLOAT16: DataType
DATA_TYPE_BFLOAT16: DataType
MODALITY_UNSPECIFIED: Modality
MODALITY_TEXT: Modality
MODALITY_IMAGE: Modality
MODALITY_VIDEO: Modality

class Image(_message.Message):
    __slots__ = ("data", "digest", "url", "patches", "tiles", "embeddings", "embeddings_id", "min_pixels", "max_pixels", "max_tokens", "detail")
    DATA_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    PATCHES_FIELD_NUMBER: _ClassVar[int]
    TILES_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_PIXELS_FIELD_NUMBER: _ClassVar[int]
    MAX_PIXELS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    digest: str
    url: str
    patches: Patches
    tiles: Tiles
    embeddings: Embeddings
    embeddings_id: str
    min_pixels: int
    max_pixels: int
    max_tokens: int
    detail: Detail
    def __init__(self, data: _Optional[bytes] = ..., digest: _Optional[str] = ..., url: _Optional[str] = ..., patches: _Optional[_Union[Patches, _Mapping]] = ..., tiles: _Optional[_Union[Tiles, _Mapping]] = ..., embeddings: _Optional[_Union[Embeddings, _Mapping]] = ..., embeddings_id: _Optional[str] = ..., min_pixels: _Optional[int] = ..., max_pixels: _Optional[int] = ..., max_tokens: _Optional[int] = ..., detail: _Optional[_Union[Detail, str]] = ...) -> None: ...

class Video(_message.Message):
    __slots__ = ("data", "digest", "url", "frames", "patches", "embeddings", "embeddings_id", "num_frames", "fps", "start", "end", "min_pixels", "max_pixels", "max_tokens", "detail")
    DATA_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    PATCHES_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_FRAMES_FIELD_NUMBER: _ClassVar[int]
    FPS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    MIN_PIXELS_FIELD_NUMBER: _ClassVar[int]
    MAX_PIXELS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    digest: str
    url: str
    frames: Frames
    patches: Patches
    embeddings: Embeddings
    embeddings_id: str
    num_frames: int
    fps: float
    start: float
    end: float
    min_pixels: int
    max_pixels: int
    max_tokens: int
    detail: Detail
    def __init__(self, data: _Optional[bytes] = ..., digest: _Optional[str] = ..., url: _Optional[str] = ..., frames: _Optional[_Union[Frames, _Mapping]] = ..., patches: _Optional[_Union[Patches, _Mapping]] = ..., embeddings: _Optional[_Union[Embeddings, _Mapping]] = ..., embeddings_id: _Optional[str] = ..., num_frames: _Optional[int] = ..., fps: _Optional[float] = ..., start: _Optional[float] = ..., end: _Optional[float] = ..., min_pixels: _Optional[int] = ..., max_pixels: _Optional[int] = ..., max_tokens: _Optional[int] = ..., detail: _Optional[_Union[Detail, str]] = ...) -> None: ...

class Frames(_message.Message):
    __slots__ = ("frames", "fps")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    FPS_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    fps: float
    def __init__(self, frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ..., fps: _Optional[float] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("data", "digest", "url")
    DATA_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    digest: str
    url: str
    def __init__(self, data: _Optional[bytes] = ..., digest: _Optional[str] = ..., url: _Optional[str] = ...) -> None: ...

class Audio(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class Patches(_message.Message):
    __slots__ = ("pixels", "grid", "layout", "seconds_per_step")
    PIXELS_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    pixels: Tensor
    grid: Grid
    layout: PatchLayout
    seconds_per_step: float
    def __init__(self, pixels: _Optional[_Union[Tensor, _Mapping]] = ..., grid: _Optional[_Union[Grid, _Mapping]] = ..., layout: _Optional[_Union[PatchLayout, str]] = ..., seconds_per_step: _Optional[float] = ...) -> None: ...

class Grid(_message.Message):
    __slots__ = ("t", "h", "w")
    T_FIELD_NUMBER: _ClassVar[int]
    H_FIELD_NUMBER: _ClassVar[int]
    W_FIELD_NUMBER: _ClassVar[int]
    t: int
    h: int
    w: int
    def __init__(self, t: _Optional[int] = ..., h: _Optional[int] = ..., w: _Optional[int] = ...) -> None: ...

class Tiles(_message.Message):
    __slots__ = ("pixels", "original_size")
    PIXELS_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    pixels: Tensor
    original_size: Size
    def __init__(self, pixels: _Optional[_Union[Tensor, _Mapping]] = ..., original_size: _Optional[_Union[Size, _Mapping]] = ...) -> None: ...

class Size(_message.Message):
    __slots__ = ("width", "height")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    width: int
    height: int
    def __init__(self, width: _Optional[int] = ..., height: _Optional[int] = ...) -> None: ...

class Embeddings(_message.Message):
    __slots__ = ("tensors", "grid", "model_fingerprint", "seconds_per_step")
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[NamedTensor]
    grid: Grid
    model_fingerprint: str
    seconds_per_step: float
    def __init__(self, tensors: _Optional[_Iterable[_Union[NamedTensor, _Mapping]]] = ..., grid: _Optional[_Union[Grid, _Mapping]] = ..., model_fingerprint: _Optional[str] = ..., seconds_per_step: _Optional[float] = ...) -> None: ...

class NamedTensor(_message.Message):
    __slots__ = ("name", "tensor")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    name: str
    tensor: Tensor
    def __init__(self, name: _Optional[str] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "data", "file")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    dtype: DataType
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    file: TensorFile
    def __init__(self, dtype: _Optional[_Union[DataType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., file: _Optional[_Union[TensorFile, _Mapping]] = ...) -> None: ...

class TensorFile(_message.Message):
    __slots__ = ("digest", "name")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    digest: str
    name: str
    def __init__(self, digest: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...
