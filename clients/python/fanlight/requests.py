"""Builds request messages from what callers pass: prompts, images, options. Pure functions; nothing is sent here.

A prompt is a string (one user message), a sequence of messages made with `system`, `user` and `assistant`, or a prompt
without a template made with `raw_prompt` or `tokens_prompt`. An image is the path of a file, the bytes of a file, or an
object with a `save` method such as a PIL image. This file does not know what the server accepts: no limit is checked.
"""

from __future__ import annotations

import difflib
import io
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypedDict, runtime_checkable

from google.protobuf.message import Message as ProtobufMessage

from fanlight.errors import invalid_field
from fanlight.v1 import chat_pb2, generation_pb2, inference_pb2
from fanlight.v1.generation_pb2 import Message, RawPrompt, TokensPrompt


@runtime_checkable
class SavableImage(Protocol):
    """An image in memory that can write itself as a file, as PIL's images can."""

    def save(self, fp: Any, /, format: str | None = None) -> Any:
        """Writes the image to a binary file object, encoded as `format`."""
        ...


ImageSource: TypeAlias = str | os.PathLike[str] | bytes | bytearray | SavableImage
"""An image: the path of a file, its bytes, or an image object."""
Images: TypeAlias = ImageSource | Iterable[ImageSource]
PartSource: TypeAlias = ImageSource
"""A part of a message: as an image, but that a plain string is text."""
Prompt: TypeAlias = str | Sequence[Message] | RawPrompt | TokensPrompt


class Options(TypedDict, total=False):
    """How to sample and what to send back. Not set, or None, means the model's default.

    max_new_tokens   most tokens to generate
    min_new_tokens   tokens before anything may end the answer
    temperature, top_p, top_k, min_p, seed
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
    seed: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    include_stop: bool | None
    text: bool | None
    token_ids: bool | None
    logprobs: bool | None


class RequestOptions(Options, total=False):
    """All keyword arguments of a request for an answer: Options, and what the request is about.

    images      a path, bytes or an image object, one or several, shown before a prompt that is a string
    system      instructions before a prompt that is a string
    model       name of the model; None: the client's, or else the server's default
    request_id  for `cancel`; made up when None
    timeout     seconds until DeadlineExceeded; None: the client's
    """

    images: Images
    system: str | None
    model: str | None
    request_id: str | None
    timeout: float | None


SAMPLING_OPTIONS = frozenset(generation_pb2.Sampling.DESCRIPTOR.fields_by_name)
OUTPUT_OPTIONS = frozenset(generation_pb2.OutputOptions.DESCRIPTOR.fields_by_name)


def system(*parts: PartSource) -> Message:
    """A system message. A string is text; a path object, bytes or an image object is an image."""
    return build_message(generation_pb2.ROLE_SYSTEM, parts)


def user(*parts: PartSource) -> Message:
    """A user message. A string is text; a path object, bytes or an image object is an image."""
    return build_message(generation_pb2.ROLE_USER, parts)


def assistant(*parts: PartSource) -> Message:
    """A message of the model, for a conversation that goes on from an earlier answer."""
    return build_message(generation_pb2.ROLE_ASSISTANT, parts)


def raw_prompt(*parts: PartSource, parse_special_tokens: bool = False) -> RawPrompt:
    """A prompt without a chat template. With `parse_special_tokens`, special tokens spelled out in text become those
    tokens: for trusted text only."""
    return RawPrompt(parts=[build_part(part) for part in parts], parse_special_tokens=parse_special_tokens)


def tokens_prompt(ids: Iterable[int], images: Images = ()) -> TokensPrompt:
    """A tokenised prompt. `ids` holds the model's image token once per image; the server expands it."""
    try:
        return TokensPrompt(ids=ids, images=build_images(images))
    except (TypeError, ValueError) as error:
        raise invalid_field("generation.tokens.ids", f"token ids must be integers from 0: {error}") from error


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
    images = rest.pop("images", ())
    system_text = rest.pop("system", None)
    model = rest.pop("model", None) or default_model
    request_id = rest.pop("request_id", None) or new_id()
    timeout = rest.pop("timeout", None)
    return PreparedRequest(
        generation=build_generation(prompt, images, system_text, model, rest),
        request_id=request_id,
        timeout=default_timeout if timeout is None else timeout,
    )


def new_id() -> str:
    """An id for a request or a turn. Chosen here, so that errors and Cancel can name it before the server answers."""
    return uuid.uuid4().hex


