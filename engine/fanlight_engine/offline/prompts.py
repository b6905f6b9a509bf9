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

A call that makes no sense is a TypeError or ValueError. What is wrong with the media of one prompt of a list takes that
prompt's place as a RequestError, so that the others can be answered.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanlight_engine.errors import InvalidRequestError, Reason, RequestError, UnsupportedRequestError, in_one_line
from fanlight_engine.offline.naming import WrittenPrompt
from fanlight_engine.request import (
    AudioPart,
    Conversation,
    ImagePart,
    MediaUrl,
    Message,
    Part,
    RawPrompt,
    Role,
    TextPart,
    TokenPrompt,
    VideoPart,
)

_URL = re.compile(r"https?://", re.IGNORECASE)
_PROMPTS = Conversation | RawPrompt | TokenPrompt
_WHAT_A_PROMPT_IS = "a string, a list of ids, a list of messages, a Conversation, a RawPrompt or a TokenPrompt"


_Named = tuple[str, Any]
"""How the caller calls a medium, and its part."""


@dataclass(slots=True)
class _Media:
    """The media of one prompt that no part has taken yet."""

    images: list[_Named]
    videos: list[_Named]

    def __bool__(self) -> bool:
        return bool(self.images or self.videos)


def as_batch(prompts: Any, media: Any) -> tuple[list[WrittenPrompt | RequestError], bool]:
    """The prompts, and whether there was only one that was not in a list.

    In the place of a prompt whose media cannot be read, or do not match their places, stands the error that says so.
    Raises TypeError and ValueError for what is no prompt or no media.
    """
    if _is_one(prompts):
        if media is not None and not isinstance(media, Mapping):
            raise TypeError(f"media of one prompt are a mapping or None, got {type(media).__name__}")
        return [_prompt_or_error(prompts, media, "prompt", "media")], True
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes | bytearray):
        raise TypeError(f"a prompt is {_WHAT_A_PROMPT_IS}, or a list of such; got {type(prompts).__name__}")
    return [
        _prompt_or_error(one, own, f"prompts[{number}]", f"media[{number}]")
        for number, (one, own) in enumerate(zip(prompts, _media_of_batch(media, len(prompts)), strict=True))
    ], False


def _is_one(prompts: Any) -> bool:
    """Whether it is a prompt by itself; a list of ids and a list of messages are."""
    if isinstance(prompts, str | _PROMPTS):
        return True
    return isinstance(prompts, Sequence) and bool(prompts) and (_are_ids(prompts) or _are_messages(prompts))


def _are_ids(values: Any) -> bool:
    if not isinstance(values, Sequence) or isinstance(values, bytes | bytearray | memoryview):
        return False
    return all(isinstance(one, int) and not isinstance(one, bool) for one in values)


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


def _prompt_or_error(
    prompt: Any, media: Mapping[str, Any] | None, name: str, media_name: str
) -> WrittenPrompt | RequestError:
    try:
        return _prompt(prompt, _read_media(media, media_name), name)
    except RequestError as error:
        return error


def _prompt(prompt: Any, own: _Media, name: str) -> WrittenPrompt:
    if isinstance(prompt, _PROMPTS):
        if own:
            raise TypeError(f"{name} is a {type(prompt).__name__}, which brings its media itself; leave media out")
        return WrittenPrompt(prompt, name, {})
    if isinstance(prompt, str):
        parts = [*own.images, *own.videos, (name, TextPart(prompt))]
        message = Message(Role.USER, tuple(part for _, part in parts))
        names = {_path(0, number, part): written for number, (written, part) in enumerate(parts)}
        return WrittenPrompt(Conversation((message,)), name, {"conversation": name, **names})
    if _are_ids(prompt):
        images, videos = (tuple(part for _, part in media) for media in (own.images, own.videos))
        names = {f"tokens.images[{number}]": medium for number, (medium, _) in enumerate(own.images)}
        names |= {f"tokens.videos[{number}]": medium for number, (medium, _) in enumerate(own.videos)}
        return WrittenPrompt(TokenPrompt(tuple(prompt), images, videos), name, {"tokens.ids": name, **names})
    if _are_messages(prompt):
        return _conversation(prompt, own, name)
    raise TypeError(f"{name} is {_described(prompt)}; a prompt is {_WHAT_A_PROMPT_IS}")


def _conversation(messages: Sequence[Any], own: _Media, name: str) -> WrittenPrompt:
    names = {"conversation": name, "conversation.messages": name}
    read: list[Message] = []
    for number, message in enumerate(messages):
        if isinstance(message, Message):
            read.append(message)
            continue
        parts = list(_parts_of(message, own, f"{name}[{number}]"))
        names |= {_path(number, place, part): written for place, (written, part) in enumerate(parts)}
        read.append(Message(_role(message, f"{name}[{number}]"), tuple(part for _, part in parts)))
    _refuse_left_over(own, name)
    return WrittenPrompt(Conversation(tuple(read)), name, names)


