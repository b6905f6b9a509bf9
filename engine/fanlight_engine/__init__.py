"""Fanlight's engine: continuous batching over a paged KV cache for vision-language models. Knows nothing of gRPC.

    from fanlight_engine import LLM, SamplingOptions

    with LLM("path/to/checkpoint") as llm:
        (answer,) = llm.generate("What is it?", SamplingOptions(max_new_tokens=256), media={"image": "cat.jpg"})
        print(answer.text)

`AsyncLLM` is the same for asyncio. Names are imported when they are first used, since torch takes seconds.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fanlight_engine.offline.async_llm import AsyncLLM
    from fanlight_engine.offline.llm import LLM
    from fanlight_engine.offline.results import Completion
    from fanlight_engine.request import (
        Conversation,
        ImagePart,
        Message,
        OutputOptions,
        RawPrompt,
        Role,
        SamplingOptions,
        TextPart,
        TokenPrompt,
        VideoPart,
    )

__all__ = [
    "LLM",
    "AsyncLLM",
    "Completion",
    "Conversation",
    "ImagePart",
    "Message",
    "OutputOptions",
    "RawPrompt",
    "Role",
    "SamplingOptions",
    "TextPart",
    "TokenPrompt",
    "VideoPart",
]

# Where torchao is installed, transformers imports it, and torch warns of a deprecation in torchao itself.
logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)

_HOMES = {
    "LLM": "fanlight_engine.offline.llm",
    "AsyncLLM": "fanlight_engine.offline.async_llm",
    "Completion": "fanlight_engine.offline.results",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "fanlight_engine.request")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
