"""Builds request messages from what callers pass: prompts, images, options. Pure functions; nothing is sent here.

A prompt is a string (one user message), a sequence of messages made with `system`, `user` and `assistant`, or a prompt
without a template made with `raw_prompt` or `tokens_prompt`. What may stand for an image or a clip is said in
media_sources.py. This file does not know what the server accepts: no limit is checked.
"""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict

from google.protobuf.message import Message as ProtobufMessage

from fanlight.fields import extend_field, set_field
from fanlight.handles import Upload
from fanlight.media_sources import (
    Images,
    ImageSource,
    Videos,
    build_image,
    build_images,
    build_video,
    build_videos,
)
from fanlight.v1 import chat_pb2, generation_pb2, inference_pb2
from fanlight.v1.generation_pb2 import Message, RawPrompt, TokensPrompt
from fanlight.v1.media_pb2 import Frames, Video

PartSource: TypeAlias = ImageSource | Video | Frames
"""A part of a message: text if it is a plain string, a clip if it was made with `video` or `frames` or is the upload of
one, else an image."""
Prompt: TypeAlias = str | Sequence[Message] | RawPrompt | TokensPrompt


class Options(TypedDict, total=False):
    """How to sample and what to send back. Not set, or None, means the model's default.

    max_new_tokens   most tokens to generate; not set: as many as the context has room for
    min_new_tokens   tokens before anything may end the answer
    temperature, top_p, top_k, min_p, seed
    repetition_penalty
                     above 1 makes every token of prompt and answer less likely to come again, below 1 more; 1 is off
    presence_penalty, frequency_penalty
                     taken off each token of the answer so far, once, and for every time it came; 0 is off
    stop             a stop string, or several
    stop_token_ids   token ids that end the answer
    ignore_eos       do not end at the model's end-of-sequence tokens
    include_stop     keep the stop string in the text
    text             send text (default True)
    token_ids        send token ids
    logprobs         send the log-probability of each chosen token, along with its id
    """

    max_new_tokens: int | None
    min_new_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    seed: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    include_stop: bool | None
    text: bool | None
    token_ids: bool | None
    logprobs: bool | None


class PromptOptions(Options, total=False):
    """Keyword arguments of whatever takes a prompt: Options, and what goes with the prompt.

    images   an image or several, shown before a prompt that is a string: paths, URLs, bytes, image objects, handles,
             `image` with options, or `patches`, `tiles` and `embeddings`
    video    a clip or several, shown after the images: paths, URLs, bytes, handles, `video` with options, or `frames`
    system   instructions before a prompt that is a string
    model    name of the model; None: the client's, or else the server's default
    timeout  seconds until DeadlineExceeded, uploads included; None: the client's
    """

    images: Images
    video: Videos
    system: str | None
    model: str | None
    timeout: float | None


class RequestOptions(PromptOptions, total=False):
    """All keyword arguments of a request for an answer: PromptOptions, and its id.

    request_id  for `cancel`; made up when None
    """

    request_id: str | None


SAMPLING_OPTIONS = frozenset(generation_pb2.Sampling.DESCRIPTOR.fields_by_name)
OUTPUT_OPTIONS = frozenset(generation_pb2.OutputOptions.DESCRIPTOR.fields_by_name)
LIST_OPTIONS = ("stop", "stop_token_ids")


def system(*parts: PartSource) -> Message:
    """A system message. Its parts are as those of `user`."""
    return build_message(generation_pb2.ROLE_SYSTEM, parts)


def user(*parts: PartSource) -> Message:
    """A user message of text, images and clips, in any order.

    A string is text, so give URLs and paths of images as `image(...)`, or paths as path objects. What `video` and
    `frames` make is a clip, and so is the upload of one; anything else is an image.
    """
    return build_message(generation_pb2.ROLE_USER, parts)


