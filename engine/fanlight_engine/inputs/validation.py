"""The checks of a prompt that cost nothing: shape, kinds of parts, counts and encoded sizes of media.

Runs on the event loop before any work is done. Knows no tokenizer, opens no file and fetches nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import InvalidRequestError, Reason, UnsupportedRequestError
from fanlight_engine.inputs.media.processing import MediaError
from fanlight_engine.inputs.media.video.sampling import validate_sampling, validate_sampling_of_frames
from fanlight_engine.request import (
    AudioPart,
    Conversation,
    Embeddings,
    Frames,
    ImagePart,
    MediaPart,
    Message,
    Modality,
    Part,
    Patches,
    PixelOptions,
    Prompt,
    RawPrompt,
    StoredEmbeddings,
    TextPart,
    Tiles,
    TokenPrompt,
    VideoPart,
)

_TENSOR_SOURCES = (Patches, Tiles, Embeddings, StoredEmbeddings)


@dataclass(frozen=True, slots=True)
class MediaItem:
    """A picture or clip of the prompt, and where in the Generation it stands.

    `is_one_of_several` is set for pictures of a prompt with others, where the family prepares these otherwise.
    """

    field: str
    part: MediaPart
    is_one_of_several: bool = False

    @property
    def modality(self) -> Modality:
        """What kind it is."""
        return Modality.IMAGE if isinstance(self.part, ImagePart) else Modality.VIDEO


def media_items(
    prompt: Prompt, checkpoint: Checkpoint, modalities: frozenset[Modality], config: EngineConfig
) -> tuple[MediaItem, ...]:
    """The media of a prompt in order. Raises InvalidRequestError or UnsupportedRequestError naming the part.

    `modalities` are the kinds that the served model takes.
    """
    if isinstance(prompt, Conversation):
        if not prompt.messages:
            raise InvalidRequestError(
                "conversation.messages", "it is empty; send at least one message", Reason.EMPTY_PROMPT
            )
        items = tuple(items_of_messages(prompt.messages, "conversation.messages"))
    elif isinstance(prompt, RawPrompt):
        items = tuple(_part_items(prompt.parts, "raw"))
    else:
        items = _token_prompt_items(prompt)
    check_media_items(items, checkpoint, modalities, config)
    return items


def items_of_messages(messages: Sequence[Message], path: str) -> Iterator[MediaItem]:
    """The media of messages in order; `path` is where the messages stand."""
    for index, message in enumerate(messages):
        yield from _part_items(message.parts, f"{path}[{index}]")


def check_media_items(
    items: Sequence[MediaItem], checkpoint: Checkpoint, modalities: frozenset[Modality], config: EngineConfig
) -> None:
    """Kinds, counts, options and encoded sizes. Raises InvalidRequestError naming the first one at fault."""
    limits = (
        (Modality.IMAGE, config.max_images, Reason.TOO_MANY_IMAGES),
        (Modality.VIDEO, config.max_videos, Reason.TOO_MANY_VIDEOS),
    )
    for modality, most, reason in limits:
        of_kind = [item for item in items if item.modality is modality]
        if of_kind and modality not in modalities:
            raise InvalidRequestError(
                of_kind[0].field,
                f"model {checkpoint.name!r} takes {_kinds(modalities)} only; leave the {modality} out or ask a model "
                "that sees it",
                Reason.MODALITY_UNSUPPORTED,
            )
        if len(of_kind) > most:
            raise InvalidRequestError(
                of_kind[most].field,
                f"got {len(of_kind)} {modality}s, at most {most} are allowed in one request",
                reason,
            )
    for item in items:
        _check_item(item, config)


def refuse_encoded_size(data: bytes, field: str, modality: Modality, config: EngineConfig) -> None:
    """Raise InvalidRequestError for an empty file, and for one above the limit of its kind."""
    most = config.max_image_bytes if modality is Modality.IMAGE else config.max_video_bytes
    unreadable, too_large = _reasons(modality)
    if not data:
        raise InvalidRequestError(field, "it has no bytes; send the encoded file", unreadable)
    if len(data) > most:
        raise InvalidRequestError(
            field, f"got {len(data)} encoded bytes, at most {most} are allowed; scale it down", too_large
        )


def _token_prompt_items(prompt: TokenPrompt) -> tuple[MediaItem, ...]:
    if not prompt.ids:
        raise InvalidRequestError("tokens.ids", "it is empty; send at least one id", Reason.EMPTY_PROMPT)
    images = [MediaItem(f"tokens.images[{i}]", image) for i, image in enumerate(prompt.images)]
    videos = [MediaItem(f"tokens.videos[{i}]", video) for i, video in enumerate(prompt.videos)]
    return (*images, *videos)


def _part_items(parts: tuple[Part, ...], path: str) -> Iterator[MediaItem]:
    if not parts:
        raise InvalidRequestError(f"{path}.parts", "it is empty; send at least one part", Reason.EMPTY_PROMPT)
    for index, part in enumerate(parts):
        field = f"{path}.parts[{index}]"
        if isinstance(part, ImagePart):
            yield MediaItem(f"{field}.image", part)
        elif isinstance(part, VideoPart):
            yield MediaItem(f"{field}.video", part)
        elif isinstance(part, AudioPart):
            raise UnsupportedRequestError(
                f"{field}.audio", "audio is not supported; send text, images and videos", Reason.MODALITY_UNSUPPORTED
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


def _check_item(item: MediaItem, config: EngineConfig) -> None:
    source = item.part.source
    if isinstance(source, bytes):
        refuse_encoded_size(source, item.field, item.modality, config)
    if isinstance(source, Frames):
        _check_frames(source, item.field, config)
    if isinstance(source, _TENSOR_SOURCES):
        _refuse_options_of_tensors(item)
    if isinstance(source, Patches | Embeddings):
        _check_seconds_per_step(source.seconds_per_step, item)
    _check_pixel_options(item)
    if isinstance(item.part, VideoPart):
        try:
            validate_sampling(item.part.sampling, config)
            if isinstance(source, Frames):
                validate_sampling_of_frames(source, item.part.sampling)
        except MediaError as error:
            raise error.at(item.field) from error


def _check_frames(source: Frames, field: str, config: EngineConfig) -> None:
    count = len(source.frames)
    if not 1 <= count <= config.max_video_frames:
        raise InvalidRequestError(
            f"{field}.frames",
            f"got {count} frames, the range is 1 to {config.max_video_frames}",
            Reason.VIDEO_TOO_LARGE if count else Reason.VIDEO_UNREADABLE,
        )
    for index, frame in enumerate(source.frames):
        if isinstance(frame, bytes):
            refuse_encoded_size(frame, f"{field}.frames.frames[{index}]", Modality.IMAGE, config)
    if source.fps is not None and not 0 < source.fps < float("inf"):
        raise InvalidRequestError(
            f"{field}.frames.fps", f"got {source.fps}, it must be above 0 and finite", Reason.VIDEO_OPTION_INVALID
        )


def _refuse_options_of_tensors(item: MediaItem) -> None:
    """Tensors were resized and sampled by the caller: options that would be ignored are refused."""
    part = item.part
    names = ("min_pixels", "max_pixels", "max_tokens")
    asked = [name for name in names if getattr(part.options, name) is not None]
    if isinstance(part, VideoPart):
        names = ("num_frames", "fps", "start", "end")
        asked += [name for name in names if getattr(part.sampling, name) is not None]
    if asked:
        raise InvalidRequestError(
            f"{item.field}.{asked[0]}",
            "it goes with an encoded file; patches, tiles and embeddings are taken as they are, leave it out",
            _option_reason(item.modality),
        )


def _check_seconds_per_step(seconds: float | None, item: MediaItem) -> None:
    if seconds is None:
        return
    if item.modality is Modality.IMAGE or not 0 < seconds < float("inf"):
        raise InvalidRequestError(
            f"{item.field}.seconds_per_step",
            f"got {seconds:g}; it goes with a clip, above 0 and finite",
            Reason.TENSOR_INVALID,
        )


def _check_pixel_options(item: MediaItem) -> None:
    options: PixelOptions = item.part.options
    for name in ("min_pixels", "max_pixels", "max_tokens"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InvalidRequestError(
                f"{item.field}.{name}", f"got {value}, it must be at least 1", _option_reason(item.modality)
            )
    if options.min_pixels and options.max_pixels and options.min_pixels > options.max_pixels:
        raise InvalidRequestError(
            f"{item.field}.min_pixels",
            f"got {options.min_pixels}, which is above max_pixels ({options.max_pixels}); lower it",
            _option_reason(item.modality),
        )


def _kinds(modalities: frozenset[Modality]) -> str:
    return " and ".join(["text", *sorted(f"{modality}s" for modality in modalities)])


def _reasons(modality: Modality) -> tuple[Reason, Reason]:
    if modality is Modality.IMAGE:
        return Reason.IMAGE_UNREADABLE, Reason.IMAGE_TOO_LARGE
    return Reason.VIDEO_UNREADABLE, Reason.VIDEO_TOO_LARGE


def _option_reason(modality: Modality) -> Reason:
    return Reason.IMAGE_OPTION_INVALID if modality is Modality.IMAGE else Reason.VIDEO_OPTION_INVALID
