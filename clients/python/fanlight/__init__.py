"""Fanlight's client: ask a vision-language model over typed gRPC.

    from fanlight import Client

    with Client("localhost:50051") as client:
        for piece in client.stream("What is it?", images=["cat.jpg"], max_new_tokens=256):
            print(piece, end="", flush=True)

AsyncClient is the same for asyncio. The messages of the contract are in fanlight.v1. Errors are drawn as a tree in
fanlight.errors.
"""

from fanlight.answers import (
    Accepted,
    Answer,
    Delta,
    EncoderUse,
    Event,
    Finished,
    FinishReason,
    MediaUsage,
    Progress,
    Timings,
    Token,
    Usage,
)
from fanlight.async_chat import AsyncChat, AsyncTurn
from fanlight.async_client import AsyncClient
from fanlight.chat import ROOT, Chat, Turn
from fanlight.client import Client
from fanlight.counting import MediaCount, TextToken, TileGrid, TokenCount
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
from fanlight.handles import EncodedImage, Media, MediaState, Upload
from fanlight.media_sources import frames, image, video
from fanlight.requests import (
    Options,
    PromptOptions,
    RequestOptions,
    assistant,
    raw_prompt,
    system,
    tokens_prompt,
    user,
)
from fanlight.streams import AsyncStream, Stream
from fanlight.tensors import embeddings, patches, tiles
from fanlight.values import Grid, Modality, Size

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
    "EncodedImage",
    "EncoderUse",
    "Event",
    "FanlightError",
    "FieldViolation",
    "FinishReason",
    "Finished",
    "Grid",
    "Internal",
    "InvalidRequest",
    "Media",
    "MediaCount",
    "MediaState",
    "MediaUsage",
    "Modality",
    "NotFound",
    "Options",
    "Overloaded",
    "Progress",
    "PromptOptions",
    "RequestOptions",
    "RequestTooLarge",
    "Size",
    "Stream",
    "TextToken",
    "TileGrid",
    "Timings",
    "Token",
    "TokenCount",
    "Turn",
    "Unavailable",
    "Unimplemented",
    "Upload",
    "Usage",
    "WrongState",
    "assistant",
    "embeddings",
    "frames",
    "image",
    "patches",
    "raw_prompt",
    "system",
    "tiles",
    "tokens_prompt",
    "user",
    "video",
]
