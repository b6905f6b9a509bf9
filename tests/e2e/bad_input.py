"""Requests that must be refused, each with the status, the field and the reason that it gets.

The rows are those of the hostile inputs that this contract can carry. What a protobuf message cannot even say (broken
bytes, sizes beyond the limits) is in `bad_bytes`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from PIL import Image

from fanlight.errors import FanlightError, error_from_call
from fanlight.v1 import generation_pb2, inference_pb2, media_pb2
from fanlight.v1.inference_pb2_grpc import InferenceServiceStub
from tests.e2e.pictures import encoded, picture

INVALID = grpc.StatusCode.INVALID_ARGUMENT
FIRST_IMAGE = "generation.conversation.messages[0].parts[0].image"
FIRST_TEXT = "generation.conversation.messages[0].parts[0]"
SAMPLING = "generation.config.sampling"


@dataclass(frozen=True)
class BadInput:
    """A request and how it is refused. `says` are pieces of the text that the caller must be told."""

    name: str
    request: inference_pb2.GenerateRequest
    code: grpc.StatusCode
    field: str | None
    reason: str
    says: tuple[str, ...] = ()


async def refusal_of(channel: grpc.aio.Channel, request: inference_pb2.GenerateRequest) -> FanlightError:
    """Send a request that must be refused, and return how it was."""
    try:
        answer = await InferenceServiceStub(channel).Generate(request)
    except grpc.aio.AioRpcError as error:
        return error_from_call(error)
    raise AssertionError(f"it was answered: {answer}")


def mismatches(bad: BadInput, refused: FanlightError) -> list[str]:
    """How a refusal differs from the one that the input must get; it must not name our insides either."""
    found = [
        f"{what} is {got}, not {wanted}"
        for what, got, wanted in (
            ("code", refused.code, bad.code),
            ("field", refused.field, bad.field),
            ("reason", refused.reason, bad.reason),
        )
        if got != wanted
    ]
    found += [f"{piece!r} is not told" for piece in bad.says if piece not in refused.message]
    leaks = ("object at 0x", "Traceback", "/site-packages", ".py")
    return found + [f"{leak!r} is told" for leak in leaks if leak in refused.message]


def text(words: str) -> generation_pb2.Part:
    """A part of text."""
    return generation_pb2.Part(text=words)


def image(data: bytes) -> generation_pb2.Part:
    """A part that is an image, or claims to be one."""
    return generation_pb2.Part(image=media_pb2.Image(data=data))


def asking(*parts: generation_pb2.Part, model: str | None = None, **sampling: Any) -> inference_pb2.GenerateRequest:
    """A request of one user message."""
    message = generation_pb2.Message(role=generation_pb2.ROLE_USER, parts=parts)
    return from_messages(message, model=model, **sampling)


def from_messages(
    *messages: generation_pb2.Message, model: str | None = None, **sampling: Any
) -> inference_pb2.GenerateRequest:
    """A request of a whole conversation."""
    return inference_pb2.GenerateRequest(
        generation=generation_pb2.Generation(
            model=model,
            conversation=generation_pb2.Conversation(messages=messages),
            config=generation_pb2.GenerationConfig(sampling=generation_pb2.Sampling(**sampling)),
        )
    )


def from_tokens(ids: list[int], images: list[bytes]) -> inference_pb2.GenerateRequest:
    """A request of token ids."""
    sources = [media_pb2.Image(data=data) for data in images]
    prompt = generation_pb2.TokensPrompt(ids=ids, images=sources)
    return inference_pb2.GenerateRequest(generation=generation_pb2.Generation(tokens=prompt))


def bad_inputs(image_token_id: int, vocabulary: int, context: int) -> list[BadInput]:
    """Every row, for a model that takes images, with its facts."""
    return [
        *_bad_shapes(),
        *_bad_sampling(vocabulary),
        *_bad_lengths(context),
        *_bad_tokens(image_token_id, vocabulary),
        *_bad_images(),
        BadInput(
            "an unknown model", asking(text("Hi"), model="../other"), grpc.StatusCode.NOT_FOUND, "generation.model",
            "MODEL_NOT_FOUND",
        ),
        BadInput(
            "an audio part", asking(generation_pb2.Part(audio=media_pb2.Audio(data=b"RIFF"))),
            grpc.StatusCode.UNIMPLEMENTED, f"{FIRST_TEXT}.audio", "UNSUPPORTED", ("audio",),
        ),
    ]  # fmt: skip


def _bad_shapes() -> Iterator[BadInput]:
    hello = generation_pb2.Message(role=generation_pb2.ROLE_USER, parts=[text("Hi")])
    nobody = generation_pb2.Message(parts=[text("Hi")])
    stranger = generation_pb2.Message(role=9, parts=[text("Hi")])  # pyright: ignore[reportArgumentType]
    silent = generation_pb2.Message(role=generation_pb2.ROLE_USER)
    empty = inference_pb2.GenerateRequest()
    no_prompt = inference_pb2.GenerateRequest(generation=generation_pb2.Generation())
    nothing_asked = asking(text("Hi"))
    nothing_asked.generation.config.output.text = False
    messages = "generation.conversation.messages"
    yield BadInput("an empty request", empty, INVALID, "generation", "FIELD_REQUIRED")
    yield BadInput("no prompt", no_prompt, INVALID, "generation.prompt", "FIELD_REQUIRED")
    yield BadInput("an empty conversation", from_messages(), INVALID, messages, "FIELD_REQUIRED")
    yield BadInput("no role", from_messages(nobody), INVALID, f"{messages}[0].role", "FIELD_REQUIRED")
    yield BadInput("an unknown role", from_messages(hello, stranger), INVALID, f"{messages}[1].role", "FIELD_INVALID")
    yield BadInput("no parts", from_messages(silent), INVALID, f"{messages}[0].parts", "FIELD_REQUIRED")
    yield BadInput("an empty part", asking(generation_pb2.Part()), INVALID, FIRST_TEXT, "FIELD_REQUIRED")
    no_source = generation_pb2.Part(image=media_pb2.Image())
    yield BadInput("an image without a source", asking(no_source), INVALID, FIRST_IMAGE, "FIELD_REQUIRED")
    yield BadInput("no output", nothing_asked, INVALID, "generation.config.output", "FIELD_INVALID")


def _bad_sampling(vocabulary: int) -> Iterator[BadInput]:
    rows: list[tuple[str, str, Any]] = [
        ("NaN temperature", "temperature", float("nan")),
        ("infinite temperature", "temperature", float("inf")),
        ("negative temperature", "temperature", -0.5),
        ("NaN top_p", "top_p", float("nan")),
        ("top_p 0", "top_p", 0.0),
        ("top_p 1.5", "top_p", 1.5),
        ("top_k -5", "top_k", -5),
        ("negative min_p", "min_p", -0.1),
        ("repetition_penalty 0", "repetition_penalty", 0.0),
        ("NaN repetition_penalty", "repetition_penalty", float("nan")),
        ("presence_penalty 2.5", "presence_penalty", 2.5),
        ("infinite frequency_penalty", "frequency_penalty", float("-inf")),
        ("max_new_tokens 0", "max_new_tokens", 0),
        ("max_new_tokens 2^31", "max_new_tokens", 1 << 31),
        ("10,000 stop strings", "stop", ["x"] * 10_000),
    ]
    for name, field, value in rows:
        request = asking(text("Hi"), **{field: value})
        yield BadInput(name, request, INVALID, f"{SAMPLING}.{field}", "FIELD_INVALID", ("got",))
    stops = asking(text("Hi"), stop=["fine", ""])
    yield BadInput("an empty stop string", stops, INVALID, f"{SAMPLING}.stop[1]", "FIELD_INVALID")
    ids = asking(text("Hi"), stop_token_ids=[0, vocabulary])
    yield BadInput(
        "a stop id outside the vocabulary", ids, INVALID, f"{SAMPLING}.stop_token_ids[1]", "FIELD_INVALID",
        (str(vocabulary), str(vocabulary - 1)),
    )  # fmt: skip
    crossed = asking(text("Hi"), max_new_tokens=4, min_new_tokens=5)
    yield BadInput("min above max_new_tokens", crossed, INVALID, f"{SAMPLING}.min_new_tokens", "FIELD_INVALID")


def _bad_lengths(context: int) -> Iterator[BadInput]:
    words = asking(text("one two three " * context))
    with_images = asking(*(image(picture(number)) for number in range(8)), text("a b " * (context // 2)))
    too_many = asking(*(image(picture(number)) for number in range(17)), text("Hi"))
    path = "generation.prompt"
    yield BadInput("a prompt too long", words, INVALID, path, "PROMPT_TOO_LONG", (str(context),))
    yield BadInput("text and images too long", with_images, INVALID, path, "PROMPT_TOO_LONG", (str(context),))
    yield BadInput(
        "17 images", too_many, INVALID, "generation.conversation.messages[0].parts[16].image", "TOO_MANY_IMAGES",
        ("17", "16"),
    )  # fmt: skip


def _bad_tokens(image_token_id: int, vocabulary: int) -> Iterator[BadInput]:
    ids = "generation.tokens.ids"
    mismatch = "IMAGE_COUNT_MISMATCH"
    yield BadInput("no token ids", from_tokens([], []), INVALID, ids, "FIELD_REQUIRED")
    yield BadInput(
        "a token id outside the vocabulary", from_tokens([1, vocabulary], []), INVALID, f"{ids}[1]", "FIELD_INVALID",
        (str(vocabulary),),
    )  # fmt: skip
    one_too_many = from_tokens([image_token_id, 5], [picture(0), picture(1)])
    yield BadInput("more images than placeholders", one_too_many, INVALID, ids, mismatch, ("1", "2"))
    one_too_few = from_tokens([image_token_id, image_token_id, image_token_id], [picture(0)])
    yield BadInput("more placeholders than images", one_too_few, INVALID, ids, mismatch, ("3", "1"))


def _bad_images() -> Iterator[BadInput]:
    undecodable, unsupported = "IMAGE_UNDECODABLE", "IMAGE_FORMAT_UNSUPPORTED"
    photograph = encoded(Image.effect_noise((200, 200), 60).convert("RGB"), "JPEG")
    rows = [
        ("not an image", b"This is no image, whatever its name says.", undecodable),
        ("an empty image", b"", undecodable),
        ("a JPEG cut short", photograph[: len(photograph) // 2], undecodable),
        ("a PNG cut short", picture(0)[: len(picture(0)) // 2], undecodable),
        ("a PNG of 50,000 x 50,000", png_header(50_000, 50_000), "IMAGE_TOO_LARGE"),
        ("a PNG of 12,000 x 12,000", png_header(12_000, 12_000), "IMAGE_TOO_LARGE"),
        ("a PNG of 1 x 300", encoded(Image.new("RGB", (1, 300))), "IMAGE_TOO_LARGE"),
        ("an SVG", b'<svg xmlns="http://www.w3.org/2000/svg"/>', unsupported),
        ("an EPS", b"%!PS-Adobe-3.0 EPSF-3.0\n", unsupported),
        ("a PSD", b"8BPS\0\1" + bytes(40), unsupported),
        ("a PDF", b"%PDF-1.7\n", unsupported),
        ("a TIFF", encoded(Image.new("RGB", (8, 8)), "TIFF"), unsupported),
        ("a BMP", encoded(Image.new("RGB", (8, 8)), "BMP"), unsupported),
        ("a JPEG 2000", b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(40), unsupported),
        ("an AVIF", b"\0\0\0\x1cftypavif" + bytes(40), unsupported),
    ]
    for name, data, reason in rows:
        yield BadInput(name, asking(image(data), text("Hi")), INVALID, FIRST_IMAGE, reason)


def png_header(width: int, height: int) -> bytes:
    """A PNG that says it is as large as that, with next to no data."""
    return png(width, height, png_chunk(b"IDAT", zlib.compress(bytes(64))))


def png(width: int, height: int, *chunks: bytes, color_type: int = 2) -> bytes:
    """A PNG of these chunks between its header and its end; `color_type` 2 is RGB, 6 RGBA, 0 grey."""
    header = struct.pack(">IIBBBBB", width, height, 8, color_type, 0, 0, 0)
    return b"".join((b"\x89PNG\r\n\x1a\n", png_chunk(b"IHDR", header), *chunks, png_chunk(b"IEND", b"")))


def png_chunk(kind: bytes, data: bytes) -> bytes:
    """One chunk, with its length and its checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
