"""Prompts and media as offline callers write them -> `request.Prompt`. Knows no checkpoint; files are read here.

| a prompt is | it becomes |
|---|---|
| a string | a conversation of one user message: the media, pictures first, then the text |
| a list of ids | a token prompt, whose placeholder ids stand for the media in order |
| a list of messages | a conversation; image and video parts without a source take the next of the media |
| a Conversation, RawPrompt or TokenPrompt | itself; it brings its own media |

A message is a `Message` or a mapping of `role` and `content`; content is a string or a list of parts; a part is a
string, an engine part, or a mapping: {"type": "text", "text": ...}, {"type": "image", "image": source},
{"type": "video", "video": source}. The media of a prompt are a mapping: {"image": source or sources, "video": ...}.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanlight_engine.errors import InvalidRequestError, Reason, UnsupportedRequestError
from fanlight_engine.request import (
    AudioPart,
    Conversation,
    ImagePart,
    MediaUrl,
    Message,
    Part,
    Prompt,
    RawPrompt,
    Role,
    TextPart,
    TokenPrompt,
    VideoPart,
)

_URL = re.compile(r"https?://", re.IGNORECASE)
_PROMPTS = Conversation | RawPrompt | TokenPrompt
_WHAT_A_PROMPT_IS = "a string, a list of ids, a list of messages, a Conversation, a RawPrompt or a TokenPrompt"


@dataclass(slots=True)
class _Media:
    """The media of one prompt that no part has taken yet."""

    images: list[ImagePart]
    videos: list[VideoPart]

    def __bool__(self) -> bool:
        return bool(self.images or self.videos)


def as_batch(prompts: Any, media: Any) -> tuple[list[Prompt], bool]:
    """The prompts, and whether there was only one that was not in a list.

    Raises TypeError and ValueError for what is no prompt or no media, InvalidRequestError where media and their places
    do not match, OSError for files that cannot be read.
    """
    if _is_one(prompts):
        if media is not None and not isinstance(media, Mapping):
            raise TypeError(f"media of one prompt are a mapping or None, got {type(media).__name__}")
        return [_prompt(prompts, media, "prompt")], True
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes | bytearray):
        raise TypeError(f"a prompt is {_WHAT_A_PROMPT_IS}, or a list of such; got {type(prompts).__name__}")
    return [
        _prompt(one, own, f"prompts[{number}]")
        for number, (one, own) in enumerate(zip(prompts, _media_of_batch(media, len(prompts)), strict=True))
    ], False


def _is_one(prompts: Any) -> bool:
    """Whether it is a prompt by itself; a list of ids and a list of messages are."""
    if isinstance(prompts, str | _PROMPTS):
        return True
    return isinstance(prompts, Sequence) and bool(prompts) and (_are_ids(prompts) or _are_messages(prompts))


def _are_ids(values: Any) -> bool:
    return isinstance(values, Sequence) and all(isinstance(one, int) and not isinstance(one, bool) for one in values)


def _are_messages(values: Any) -> bool:
    return isinstance(values, Sequence) and all(isinstance(one, Mapping | Message) for one in values)


def _media_of_batch(media: Any, count: int) -> Sequence[Any]:
    if media is None:
        return [None] * count
    if not isinstance(media, Sequence) or isinstance(media, str | bytes | bytearray):
        raise TypeError(f"media of a batch are a list with a mapping or None per prompt, got {type(media).__name__}")
    if len(media) != count:
        raise ValueError(f"got media for {len(media)} prompts, there are {count}; give one entry per prompt, or None")
    for number, one in enumerate(media):
        if one is not None and not isinstance(one, Mapping):
            raise TypeError(f"media[{number}] is a {type(one).__name__}, a mapping or None is needed")
    return media


def _prompt(prompt: Any, media: Mapping[str, Any] | None, name: str) -> Prompt:
    own = _read_media(media)
    if isinstance(prompt, _PROMPTS):
        if own:
            raise TypeError(f"{name} is a {type(prompt).__name__}, which brings its media itself; leave media out")
        return prompt
    if isinstance(prompt, str):
        return Conversation((Message(Role.USER, (*own.images, *own.videos, TextPart(prompt))),))
    if _are_ids(prompt):
        return TokenPrompt(tuple(prompt), tuple(own.images), tuple(own.videos))
    if _are_messages(prompt):
        conversation = Conversation(tuple(_message(one, own, f"{name}[{number}]") for number, one in enumerate(prompt)))
        _refuse_left_over(own, name)
        return conversation
    raise TypeError(f"{name} is {_described(prompt)}; a prompt is {_WHAT_A_PROMPT_IS}")


def _described(value: Any) -> str:
    kinds = sorted({type(one).__name__ for one in value}) if isinstance(value, list | tuple) else []
    return f"a {type(value).__name__}" + (f" of {' and '.join(kinds)}" if kinds else "")


def _read_media(media: Mapping[str, Any] | None) -> _Media:
    read = _Media([], [])
    for kind, sources in (media or {}).items():
        if kind == "audio":
            raise UnsupportedRequestError("media", "it has audio, which is not served", Reason.MODALITY_UNSUPPORTED)
        if kind not in ("image", "video"):
            raise ValueError(f"media has {kind!r}; known are 'image' and 'video'")
        for source in _several(sources):
            if kind == "image":
                read.images.append(_image(source))
            else:
                read.videos.append(_video(source))
    return read


def _several(sources: Any) -> Sequence[Any]:
    return sources if isinstance(sources, list | tuple) else [sources]


def _message(message: Message | Mapping[str, Any], own: _Media, name: str) -> Message:
    if isinstance(message, Message):
        return message
    unknown = message.keys() - {"role", "content"}
    if unknown or "role" not in message or "content" not in message:
        raise ValueError(f"{name} has the keys {sorted(message)}; a message has role and content")
    try:
        role = Role(message["role"])
    except ValueError as error:
        raise ValueError(f"{name} has role {message['role']!r}; known are {', '.join(Role)}") from error
    return Message(role, tuple(_parts(message["content"], own, name)))


def _parts(content: Any, own: _Media, name: str) -> Iterator[Part]:
    if isinstance(content, str):
        content = [content]
    if not isinstance(content, list | tuple):
        raise TypeError(f"{name} has content of type {type(content).__name__}; a string or a list of parts is needed")
    for number, part in enumerate(content):
        yield _part(part, own, f"{name}.content[{number}]")


def _part(part: Any, own: _Media, name: str) -> Part:
    if isinstance(part, TextPart | ImagePart | VideoPart | AudioPart):
        return part
    if isinstance(part, str):
        return TextPart(part)
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return TextPart(part["text"])
    if kind == "image":
        source = part.get("image")
        return _next(own.images, name, "image") if source is None else _image(source)
    if kind == "video":
        source = part.get("video")
        return _next(own.videos, name, "video") if source is None else _video(source)
    if kind == "audio":
        return AudioPart()
    raise TypeError(f"{name} is no part: a part is a string, an engine part, or a mapping of type text, image or video")


def _next(media: list[Any], name: str, kind: str) -> Any:
    if not media:
        raise InvalidRequestError(
            name, f"it stands for an {kind} and media has no more of them; both counts must be equal",
            Reason.IMAGE_COUNT_MISMATCH,
        )  # fmt: skip
    return media.pop(0)


def _refuse_left_over(own: _Media, name: str) -> None:
    if own:
        raise InvalidRequestError(
            name,
            f"media has {len(own.images)} images and {len(own.videos)} videos that no part stands for; both counts "
            "must be equal",
            Reason.IMAGE_COUNT_MISMATCH,
        )


def _image(source: Any) -> ImagePart:
    if isinstance(source, ImagePart):
        return source
    if hasattr(source, "save") and not isinstance(source, os.PathLike):
        file = io.BytesIO()
        source.save(file, format="PNG")
        return ImagePart(file.getvalue())
    return ImagePart(_file(source, "an image", ", an image object"))


def _video(source: Any) -> VideoPart:
    return source if isinstance(source, VideoPart) else VideoPart(_file(source, "a video", ""))


def _file(source: Any, what: str, others: str) -> bytes | MediaUrl:
    """The bytes of a file, or its URL, which is fetched where the settings allow it."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str) and _URL.match(source):
        return MediaUrl(source)
    if isinstance(source, str | os.PathLike):
        return Path(source).read_bytes()
    raise TypeError(f"{what} is a path, a URL, the bytes of a file{others} or an engine part; got {_described(source)}")