def assistant(*parts: PartSource) -> Message:
    """A message of the model, for a conversation that goes on from an earlier answer."""
    return build_message(generation_pb2.ROLE_ASSISTANT, parts)


def raw_prompt(*parts: PartSource, parse_special_tokens: bool = False) -> RawPrompt:
    """A prompt without a chat template. With `parse_special_tokens`, special tokens spelled out in text become those
    tokens: for trusted text only."""
    return RawPrompt(parts=[build_part(part) for part in parts], parse_special_tokens=parse_special_tokens)


def tokens_prompt(ids: Iterable[int], images: Images = (), video: Videos = ()) -> TokensPrompt:
    """A tokenised prompt. `ids` holds the model's image token once per image, and its video token once per clip; the
    server expands them."""
    prompt = TokensPrompt(images=build_images(images), videos=build_videos(video))
    extend_field(prompt, "ids", ids, "generation.tokens.ids")
    return prompt


@dataclass(frozen=True)
class PreparedRequest:
    """A generation that is ready to be sent in either way, and the id and timeout to send it with."""

    generation: generation_pb2.Generation
    request_id: str
    timeout: float | None

    def for_answer(self) -> inference_pb2.GenerateRequest:
        """The request of Generate."""
        return inference_pb2.GenerateRequest(request_id=self.request_id, generation=self.generation)

    def for_stream(self) -> inference_pb2.GenerateStreamRequest:
        """The request of GenerateStream."""
        return inference_pb2.GenerateStreamRequest(request_id=self.request_id, generation=self.generation)


def prepare_request(
    prompt: Prompt, options: RequestOptions, default_model: str | None, default_timeout: float | None
) -> PreparedRequest:
    """Builds the request for a prompt and keyword arguments. Raises TypeError for those that nobody knows."""
    rest: dict[str, Any] = dict(options)
    request_id = rest.pop("request_id", None) or new_id()
    generation, timeout = prepare_prompt(prompt, rest, default_model, default_timeout)
    return PreparedRequest(generation, request_id, timeout)


def prepare_prompt(
    prompt: Prompt, options: Mapping[str, Any], default_model: str | None, default_timeout: float | None
) -> tuple[generation_pb2.Generation, float | None]:
    """Builds the Generation for a prompt and PromptOptions, and tells the timeout to send it with."""
    rest = dict(options)
    images, videos = rest.pop("images", ()), rest.pop("video", ())
    system_text = rest.pop("system", None)
    model = rest.pop("model", None) or default_model
    timeout = rest.pop("timeout", None)
    generation = build_generation(prompt, images, videos, system_text, model, rest)
    return generation, default_timeout if timeout is None else timeout


def new_id() -> str:
    """An id for a request or a turn. Chosen here, so that errors and Cancel can name it before the server answers."""
    return uuid.uuid4().hex


def build_generation(
    prompt: Prompt,
    images: Images,
    videos: Videos,
    system_text: str | None,
    model: str | None,
    options: Mapping[str, Any],
) -> generation_pb2.Generation:
    """The Generation for a prompt of any form. Media and `system_text` beside it belong to prompts that are strings."""
    generation = generation_pb2.Generation(model=model, config=build_config(options))
    if isinstance(prompt, RawPrompt | TokensPrompt):
        refuse_beside(prompt, images, videos, system_text)
        field = "raw" if isinstance(prompt, RawPrompt) else "tokens"
        getattr(generation, field).CopyFrom(prompt)
    else:
        generation.conversation.messages.extend(build_messages(prompt, images, videos, system_text))
    return generation


