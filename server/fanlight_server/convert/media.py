"""Images, videos and tensors of a client -> the engine's parts and sources. Presence is kept: unset stays None.

Checks what only the message can tell: unset sources, types and counts, malformed digests, names given twice. Ranges,
lengths and everything about the pixels is the engine's business. `path` is where a message lies below the request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fanlight.v1 import media_pb2
from fanlight_engine.request import (
    Detail,
    Embeddings,
    FrameOptions,
    Frames,
    FrameSource,
    ImagePart,
    ImageSource,
    MediaUrl,
    Patches,
    PatchLayout,
    PixelOptions,
    StoredEmbeddings,
    StoredMedia,
    StoredTensor,
    Tensor,
    Tiles,
    VideoPart,
    VideoSource,
)
from fanlight_engine.tensor_data import TensorData
from fanlight_server.convert.values import optional
from fanlight_server.status import field_error, missing_field

MAX_TENSOR_DIMENSIONS = 8
MAX_TENSOR_NAME_CHARACTERS = 128
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_DIGEST_FORM = "write sha256: and 64 lowercase hexadecimal digits"
_ONE_IMAGE_SOURCE = "has no source; set one of data, digest, url, patches, tiles, embeddings and embeddings_id"
_ONE_VIDEO_SOURCE = "has no source; set one of data, digest, url, frames, patches, embeddings and embeddings_id"

_DETAILS = {
    media_pb2.DETAIL_UNSPECIFIED: Detail.AUTO,
    media_pb2.DETAIL_AUTO: Detail.AUTO,
    media_pb2.DETAIL_LOW: Detail.LOW,
    media_pb2.DETAIL_HIGH: Detail.HIGH,
}
_LAYOUTS = {
    media_pb2.PATCH_LAYOUT_UNSPECIFIED: PatchLayout.TOWER,
    media_pb2.PATCH_LAYOUT_TOWER: PatchLayout.TOWER,
    media_pb2.PATCH_LAYOUT_ROW_MAJOR: PatchLayout.ROW_MAJOR,
}
_NUMBER_TYPES = {
    media_pb2.DATA_TYPE_FLOAT32: "float32",
    media_pb2.DATA_TYPE_FLOAT16: "float16",
    media_pb2.DATA_TYPE_BFLOAT16: "bfloat16",
}


def image_of(image: media_pb2.Image, path: str) -> ImagePart:
    """A picture, from wherever it comes. Raises ServiceError naming the field."""
    return ImagePart(_image_source(image, path), _pixel_options(image, path))


def video_of(video: media_pb2.Video, path: str) -> VideoPart:
    """A clip, from wherever it comes. Raises ServiceError naming the field."""
    sampling = FrameOptions(
        num_frames=optional(video, "num_frames"),
        fps=optional(video, "fps"),
        start=optional(video, "start"),
        end=optional(video, "end"),
    )
    return VideoPart(_video_source(video, path), _pixel_options(video, path), sampling)


def digest_of(digest: str, path: str) -> str:
    """A digest in its one form. Raises ServiceError naming the field."""
    if not digest:
        raise missing_field(path, f"is empty; {_DIGEST_FORM}")
    if not _DIGEST.fullmatch(digest):
        raise field_error(path, f"is no digest; {_DIGEST_FORM}")
    return digest


def _image_source(image: media_pb2.Image, path: str) -> ImageSource:
    match image.WhichOneof("source"):
        case "patches":
            return _patches(image.patches, f"{path}.patches")
        case "tiles":
            return _tiles(image.tiles, f"{path}.tiles")
        case "embeddings":
            return _embeddings(image.embeddings, f"{path}.embeddings")
        case "embeddings_id":
            return StoredEmbeddings(digest_of(image.embeddings_id, f"{path}.embeddings_id"))
        case None:
            raise missing_field(path, _ONE_IMAGE_SOURCE)
        case _:
            return _file_source(image, path)


def _video_source(video: media_pb2.Video, path: str) -> VideoSource:
    match video.WhichOneof("source"):
        case "frames":
            return _frames(video.frames, f"{path}.frames")
        case "patches":
            return _patches(video.patches, f"{path}.patches")
        case "embeddings":
            return _embeddings(video.embeddings, f"{path}.embeddings")
        case "embeddings_id":
            return StoredEmbeddings(digest_of(video.embeddings_id, f"{path}.embeddings_id"))
        case None:
            raise missing_field(path, _ONE_VIDEO_SOURCE)
        case _:
            return _file_source(video, path)


def _file_source(message: media_pb2.Image | media_pb2.Video | media_pb2.Frame, path: str) -> FrameSource:
    match message.WhichOneof("source"):
        case "data":
            return message.data
        case "digest":
            return StoredMedia(digest_of(message.digest, f"{path}.digest"))
        case "url":
            return MediaUrl(message.url)
        case _:
            raise missing_field(path, "has no source; set one of data, digest and url")


def _pixel_options(message: media_pb2.Image | media_pb2.Video, path: str) -> PixelOptions:
    return PixelOptions(
        min_pixels=optional(message, "min_pixels"),
        max_pixels=optional(message, "max_pixels"),
        max_tokens=optional(message, "max_tokens"),
        detail=_named(message.detail, _DETAILS, f"{path}.detail", "DETAIL_AUTO, DETAIL_LOW or DETAIL_HIGH"),
    )


def _frames(frames: media_pb2.Frames, path: str) -> Frames:
    if not frames.frames:
        raise missing_field(f"{path}.frames", "is empty; a clip has at least one frame")
    sources = tuple(_file_source(frame, f"{path}.frames[{i}]") for i, frame in enumerate(frames.frames))
    return Frames(sources, optional(frames, "fps"))


def _patches(patches: media_pb2.Patches, path: str) -> Patches:
    if not patches.HasField("grid"):
        raise missing_field(f"{path}.grid", "is not set; say how many patches there are in t, h and w")
    layouts = "PATCH_LAYOUT_TOWER or PATCH_LAYOUT_ROW_MAJOR"
    return Patches(
        pixels=_tensor_below(patches, "pixels", path),
        grid=_grid(patches.grid, f"{path}.grid"),
        layout=_named(patches.layout, _LAYOUTS, f"{path}.layout", layouts),
        seconds_per_step=optional(patches, "seconds_per_step"),
    )


def _tiles(tiles: media_pb2.Tiles, path: str) -> Tiles:
    original = tiles.original_size
    size = _counts(original, ("width", "height"), f"{path}.original_size") if tiles.HasField("original_size") else None
    return Tiles(_tensor_below(tiles, "pixels", path), None if size is None else (size[0], size[1]))


def _embeddings(embeddings: media_pb2.Embeddings, path: str) -> Embeddings:
    if not embeddings.model_fingerprint:
        raise missing_field(
            f"{path}.model_fingerprint", "is empty; give Model.fingerprint of the model that they belong to"
        )
    return Embeddings(
        tensors=_named_tensors(embeddings.tensors, f"{path}.tensors"),
        model_fingerprint=embeddings.model_fingerprint,
        grid=_grid(embeddings.grid, f"{path}.grid") if embeddings.HasField("grid") else None,
        seconds_per_step=optional(embeddings, "seconds_per_step"),
    )


def _named_tensors(named: Sequence[media_pb2.NamedTensor], path: str) -> dict[str, Tensor]:
    if not named:
        raise missing_field(path, 'is empty; most models take one tensor, named "embeddings"')
    tensors: dict[str, Tensor] = {}
    for i, one in enumerate(named):
        name = _tensor_name(one.name, f"{path}[{i}].name")
        if name in tensors:
            raise field_error(f"{path}[{i}].name", "is the name of an earlier tensor as well; name each one once")
        tensors[name] = _tensor_below(one, "tensor", f"{path}[{i}]")
    return tensors


def _tensor_name(name: str, path: str) -> str:
    if not name:
        raise missing_field(path, "is empty; name the tensor")
    if len(name) > MAX_TENSOR_NAME_CHARACTERS:
        raise field_error(path, f"has {len(name)} characters, at most {MAX_TENSOR_NAME_CHARACTERS} are allowed")
    return name


def _tensor_below(message: Any, field: str, path: str) -> Tensor:
    if not message.HasField(field):
        raise missing_field(f"{path}.{field}", "is not set; send the tensor")
    return _tensor(getattr(message, field), f"{path}.{field}")


def _tensor(tensor: media_pb2.Tensor, path: str) -> Tensor:
    match tensor.WhichOneof("content"):
        case "data":
            return _tensor_in_message(tensor, path)
        case "file":
            return _tensor_in_file(tensor, path)
        case _:
            raise missing_field(path, "has no content; set one of data and file")


def _tensor_in_message(tensor: media_pb2.Tensor, path: str) -> TensorData:
    types = "DATA_TYPE_FLOAT32, DATA_TYPE_FLOAT16 or DATA_TYPE_BFLOAT16"
    if tensor.dtype == media_pb2.DATA_TYPE_UNSPECIFIED:
        raise missing_field(f"{path}.dtype", f"is not set; say what the numbers in data are: {types}")
    if not tensor.shape:
        raise missing_field(f"{path}.shape", "is empty; say what shape the numbers in data have")
    if len(tensor.shape) > MAX_TENSOR_DIMENSIONS:
        raise field_error(
            f"{path}.shape", f"has {len(tensor.shape)} dimensions, at most {MAX_TENSOR_DIMENSIONS} are allowed"
        )
    dtype = _named(tensor.dtype, _NUMBER_TYPES, f"{path}.dtype", types)
    return TensorData(dtype, tuple(tensor.shape), tensor.data)


def _tensor_in_file(tensor: media_pb2.Tensor, path: str) -> StoredTensor:
    for field in ("dtype", "shape"):
        if getattr(tensor, field):
            raise field_error(f"{path}.{field}", "is set beside file, which says it already; leave it unset")
    name = _tensor_name(tensor.file.name, f"{path}.file.name")
    return StoredTensor(digest_of(tensor.file.digest, f"{path}.file.digest"), name)


def _grid(grid: media_pb2.Grid, path: str) -> tuple[int, int, int]:
    t, h, w = _counts(grid, ("t", "h", "w"), path)
    return t, h, w


def _counts(message: Any, fields: Sequence[str], path: str) -> list[int]:
    """Fields that are 1 and above; 0 is what an unset one looks like."""
    for field in fields:
        if not getattr(message, field):
            raise missing_field(f"{path}.{field}", "is 0 or not set; it must be 1 or above")
    return [getattr(message, field) for field in fields]


def _named(value: int, names: dict[Any, Any], path: str, choices: str) -> Any:
    """What the value of an enum stands for; values that this server does not know are refused."""
    if value not in names:
        raise field_error(path, f"is {value}; use {choices}")
    return names[value]
