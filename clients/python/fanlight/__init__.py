"""Fanlight's client: ask a vision-language model over typed gRPC.

    from fanlight import Client

    with Client("localhost:50051") as client:
        for piece in client.stream("What is it?", images=["cat.jpg"]):
            print(piece, end="", flush=True)

AsyncClient is the same for asyncio. The messages of the contract are in fanlight.v1. Errors are drawn as a tree in
fanlight.errors.
"""

from fanlight.answers import (
    Accepted,
    Answer,
    Delta,
    Event,
    Finished,
    FinishReason,
    Progress,
    Timings,
    Token,
    Usage,
)
from fanlight.chat import ROOT, AsyncChat, AsyncTurn, Chat, Turn
from fanlight.client import AsyncClient, Client
from fanlight.errors import (
    AccessDenied,
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    FanlightError,
    FieldViolation,
    Internal,
    InvalidRequest,
    NotFound,
    Overloaded,
    RequestTooLarge,
    Unavailable,
    Unimplemented,
    WrongState,
)
from fanlight.requests import Options, RequestOptions, assistant, raw_prompt, system, tokens_prompt, user
from fanlight.streams import AsyncStream, Stream

__all__ = [
    "ROOT",
    "Accepted",
    "AccessDenied",
    "AlreadyExists",
    "Answer",
    "AsyncChat",
    "AsyncClient",
    "AsyncStream",
    "AsyncTurn",
    "Cancelled",
    "Chat",
    "Client",
    "DeadlineExceeded",
    "Delta",
    "Event",
    "FanlightError",
    "FieldViolation",
    "FinishReason",
    "Finished",
    "Internal",
    "InvalidRequest",
    "NotFound",
    "Options",
    "Overloaded",
    "Progress",
    "RequestOptions",
    "RequestTooLarge",
    "Stream",
    "Timings",
    "Token",
    "Turn",
    "Unavailable",
    "Unimplemented",
    "Usage",
    "WrongState",
    "assistant",
    "raw_prompt",
    "system",
    "tokens_prompt",
    "user",
]