def build_messages(
    prompt: str | Sequence[Message], images: Images, videos: Videos, system_text: str | None = None
) -> list[Message]:
    """The messages of a conversation: those given, or one user message of images, then clips, then text."""
    if isinstance(prompt, str):
        before = [] if system_text is None else [system(system_text)]
        message = Message(role=generation_pb2.ROLE_USER)
        message.parts.extend(generation_pb2.Part(image=image) for image in build_images(images))
        message.parts.extend(generation_pb2.Part(video=video) for video in build_videos(videos))
        message.parts.append(generation_pb2.Part(text=prompt))
        return [*before, message]
    refuse_beside(prompt, images, videos, system_text)
    messages = list(prompt)
    for position, message in enumerate(messages):
        if not isinstance(message, Message):
            raise TypeError(
                f"prompt[{position}] is a {type(message).__name__}; make messages with "
                "fanlight.system, fanlight.user and fanlight.assistant"
            )
    return messages


def build_config(options: Mapping[str, Any]) -> generation_pb2.GenerationConfig | None:
    """The config for keyword options; None when none is set, so that defaults of a chat's setup apply.

    Raises TypeError for an unknown option and InvalidRequest for a value of the wrong type or size.
    """
    config = generation_pb2.GenerationConfig()
    for name, value in options.items():
        if name in SAMPLING_OPTIONS:
            set_option(config.sampling, "sampling", name, value)
        elif name in OUTPUT_OPTIONS:
            set_option(config.output, "output", name, value)
        else:
            raise unknown_option(name)
    return config if config.ByteSize() else None


def set_option(message: ProtobufMessage, section: str, name: str, value: Any) -> None:
    """Sets a field; None leaves it unset. Raises InvalidRequest with the path of the field."""
    if value is None:
        return
    path = f"generation.config.{section}.{name}"
    if name in LIST_OPTIONS:
        extend_field(message, name, [value] if isinstance(value, str) else value, path)
    else:
        set_field(message, name, value, path)


def unknown_option(name: str) -> TypeError:
    """The error for an option that nobody knows, with the one that was probably meant."""
    known = sorted(RequestOptions.__annotations__)
    if name in known:
        return TypeError(f"option {name!r} does not go with this call")
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known options: {', '.join(known)}"
    return TypeError(f"unknown option {name!r}; {hint}")


def build_message(role: generation_pb2.Role, parts: Iterable[PartSource]) -> Message:
    """A message of one role."""
    return Message(role=role, parts=[build_part(part) for part in parts])


def build_part(part: PartSource) -> generation_pb2.Part:
    """A part: a string is text; see PartSource for the rest."""
    if isinstance(part, str):
        return generation_pb2.Part(text=part)
    if isinstance(part, Video | Frames) or (isinstance(part, Upload) and part.content_type.startswith("video/")):
        return generation_pb2.Part(video=build_video(part))
    return generation_pb2.Part(image=build_image(part))


def refuse_beside(prompt: object, images: Images, videos: Videos, system_text: str | None) -> None:
    """Raises TypeError for what goes with a prompt that is a string only."""
    if system_text is not None or not is_empty(images) or not is_empty(videos):
        raise TypeError(
            f"images=, video= and system= go with a prompt that is a string, not a {type(prompt).__name__}; "
            "put them into the prompt itself"
        )


def is_empty(media: Images | Videos) -> bool:
    """Whether nothing was passed; an iterator counts as something."""
    return isinstance(media, tuple | list) and not media


def build_setup(
    model: str | None, history: Sequence[Message], system_text: str | None, options: Mapping[str, Any]
) -> chat_pb2.ChatRequest:
    """The first message of a chat."""
    before = [] if system_text is None else [system(system_text)]
    setup = chat_pb2.ChatSetup(model=model, history=[*before, *history], config=build_config(options))
    return chat_pb2.ChatRequest(setup=setup)


def build_turn(
    prompt: str | Sequence[Message], images: Images, videos: Videos, parent: str | None, options: Mapping[str, Any]
) -> chat_pb2.ChatTurn:
    """A turn with an id of its own. `parent` None is the chat's head, and an empty string its root."""
    return chat_pb2.ChatTurn(
        turn_id=new_id(),
        parent_turn_id=parent,
        messages=build_messages(prompt, images, videos),
        config=build_config(options),
    )
