from fanlight.v1 import errors_pb2 as _errors_pb2
from fanlight.v1 import events_pb2 as _events_pb2
from fanlight.v1 import generation_pb2 as _generation_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChatRequest(_message.Message):
    __slots__ = ("setup", "turn", "interrupt")
    SETUP_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    INTERRUPT_FIELD_NUMBER: _ClassVar[int]
    setup: ChatSetup
    turn: ChatTurn
    interrupt: ChatInterrupt
    def __init__(self, setup: _Optional[_Union[ChatSetup, _Mapping]] = ..., turn: _Optional[_Union[ChatTurn, _Mapping]] = ..., interrupt: _Optional[_Union[ChatInterrupt, _Mapping]] = ...) -> None: ...

class ChatSetup(_message.Message):
    __slots__ = ("model", "history", "config")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    model: str
    history: _containers.RepeatedCompositeFieldContainer[_generation_pb2.Message]
    config: _generation_pb2.GenerationConfig
    def __init__(self, model: _Optional[str] = ..., history: _Optional[_Iterable[_Union[_generation_pb2.Message, _Mapping]]] = ..., config: _Optional[_Union[_generation_pb2.GenerationConfig, _Mapping]] = ...) -> None: ...

class ChatTurn(_message.Message):
    __slots__ = ("turn_id", "parent_turn_id", "messages", "config")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_TURN_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    turn_id: str
    parent_turn_id: str
    messages: _containers.RepeatedCompositeFieldContainer[_generation_pb2.Message]
    config: _generation_pb2.GenerationConfig
    def __init__(self, turn_id: _Optional[str] = ..., parent_turn_id: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[_generation_pb2.Message, _Mapping]]] = ..., config: _Optional[_Union[_generation_pb2.GenerationConfig, _Mapping]] = ...) -> None: ...

class ChatInterrupt(_message.Message):
    __slots__ = ("turn_id",)
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    turn_id: str
    def __init__(self, turn_id: _Optional[str] = ...) -> None: ...

class ChatResponse(_message.Message):
    __slots__ = ("sequence", "turn_id", "ready", "accepted", "progress", "delta", "finished", "usage", "turn_error", "going_away")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TURN_ERROR_FIELD_NUMBER: _ClassVar[int]
    GOING_AWAY_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    turn_id: str
    ready: ChatReady
    accepted: _events_pb2.Accepted
    progress: _events_pb2.Progress
    delta: _events_pb2.Delta
    finished: _events_pb2.Finished
    usage: _events_pb2.Usage
    turn_error: _errors_pb2.Failure
    going_away: ChatGoingAway
    def __init__(self, sequence: _Optional[int] = ..., turn_id: _Optional[str] = ..., ready: _Optional[_Union[ChatReady, _Mapping]] = ..., accepted: _Optional[_Union[_events_pb2.Accepted, _Mapping]] = ..., progress: _Optional[_Union[_events_pb2.Progress, _Mapping]] = ..., delta: _Optional[_Union[_events_pb2.Delta, _Mapping]] = ..., finished: _Optional[_Union[_events_pb2.Finished, _Mapping]] = ..., usage: _Optional[_Union[_events_pb2.Usage, _Mapping]] = ..., turn_error: _Optional[_Union[_errors_pb2.Failure, _Mapping]] = ..., going_away: _Optional[_Union[ChatGoingAway, _Mapping]] = ...) -> None: ...

class ChatReady(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class ChatGoingAway(_message.Message):
    __slots__ = ("time_left",)
    TIME_LEFT_FIELD_NUMBER: _ClassVar[int]
    time_left: _duration_pb2.Duration
    def __init__(self, time_left: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...