def _path(message: int, part: int, what: Part) -> str:
    """The engine's for a part of a conversation."""
    kind = ".image" if isinstance(what, ImagePart) else ".video" if isinstance(what, VideoPart) else ""
    return f"conversation.messages[{message}].parts[{part}]{kind}"


def _described(value: Any) -> str:
    kinds = sorted({type(one).__name__ for one in value}) if isinstance(value, list | tuple) else []
    return f"a {type(value).__name__}" + (f" of {' and '.join(kinds)}" if kinds else "")


def _read_media(media: Mapping[str, Any] | None, name: str) -> _Media:
    read = _Media([], [])
    for kind, sources in (media or {}).items():
        if kind == "audio":
            raise UnsupportedRequestError(name, "it has audio, which is not served", Reason.MODALITY_UNSUPPORTED)
        if kind not in ("image", "video"):
            raise ValueError(f"{name} has {kind!r}; known are 'image' and 'video'")
        for place, source in _several(sources, f"{name}.{kind}"):
            if kind == "image":
                read.images.append((place, _image(source, place)))
            else:
                read.videos.append((place, _video(source, place)))
    return read


def _several(sources: Any, name: str) -> Iterator[_Named]:
    """Each source with its name."""
    if not isinstance(sources, list | tuple):
        yield name, sources
        return
    yield from ((f"{name}[{number}]", source) for number, source in enumerate(sources))


def _role(message: Mapping[str, Any], name: str) -> Role:
    try:
        return Role(message["role"])
    except ValueError as error:
        raise ValueError(f"{name} has role {message['role']!r}; known are {', '.join(Role)}") from error


def _parts_of(message: Mapping[str, Any], own: _Media, name: str) -> Iterator[_Named]:
    unknown = message.keys() - {"role", "content"}
    if unknown or "role" not in message or "content" not in message:
        raise ValueError(f"{name} has the keys {sorted(message)}; a message has role and content")
    content = message["content"]
    if isinstance(content, str):
        yield f"{name}.content", TextPart(content)
        return
    if not isinstance(content, list | tuple):
        raise TypeError(f"{name} has content of type {type(content).__name__}; a string or a list of parts is needed")
    for number, part in enumerate(content):
        yield _part(part, own, f"{name}.content[{number}]")


def _part(part: Any, own: _Media, name: str) -> _Named:
    if isinstance(part, TextPart | ImagePart | VideoPart | AudioPart):
        return name, part
    if isinstance(part, str):
        return name, TextPart(part)
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return name, TextPart(part["text"])
    if kind == "image":
        source = part.get("image")
        return _next(own.images, name, "image") if source is None else (name, _image(source, f"{name}.image"))
    if kind == "video":
        source = part.get("video")
        return _next(own.videos, name, "video") if source is None else (name, _video(source, f"{name}.video"))
    if kind == "audio":
        return name, AudioPart()
    raise TypeError(f"{name} is no part: a part is a string, an engine part, or a mapping of type text, image or video")


def _next(media: list[_Named], name: str, kind: str) -> _Named:
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


def _image(source: Any, name: str) -> ImagePart:
    if isinstance(source, ImagePart):
        return source
    if not hasattr(source, "save") or isinstance(source, os.PathLike):
        return ImagePart(_file(source, name, "an image", ", an image object", Reason.IMAGE_UNREADABLE))
    file = io.BytesIO()
    try:
        source.save(file, format="PNG")
    except Exception as error:  # image objects of other libraries raise whatever they do
        told = f"the image object cannot be written as PNG: {in_one_line(error)}; convert it to RGB first"
        raise InvalidRequestError(name, told, Reason.IMAGE_UNREADABLE) from error
    return ImagePart(file.getvalue())


def _video(source: Any, name: str) -> VideoPart:
    if isinstance(source, VideoPart):
        return source
    return VideoPart(_file(source, name, "a video", "", Reason.VIDEO_UNREADABLE))


def _file(source: Any, name: str, what: str, others: str, reason: Reason) -> bytes | MediaUrl:
    """The bytes of a file, or its URL, which is fetched where the settings allow it."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str) and _URL.match(source):
        return MediaUrl(source)
    if not isinstance(source, str | os.PathLike):
        told = f"{what} is a path, a URL, the bytes of a file{others} or an engine part; got {_described(source)}"
        raise InvalidRequestError(name, told, reason)
    try:
        return Path(source).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        why = (error.strerror if isinstance(error, OSError) else None) or in_one_line(error)
        told = f"the file {os.fspath(source)!r} cannot be read: {why}; give the path of a file that there is"
        raise InvalidRequestError(name, told, reason) from error
