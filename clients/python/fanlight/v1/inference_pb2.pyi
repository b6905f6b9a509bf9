from fanlight.v1 import chat_pb2 as _chat_pb2
from fanlight.v1 import events_pb2 as _events_pb2
from fanlight.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CancelOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CANCEL_OUTCOME_UNSPECIFIED: _ClassVar[CancelOutcome]
    CANCEL_OUTCOME_CANCELLED: _ClassVar[CancelOutcome]
    CANCEL_OUTCOME_FINISHED: _ClassVar[CancelOutcome]
    CANCEL_OUTCOME_UNKNOWN: _ClassVar[CancelOutcome]
CANCEL_OUTCOME_UNSPECIFIED: CancelOutcome
CANCEL_OUTCOME_CANCELLED: CancelOutcome
CANCEL_OUTCOME_FINISHED: CancelOutcome
CANCEL_OUTCOME_UNKNOWN: CancelOutcome

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "generation")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: _generation_pb2.Generation
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[_Union[_generation_pb2.Generation, _Mapping]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("request_id", "seed", "answers", "usage")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    seed: int
    answers: _containers.RepeatedCompositeFieldContainer[Answer]
    usage: _events_pb2.Usage
    def __init__(self, request_id: _Optional[str] = ..., seed: _Optional[int] = ..., answers: _Optional[_Iterable[_Union[Answer, _Mapping]]] = ..., usage: _Optional[_Union[_events_pb2.Usage, _Mapping]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("text", "tokens", "finished")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    text: str
    tokens: _containers.RepeatedCompositeFieldContainer[_events_pb2.Token]
    finished: _events_pb2.Finished
    def __init__(self, text: _Optional[str] = ..., tokens: _Optional[_Iterable[_Union[_events_pb2.Token, _Mapping]]] = ..., finished: _Optional[_Union[_events_pb2.Finished, _Mapping]] = ...) -> None: ...

class GenerateStreamRequest(_message.Message):
    __slots__ = ("request_id", "generation")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: _generation_pb2.Generation
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[_Union[_generation_pb2.Generation, _Mapping]] = ...) -> None: ...

class GenerateStreamResponse(_message.Message):
    __slots__ = ("sequence", "accepted", "progress", "delta", "finished", "usage")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    accepted: _events_pb2.Accepted
    progress: _events_pb2.Progress
    delta: _events_pb2.Delta
    finished: _events_pb2.Finished
    usage: _events_pb2.Usage
    def __init__(self, sequence: _Optional[int] = ..., accepted: _Optional[_Union[_events_pb2.Accepted, _Mapping]] = ..., progress: _Optional[_Union[_events_pb2.Progress, _Mapping]] = ..., delta: _Optional[_Union[_events_pb2.Delta, _Mapping]] = ..., finished: _Optional[_Union[_events_pb2.Finished, _Mapping]] = ..., usage: _Optional[_Union[_events_pb2.Usage, _Mapping]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: CancelOutcome
    def __init__(self, outcome: _Optional[_Union[CancelOutcome, str]] = ...) -> None: ...
