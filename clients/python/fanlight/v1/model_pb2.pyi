from fanlight.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Modality(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODALITY_UNSPECIFIED: _ClassVar[Modality]
    MODALITY_TEXT: _ClassVar[Modality]
    MODALITY_IMAGE: _ClassVar[Modality]
MODALITY_UNSPECIFIED: Modality
MODALITY_TEXT: Modality
MODALITY_IMAGE: Modality

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
    __slots__ = ("name", "family", "modalities", "context_length", "vocabulary_size", "limits", "special_tokens", "sampling_defaults", "fingerprint")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    MODALITIES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    name: str
    family: str
    modalities: _containers.RepeatedScalarFieldContainer[Modality]
    context_length: int
    vocabulary_size: int
    limits: ModelLimits
    special_tokens: SpecialTokens
    sampling_defaults: _generation_pb2.Sampling
    fingerprint: str
    def __init__(self, name: _Optional[str] = ..., family: _Optional[str] = ..., modalities: _Optional[_Iterable[_Union[Modality, str]]] = ..., context_length: _Optional[int] = ..., vocabulary_size: _Optional[int] = ..., limits: _Optional[_Union[ModelLimits, _Mapping]] = ..., special_tokens: _Optional[_Union[SpecialTokens, _Mapping]] = ..., sampling_defaults: _Optional[_Union[_generation_pb2.Sampling, _Mapping]] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class ModelLimits(_message.Message):
    __slots__ = ("max_images_per_request", "max_image_bytes", "max_image_pixels", "max_image_side", "max_image_aspect_ratio", "max_stop_strings", "max_stop_string_characters", "max_stop_token_ids")
    MAX_IMAGES_PER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    MAX_IMAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_IMAGE_PIXELS_FIELD_NUMBER: _ClassVar[int]
    MAX_IMAGE_SIDE_FIELD_NUMBER: _ClassVar[int]
    MAX_IMAGE_ASPECT_RATIO_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_STRING_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    max_images_per_request: int
    max_image_bytes: int
    max_image_pixels: int
    max_image_side: int
    max_image_aspect_ratio: float
    max_stop_strings: int
    max_stop_string_characters: int
    max_stop_token_ids: int
    def __init__(self, max_images_per_request: _Optional[int] = ..., max_image_bytes: _Optional[int] = ..., max_image_pixels: _Optional[int] = ..., max_image_side: _Optional[int] = ..., max_image_aspect_ratio: _Optional[float] = ..., max_stop_strings: _Optional[int] = ..., max_stop_string_characters: _Optional[int] = ..., max_stop_token_ids: _Optional[int] = ...) -> None: ...

class SpecialTokens(_message.Message):
    __slots__ = ("eos_token_ids", "bos_token_id", "image_token_id")
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    IMAGE_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bos_token_id: int
    image_token_id: int
    def __init__(self, eos_token_ids: _Optional[_Iterable[int]] = ..., bos_token_id: _Optional[int] = ..., image_token_id: _Optional[int] = ...) -> None: ...
