"""How many bytes the messages of a chat hold: texts, ids, files, tensors and whatever names them."""

from __future__ import annotations

from collections.abc import Iterable

from fanlight_engine.request import (
    Embeddings,
    Frames,
    ImagePart,
    ImageSource,
    MediaUrl,
    Message,
    Part,
    Patches,
    StoredEmbeddings,
    StoredMedia,
    StoredTensor,
    Tensor,
    TextPart,
    Tiles,
    VideoPart,
    VideoSource,
)
from fanlight_engine.tensor_data import TensorData

_BYTES_PER_THING = 64
"""What a part, a frame or a tensor takes beside its content, roughly, so that endless tiny ones are bounded as well."""
_BYTES_PER_MESSAGE = 1024


def bytes_of_messages(messages: Iterable[Message]) -> int:
    """An estimate from above; a file that stands twice counts twice."""
    return sum(_BYTES_PER_MESSAGE + sum(_bytes_of_part(part) for part in message.parts) for message in messages)


def _bytes_of_part(part: Part) -> int:
    match part:
        case TextPart():
            return _BYTES_PER_THING + 4 * len(part.text) + 8 * len(part.token_ids or ())
        case ImagePart() | VideoPart():
            return _BYTES_PER_THING + _bytes_of_source(part.source)
        case _:
            return _BYTES_PER_THING


def _bytes_of_source(source: ImageSource | VideoSource) -> int:
    match source:
        case bytes():
            return len(source)
        case MediaUrl():
            return 4 * len(source.url)
        case Frames():
            return sum(_BYTES_PER_THING + _bytes_of_source(frame) for frame in source.frames)
        case Patches() | Tiles():
            return _bytes_of_tensor(source.pixels)
        case Embeddings():
            return sum(_bytes_of_tensor(tensor) for tensor in source.tensors.values())
        case StoredMedia() | StoredEmbeddings():
            return _BYTES_PER_THING


def _bytes_of_tensor(tensor: Tensor) -> int:
    match tensor:
        case TensorData():
            return _BYTES_PER_THING + len(tensor.data)
        case StoredTensor():
            return _BYTES_PER_THING + 4 * len(tensor.name)
