"""The checks of a prompt that cost nothing: shape, kinds of parts, counts and encoded sizes of images.

Runs on the event loop before any work is done. Knows no tokenizer and opens no image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import InvalidRequestError, Reason, UnsupportedRequestError
from fanlight_engine.model.checkpoint import Checkpoint
from fanlight_engine.request import AudioPart, Conversation, ImagePart, Part, Prompt, RawPrompt, TextPart


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image of the prompt, encoded, and where in the Generation it stands."""

    field: str
    data: bytes


def image_sources(prompt: Prompt, checkpoint: Checkpoint, config: EngineConfig) -> tuple[ImageSource, ...]:
    """The images of a prompt in order. Raises InvalidRequestError or UnsupportedRequestError naming the part."""
    if isinstance(prompt, Conversation):
        sources = tuple(_conversation_images(prompt))
    elif isinstance(prompt, RawPrompt):
        sources = tuple(_part_images(prompt.parts, "raw"))
    else:
        if not prompt.ids:
            raise InvalidRequestError("tokens.ids", "it is empty; send at least one id", Reason.EMPTY_PROMPT)
        sources = tuple(ImageSource(f"tokens.images[{i}]", image.data) for i, image in enumerate(prompt.images))
    _check_images(sources, checkpoint, config)
    return sources


def _conversation_images(conversation: Conversation) -> Iterator[ImageSource]:
    if not conversation.messages:
        raise InvalidRequestError(
            "conversation.messages", "it is empty; send at least one message", Reason.EMPTY_PROMPT
        )
    for index, message in enumerate(conversation.messages):
        yield from _part_images(message.parts, f"conversation.messages[{index}]")


def _part_images(parts: tuple[Part, ...], path: str) -> Iterator[ImageSource]:
    if not parts:
        raise InvalidRequestError(f"{path}.parts", "it is empty; send at least one part", Reason.EMPTY_PROMPT)
    for index, part in enumerate(parts):
        field = f"{path}.parts[{index}]"
        if isinstance(part, ImagePart):
            yield ImageSource(f"{field}.image", part.data)
        elif isinstance(part, AudioPart):
            raise UnsupportedRequestError(
                f"{field}.audio", "audio is not supported; send text and images only", Reason.MODALITY_UNSUPPORTED
            )
        else:
            _check_text(part, f"{field}.text")


def _check_text(part: TextPart, field: str) -> None:
    try:
        part.text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            field, f"character {error.start} is half of a surrogate pair; send valid Unicode text"
        ) from error


def _check_images(sources: tuple[ImageSource, ...], checkpoint: Checkpoint, config: EngineConfig) -> None:
    if sources and not checkpoint.takes_images:
        raise InvalidRequestError(
            sources[0].field,
            f"model {checkpoint.name!r} takes text only; leave the image out or ask a model that sees",
            Reason.MODALITY_UNSUPPORTED,
        )
    if len(sources) > config.max_images:
        raise InvalidRequestError(
            sources[config.max_images].field,
            f"got {len(sources)} images, at most {config.max_images} are allowed in one request",
            Reason.TOO_MANY_IMAGES,
        )
    for source in sources:
        if not source.data:
            raise InvalidRequestError(source.field, "it has no bytes; send the encoded file", Reason.IMAGE_UNREADABLE)
        if len(source.data) > config.max_image_bytes:
            raise InvalidRequestError(
                source.field,
                f"got {len(source.data)} encoded bytes, at most {config.max_image_bytes} are allowed; scale it down",
                Reason.IMAGE_TOO_LARGE,
            )
