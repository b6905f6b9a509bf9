from fanlight.v1 import media_pb2 as _media_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SettingSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SETTING_SOURCE_UNSPECIFIED: _ClassVar[SettingSource]
    SETTING_SOURCE_FLAG: _ClassVar[SettingSource]
    SETTING_SOURCE_ENVIRONMENT: _ClassVar[SettingSource]
    SETTING_SOURCE_FILE: _ClassVar[SettingSource]
    SETTING_SOURCE_CHECKPOINT: _ClassVar[SettingSource]
    SETTING_SOURCE_DEFAULT: _ClassVar[SettingSource]
    SETTING_SOURCE_MEMORY: _ClassVar[SettingSource]
    SETTING_SOURCE_DEVICE: _ClassVar[SettingSource]
SETTING_SOURCE_UNSPECIFIED: SettingSource
SETTING_SOURCE_FLAG: SettingSource
SETTING_SOURCE_ENVIRONMENT: SettingSource
SETTING_SOURCE_FILE: SettingSource
SETTING_SOURCE_CHECKPOINT: SettingSource
SETTING_SOURCE_DEFAULT: SettingSource
SETTING_SOURCE_MEMORY: SettingSource
SETTING_SOURCE_DEVICE: SettingSource

class GetConfigRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetConfigResponse(_message.Message):
    __slots__ = ("checkpoint", "settings", "is_loaded", "memory")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    IS_LOADED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    checkpoint: CheckpointFacts
    settings: _containers.RepeatedCompositeFieldContainer[Setting]
    is_loaded: bool
    memory: _containers.RepeatedCompositeFieldContainer[MemoryPart]
    def __init__(self, checkpoint: _Optional[_Union[CheckpointFacts, _Mapping]] = ..., settings: _Optional[_Iterable[_Union[Setting, _Mapping]]] = ..., is_loaded: bool = ..., memory: _Optional[_Iterable[_Union[MemoryPart, _Mapping]]] = ...) -> None: ...

class CheckpointFacts(_message.Message):
    __slots__ = ("name", "path", "kind", "family", "decoder", "tower", "modalities", "context_length", "vocabulary_size", "dtype", "quantization", "fingerprint", "has_chat_template", "tokenizer_class", "unapplied_settings")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    DECODER_FIELD_NUMBER: _ClassVar[int]
    TOWER_FIELD_NUMBER: _ClassVar[int]
    MODALITIES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_CLASS_FIELD_NUMBER: _ClassVar[int]
    UNAPPLIED_SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    kind: str
    family: str
    decoder: str
    tower: str
    modalities: _containers.RepeatedScalarFieldContainer[_media_pb2.Modality]
    context_length: int
    vocabulary_size: int
    dtype: str
    quantization: str
    fingerprint: str
    has_chat_template: bool
    tokenizer_class: str
    unapplied_settings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ..., kind: _Optional[str] = ..., family: _Optional[str] = ..., decoder: _Optional[str] = ..., tower: _Optional[str] = ..., modalities: _Optional[_Iterable[_Union[_media_pb2.Modality, str]]] = ..., context_length: _Optional[int] = ..., vocabulary_size: _Optional[int] = ..., dtype: _Optional[str] = ..., quantization: _Optional[str] = ..., fingerprint: _Optional[str] = ..., has_chat_template: bool = ..., tokenizer_class: _Optional[str] = ..., unapplied_settings: _Optional[_Iterable[str]] = ...) -> None: ...

class Setting(_message.Message):
    __slots__ = ("name", "value", "json", "source", "overrode")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    OVERRODE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    json: str
    source: SettingSource
    overrode: _containers.RepeatedCompositeFieldContainer[OverriddenValue]
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., json: _Optional[str] = ..., source: _Optional[_Union[SettingSource, str]] = ..., overrode: _Optional[_Iterable[_Union[OverriddenValue, _Mapping]]] = ...) -> None: ...

class OverriddenValue(_message.Message):
    __slots__ = ("source", "value", "json")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    source: SettingSource
    value: str
    json: str
    def __init__(self, source: _Optional[_Union[SettingSource, str]] = ..., value: _Optional[str] = ..., json: _Optional[str] = ...) -> None: ...

class MemoryPart(_message.Message):
    __slots__ = ("part", "bytes")
    PART_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    part: str
    bytes: int
    def __init__(self, part: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...
