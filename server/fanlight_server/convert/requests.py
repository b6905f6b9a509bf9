"""Messages of a client -> engine requests. Field presence is kept: unset stays None, a set 0 stays 0.

Checks what only the message can tell (missing oneofs, unset roles, names of fields); ranges are the engine's business.
`path` is where a message lies below the request message, and every error names the whole path.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fanlight.v1 import chat_pb2, generation_pb2, inference_pb2, model_pb2
from fanlight_engine.request import (
    AudioPart,
    Conversation,
    Generation,
    Message,
    OutputOptions,
    Part,
    Prompt,
    RawPrompt,
    Role,
    SamplingOptions,
    TextPart,
    TokenPrompt,
)
from fanlight_server.active_requests import checked_request_id, new_request_id
from fanlight_server.chat_session import AnswerOptions, ChatSetup, Interrupt, TurnRequest
from fanlight_server.convert.media import image_of, video_of
from fanlight_server.convert.values import optional
from fanlight_server.status import field_error, missing_field

CarriesGeneration = inference_pb2.GenerateRequest | inference_pb2.GenerateStreamRequest | model_pb2.CountTokensRequest

GENERATION_PATH = "generation"
SEED_BITS = 63

_ROLES = {
    generation_pb2.ROLE_SYSTEM: Role.SYSTEM,
    generation_pb2.ROLE_USER: Role.USER,
    generation_pb2.ROLE_ASSISTANT: Role.ASSISTANT,
}


def request_id_of(message: inference_pb2.GenerateRequest | inference_pb2.GenerateStreamRequest) -> str:
    """The client's id, or a new one. Raises ServiceError when the client's is malformed."""
    return checked_request_id(message.request_id) if message.HasField("request_id") else new_request_id()


def cancelled_request_id(message: inference_pb2.CancelRequest) -> str:
    """The id to cancel. Raises ServiceError when it is missing or malformed."""
    if not message.request_id:
        raise missing_field("request_id", "is empty; give the id of the request, as chosen or as told in accepted")
    return checked_request_id(message.request_id)


def generation_of(message: CarriesGeneration, principal: str) -> Generation:
    """The generation that a request of `principal` asks for, or wants counted. Raises ServiceError naming the field."""
    if not message.HasField("generation"):
        raise missing_field(GENERATION_PATH, "is not set; say what to generate")
    generation = message.generation
    options = options_of(generation.config, f"{GENERATION_PATH}.config")
    return with_seed(
        Generation(
            prompt=_prompt(generation, GENERATION_PATH),
            sampling=options.sampling,
            output=options.output,
            model=generation.model,
            principal=principal,
        )
    )


def below_generation(field: str) -> str:
    """The path in the request message of what the engine names by its path below the generation."""
    return f"{GENERATION_PATH}.{field}"


def with_seed(generation: Generation) -> Generation:
    """Draws a seed where none was asked for: the client learns it already when its request is accepted."""
    if generation.sampling.seed is not None:
        return generation
    return replace(generation, sampling=replace(generation.sampling, seed=secrets.randbits(SEED_BITS)))


def options_of(config: generation_pb2.GenerationConfig, path: str) -> AnswerOptions:
    """Sampling and output options; an empty config means the defaults of everything."""
    return AnswerOptions(_sampling(config.sampling), _output(config.output, f"{path}.output"), path)


def chat_input_of(message: chat_pb2.ChatRequest) -> ChatSetup | TurnRequest | Interrupt | None:
    """What a client says in a chat; None for a message without content. Raises ServiceError naming the field."""
    match message.WhichOneof("kind"):
        case "setup":
            return _chat_setup(message.setup)
        case "turn":
            return _chat_turn(message.turn)
        case "interrupt":
            return Interrupt(optional(message.interrupt, "turn_id"))
        case _:
            return None


def turn_id_of(message: Any) -> str:
    """The id of the turn in a ChatRequest that was refused; empty when it names none."""
    return message.turn.turn_id if message.WhichOneof("kind") == "turn" else ""


def _chat_setup(setup: chat_pb2.ChatSetup) -> ChatSetup:
    return ChatSetup(
        model=setup.model,
        history=_messages(setup.history, "setup.history"),
        options=options_of(setup.config, "setup.config"),
    )


def _chat_turn(turn: chat_pb2.ChatTurn) -> TurnRequest:
    if not turn.messages:
        raise missing_field("turn.messages", "is empty; a turn says at least one message")
    return TurnRequest(
        turn_id=optional(turn, "turn_id"),
        parent_turn_id=optional(turn, "parent_turn_id"),
        messages=_messages(turn.messages, "turn.messages"),
        options=options_of(turn.config, "turn.config") if turn.HasField("config") else None,
    )


def _prompt(generation: generation_pb2.Generation, path: str) -> Prompt:
    match generation.WhichOneof("prompt"):
        case "conversation":
            messages = generation.conversation.messages
            if not messages:
                raise missing_field(
                    f"{path}.conversation.messages", "is empty; a conversation has at least one message"
                )
            return Conversation(_messages(messages, f"{path}.conversation.messages"))
        case "raw":
            parts = generation.raw.parts
            if not parts:
                raise missing_field(f"{path}.raw.parts", "is empty; a raw prompt has at least one part")
            return RawPrompt(_parts(parts, f"{path}.raw.parts"), generation.raw.parse_special_tokens)
        case "tokens":
            tokens, below = generation.tokens, f"{path}.tokens"
            return TokenPrompt(
                ids=tuple(tokens.ids),
                images=tuple(image_of(image, f"{below}.images[{i}]") for i, image in enumerate(tokens.images)),
                videos=tuple(video_of(video, f"{below}.videos[{i}]") for i, video in enumerate(tokens.videos)),
            )
        case _:
            raise missing_field(f"{path}.prompt", "is not set; set one of conversation, raw and tokens")


def _messages(messages: Sequence[generation_pb2.Message], path: str) -> tuple[Message, ...]:
    return tuple(_message(message, f"{path}[{i}]") for i, message in enumerate(messages))


def _message(message: generation_pb2.Message, path: str) -> Message:
    if message.role == generation_pb2.ROLE_UNSPECIFIED:
        raise missing_field(f"{path}.role", "is not set; use ROLE_SYSTEM, ROLE_USER or ROLE_ASSISTANT")
    if message.role not in _ROLES:
        raise field_error(f"{path}.role", f"is {message.role}; use ROLE_SYSTEM, ROLE_USER or ROLE_ASSISTANT")
    if not message.parts:
        raise missing_field(f"{path}.parts", "is empty; a message has at least one part")
    return Message(_ROLES[message.role], _parts(message.parts, f"{path}.parts"))


def _parts(parts: Iterable[generation_pb2.Part], path: str) -> tuple[Part, ...]:
    return tuple(_part(part, f"{path}[{i}]") for i, part in enumerate(parts))


def _part(part: generation_pb2.Part, path: str) -> Part:
    match part.WhichOneof("kind"):
        case "text":
            return TextPart(part.text)
        case "image":
            return image_of(part.image, f"{path}.image")
        case "video":
            return video_of(part.video, f"{path}.video")
        case "audio":
            return AudioPart()
        case _:
            raise missing_field(path, "is empty; set one of text, image and video")


def _sampling(sampling: generation_pb2.Sampling) -> SamplingOptions:
    return SamplingOptions(
        max_new_tokens=optional(sampling, "max_new_tokens"),
        min_new_tokens=optional(sampling, "min_new_tokens"),
        temperature=optional(sampling, "temperature"),
        top_p=optional(sampling, "top_p"),
        top_k=optional(sampling, "top_k"),
        min_p=optional(sampling, "min_p"),
        repetition_penalty=optional(sampling, "repetition_penalty"),
        presence_penalty=optional(sampling, "presence_penalty"),
        frequency_penalty=optional(sampling, "frequency_penalty"),
        seed=optional(sampling, "seed"),
        stop=tuple(sampling.stop),
        stop_token_ids=tuple(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        include_stop=sampling.include_stop,
    )


def _output(output: generation_pb2.OutputOptions, path: str) -> OutputOptions:
    text = output.text if output.HasField("text") else True
    if not (text or output.token_ids or output.logprobs):
        raise field_error(path, "asks for nothing; leave text on, or ask for token_ids or logprobs")
    return OutputOptions(text=text, token_ids=output.token_ids, logprobs=output.logprobs)
