"""What a caller asks for: prompts, sampling and output options, as plain frozen data.

The server's convert module fills these from protobuf; the offline callers fill them by hand. Nothing here knows
tensors, tokenizers or the wire. `None` in `SamplingOptions` means "not asked", which is not the same as any value:
`sampling.resolve` turns it into the checkpoint's default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """Who speaks in a conversation."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text that is never read as special tokens.

    `token_ids` is filled only for answers this engine generated: the exact ids, so that history rendered for a later
    turn is the same token for token and finds its pages in the prefix cache.
    """

    text: str
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image as encoded bytes (JPEG, PNG, WebP or GIF)."""

    data: bytes


@dataclass(frozen=True, slots=True)
class AudioPart:
    """Declared so that it can be refused by name instead of ignored."""


Part = TextPart | ImagePart | AudioPart


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation; parts keep their order."""

    role: Role
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages to be rendered with the checkpoint's chat template."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """Parts in order, without a template. Text is tokenised with special tokens off unless asked otherwise."""

    parts: tuple[Part, ...]
    parse_special_tokens: bool = False


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, one image placeholder id per image, and the images in order of their placeholders."""

    ids: tuple[int, ...]
    images: tuple[ImagePart, ...] = ()


Prompt = Conversation | RawPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Sampling as asked for; every `None` takes the checkpoint's default. Ranges are checked by `sampling.resolve`."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Which parts of the answer are wanted."""

    text: bool = True
    token_ids: bool = False
    logprobs: bool = False
    skip_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class Generation:
    """One request: a prompt, how to sample, what to return. `model` empty means the served one."""

    prompt: Prompt
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    output: OutputOptions = field(default_factory=OutputOptions)
    model: str = ""


class FinishReason(StrEnum):
    """Why an output ended."""

    STOP = "stop"
    """The model ended its turn (an end-of-sequence id or a stop token id)."""
    STOP_SEQUENCE = "stop_sequence"
    """A stop string was matched."""
    LENGTH = "length"
    """max_new_tokens was reached."""
    CONTEXT_FULL = "context_full"
    """The model's context ended, or the clamped rest of it was used up."""
    CANCELLED = "cancelled"
    """Cancelled by id or by a lost stream."""
    INTERRUPTED = "interrupted"
    """The turn was interrupted; what was said so far is kept."""
    ERROR = "error"
    """This output failed; its neighbours were not touched."""
