"""What the server needs from the engine's front half, as a protocol; `fanlight_engine.front.Front` is the one in use.

Imports nothing heavy, so that tests can put a scripted one in its place and commands start at once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from fanlight_engine.config import EngineConfig
from fanlight_engine.events import Event
from fanlight_engine.request import FinishReason, Generation, ImagePart, Message, Modality, TextPart

if TYPE_CHECKING:
    from fanlight_engine.checkpoints.checkpoint import Checkpoint
    from fanlight_engine.client import EngineClient
    from fanlight_engine.dry_run import EncodedMedia, TextToken, TokenCount
    from fanlight_engine.inputs.media.sources.store import MediaStore


class Transcript(Protocol):
    """What was said in one answer."""

    def add(self, event: Event) -> None:
        """Take note of the next event."""
        ...

    def part(self) -> TextPart:
        """What was said so far."""
        ...


class Backend(Protocol):
    """Turns generations into events, keeps media, and answers questions about prompts."""

    @property
    def checkpoint(self) -> Checkpoint:
        """What is served."""
        ...

    @property
    def config(self) -> EngineConfig:
        """How it is served."""
        ...

    @property
    def client(self) -> EngineClient:
        """The core behind it; its facts can be read once `start` has returned."""
        ...

    @property
    def modalities(self) -> frozenset[Modality]:
        """The kinds of media that are taken. Raises EngineStoppedError before `start` and after `stop`."""
        ...

    @property
    def placeholder_ids(self) -> Mapping[Modality, int]:
        """The ids that stand for one medium of a kind in a token prompt, for the kinds that have one. Raises
        EngineStoppedError as `modalities` does."""
        ...

    @property
    def store(self) -> MediaStore:
        """Uploads, each visible to whoever sent it."""
        ...

    async def start(self) -> None:
        """Load everything. Raises StartupError."""
        ...

    async def probe(self) -> None:
        """Try whether the checkpoint's media fit its model. Raises CheckpointError."""
        ...

    async def stop(self) -> None:
        """Stop everything. Idempotent."""
        ...

    def transcript(self) -> Transcript:
        """Collects the events of a generation that asks for text and token ids, as history for a later one."""
        ...

    def generate(self, generation: Generation, request_id: str) -> AsyncGenerator[Event, None]:
        """Events in the order of `fanlight_engine.events`; closing it early frees the request. Raises EngineError."""
        ...

    def cancel(self, request_id: str, reason: FinishReason = FinishReason.CANCELLED) -> bool:
        """End a running generation with `reason`; False when none of this id runs."""
        ...

    async def count_tokens(self, generation: Generation) -> TokenCount:
        """What the prompt of a generation becomes; computes nothing on the device. Raises what `generate` raises."""
        ...

    async def tokenize(self, model: str, text: str, parse_special_tokens: bool) -> tuple[TextToken, ...]:
        """The tokens of a text. Raises RequestError."""
        ...

    async def detokenize(self, model: str, ids: Sequence[int], spell_special_tokens: bool) -> str:
        """The text of tokens. Raises RequestError."""
        ...

    async def encode_media(self, model: str, parts: Sequence[ImagePart], principal: str) -> tuple[EncodedMedia, ...]:
        """Embeddings that are held from now on, one for each part. Raises EngineError; fields are `images[i]`."""
        ...

    async def resolve_sources(self, messages: Sequence[Message], principal: str) -> tuple[Message, ...]:
        """The messages with URLs and digests replaced by what they name, so that later turns need neither.

        Raises RequestError; fields are `messages[i].parts[j].image`.
        """
        ...