def build_generation(
    prompt: Prompt, images: Images, system_text: str | None, model: str | None, options: Mapping[str, Any]
) -> generation_pb2.Generation:
    """The Generation for a prompt of any form. `images` and `system_text` belong to prompts that are strings."""
    generation = generation_pb2.Generation(model=model, config=build_config(options))
    if isinstance(prompt, RawPrompt | TokensPrompt):
        if system_text is not None or not is_empty(images):
            raise TypeError("images= and system= go with a prompt that is a string; put images into the prompt itself")
        field = "raw" if isinstance(prompt, RawPrompt) else "tokens"
        getattr(generation, field).CopyFrom(prompt)
    else:
        generation.conversation.messages.extend(build_messages(prompt, images, system_text))
    return generation


def build_messages(prompt: str | Sequence[Message], images: Images, system_text: str | None = None) -> list[Message]:
    """The messages of a conversation: those given, or one user message of images and then text."""
    if isinstance(prompt, str):
        before = [] if system_text is None else [system(system_text)]
        message = Message(role=generation_pb2.ROLE_USER)
        message.parts.extend(generation_pb2.Part(image=image) for image in build_images(images))
        message.parts.append(generation_pb2.Part(text=prompt))
        return [*before, message]
    if system_text is not None or not is_empty(images):
        raise TypeError("images= and system= go with a prompt that is a string; put them into the messages instead")
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
    try:
        if isinstance(message, generation_pb2.Sampling) and name in ("stop", "stop_token_ids"):
            getattr(message, name).extend([value] if isinstance(value, str) else value)
        else:
            setattr(message, name, value)
    except (TypeError, ValueError) as error:
        raise invalid_field(f"generation.config.{section}.{name}", f"got {value!r}: {error}") from error


def unknown_option(name: str) -> TypeError:
    """The error for an option that nobody knows, with the one that was probably meant."""
    known = sorted(RequestOptions.__annotations__)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known options: {', '.join(known)}"
    return TypeError(f"unknown option {name!r}; {hint}")


def build_message(role: generation_pb2.Role, parts: Iterable[PartSource]) -> Message:
    """A message of one role."""
    return Message(role=role, parts=[build_part(part) for part in parts])


def build_part(part: PartSource) -> generation_pb2.Part:
    """A part: a string is text, anything else an image."""
    if isinstance(part, str):
        return generation_pb2.Part(text=part)
    return generation_pb2.Part(image=build_image(part))


def build_images(images: Images) -> list[generation_pb2.Image]:
    """Messages for one image or several."""
    if isinstance(images, str | os.PathLike | bytes | bytearray | SavableImage):
        return [build_image(images)]
    return [build_image(image) for image in images]


def build_image(image: ImageSource) -> generation_pb2.Image:
    """The message for an image. Reads the file of a path; an image object is encoded as PNG, which loses nothing.

    Raises OSError when a file cannot be read.
    """
    if isinstance(image, bytes | bytearray):
        return generation_pb2.Image(data=bytes(image))
    if isinstance(image, str | os.PathLike):
        return generation_pb2.Image(data=Path(image).read_bytes())
    if isinstance(image, SavableImage):
        encoded = io.BytesIO()
        image.save(encoded, format="PNG")
        return generation_pb2.Image(data=encoded.getvalue())
    raise TypeError(f"an image is a path, bytes or an object with a save method, not a {type(image).__name__}")


def is_empty(images: Images) -> bool:
    """Whether no image was passed; an iterator counts as some."""
    return isinstance(images, tuple | list) and not images


def build_setup(
    model: str | None, history: Sequence[Message], system_text: str | None, options: Mapping[str, Any]
) -> chat_pb2.ChatRequest:
    """The first message of a chat."""
    before = [] if system_text is None else [system(system_text)]
    setup = chat_pb2.ChatSetup(model=model, history=[*before, *history], config=build_config(options))
    return chat_pb2.ChatRequest(setup=setup)


def build_turn(
    prompt: str | Sequence[Message], images: Images, parent: str | None, options: Mapping[str, Any]
) -> chat_pb2.ChatTurn:
    """A turn with an id of its own. `parent` None is the chat's head, and an empty string its root."""
    return chat_pb2.ChatTurn(
        turn_id=new_id(),
        parent_turn_id=parent,
        messages=build_messages(prompt, images),
        config=build_config(options),
    )
