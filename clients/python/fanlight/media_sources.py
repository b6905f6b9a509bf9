"""Pictures and clips as messages, from whatever callers have. Nothing is sent here, and no limit is checked.

A source is the path of a file, the bytes of a file, a URL (a string that begins with http:// or https://), an object
with a `save` method such as a PIL image, a handle of something that the server holds, the digest of an upload as a
string, or pixels and embeddings made with `patches`, `tiles` and `embeddings`. Files are read at once: a message is
complete when it is made. Large data in it is uploaded when it is sent (large_media.py).
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from fanlight.errors import InvalidRequest, invalid_field
from fanlight.fields import set_field
from fanlight.handles import EncodedImage, Upload
from fanlight.v1 import media_pb2
from fanlight.v1.media_pb2 import Embeddings, Frame, Frames, Image, Patches, Tiles, Video


@runtime_checkable
class SavableImage(Protocol):
    """An image in memory that can write itself as a file, as PIL's images can."""

    def save(self, fp: Any, /, format: str | None = None) -> Any:
        """Writes the image to a binary file object, encoded as `format`."""
        ...


FileSource: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | Upload
"""An encoded file: its path, its URL, its bytes, its upload, or the digest of that."""
FrameSource: TypeAlias = FileSource | SavableImage
"""A picture as a file, or an image object."""
ImageSource: TypeAlias = FrameSource | EncodedImage | Image | Patches | Tiles | Embeddings
"""An image: a file, an image object, a handle, or what `image`, `patches`, `tiles` and `embeddings` make."""
Images: TypeAlias = ImageSource | Iterable[ImageSource]
VideoSource: TypeAlias = FileSource | EncodedImage | Video | Frames | Patches | Embeddings
"""A clip: a file, a handle, or what `video`, `frames`, `patches` and `embeddings` make."""
Videos: TypeAlias = VideoSource | Iterable[VideoSource]
DetailName: TypeAlias = Literal["auto", "low", "high"]

Medium = TypeVar("Medium", Image, Video, Frame)

BYTES = (bytes, bytearray, memoryview)
SINGLE_SOURCES = (str, os.PathLike, *BYTES, Upload, EncodedImage, Image, Video, Frames, Patches, Tiles, Embeddings)
FETCHED_URL = re.compile(r"https?://", re.IGNORECASE)
OTHER_URL = re.compile(r"[a-z][a-z0-9+.-]+://|data:", re.IGNORECASE)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.IGNORECASE)
SHOWN_CHARACTERS = 60
"""How much of a URL an error shows: a data URL is as long as its file."""
DETAILS = {"auto": media_pb2.DETAIL_AUTO, "low": media_pb2.DETAIL_LOW, "high": media_pb2.DETAIL_HIGH}
PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I")
MODES_WITH_ALPHA = ("PA", "RGBa")


def image(
    source: ImageSource,
    *,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    max_tokens: int | None = None,
    detail: DetailName | None = None,
) -> Image:
    """An image, and how large the model is to see it. None means the model's default.

    source      anything that is an image; see the module's docstring
    min_pixels  scale the picture up to at least so many pixels where it has fewer
    max_pixels  scale the picture down to at most so many pixels
    max_tokens  scale the picture down until it takes at most so many embeddings
    detail      "low", "high" or "auto": a wish for fewer or more embeddings

    Raises OSError when a file cannot be read, and InvalidRequest for an option of the wrong type.
    """
    message = Image()
    message.CopyFrom(build_image(source))
    set_options(message, "image", min_pixels=min_pixels, max_pixels=max_pixels, max_tokens=max_tokens, detail=detail)
    return message


def video(
    source: VideoSource,
    *,
    num_frames: int | None = None,
    fps: float | None = None,
    start: float | None = None,
    end: float | None = None,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    max_tokens: int | None = None,
    detail: DetailName | None = None,
) -> Video:
    """A clip, which frames of it are shown, and how large. None means the model's default.

    source       anything that is a clip; see the module's docstring. Pictures in order: see `frames`
    num_frames   show so many frames, evenly spread; excludes fps
    fps          show so many frames of each second; excludes num_frames
    start, end   show nothing before and after these times, in seconds
    min_pixels, max_pixels, detail   as for `image`, for each frame
    max_tokens   as for `image`, for the whole clip

    Raises OSError when a file cannot be read, and InvalidRequest for an option of the wrong type.
    """
    message = Video()
    message.CopyFrom(build_video(source))
    set_options(message, "video", num_frames=num_frames, fps=fps, start=start, end=end)
    set_options(message, "video", min_pixels=min_pixels, max_pixels=max_pixels, max_tokens=max_tokens, detail=detail)
    return message


def frames(pictures: Iterable[FrameSource], fps: float | None = None) -> Frames:
    """A clip as pictures of equal size, in order; `fps` of them make a second, None where that is not known."""
    if is_single(pictures):
        raise TypeError(
            f"got a {type(pictures).__name__}: frames takes several pictures; a clip file goes to video=, and a clip "
            "of one picture is [picture]"
        )
    message = Frames(frames=[build_frame(picture) for picture in pictures])
    set_options(message, "frames", fps=fps)
    return message


def build_images(images: Images) -> list[Image]:
    """Messages for one image or several."""
    return [build_image(each) for each in as_several(images)]


def build_videos(videos: Videos) -> list[Video]:
    """Messages for one clip or several."""
    return [build_video(each) for each in as_several(videos)]


def as_several(sources: Any) -> Iterable[Any]:
    """One source or several, as several."""
    return [sources] if is_single(sources) else sources


def is_single(sources: Any) -> bool:
    """Whether this is one source rather than several."""
    return not isinstance(sources, Iterable) or isinstance(sources, (*SINGLE_SOURCES, SavableImage))


def build_image(source: ImageSource) -> Image:
    """The message for an image."""
    if isinstance(source, Image):
        return source
    if isinstance(source, Patches):
        return Image(patches=source)
    if isinstance(source, Tiles):
        return Image(tiles=source)
    if isinstance(source, Embeddings):
        return Image(embeddings=source)
    if isinstance(source, EncodedImage):
        return Image(embeddings_id=source.embeddings_id)
    return from_picture(Image, source)


def build_video(source: VideoSource) -> Video:
    """The message for a clip."""
    if isinstance(source, Video):
        return source
    if isinstance(source, Frames):
        return Video(frames=source)
    if isinstance(source, Patches):
        return Video(patches=source)
    if isinstance(source, Embeddings):
        return Video(embeddings=source)
    if isinstance(source, EncodedImage):
        return Video(embeddings_id=source.embeddings_id)
    made = from_file(Video, source)
    if made is None:
        raise TypeError(
            f"a clip is a URL, a path, bytes, an upload, or what fanlight.video, frames, patches or embeddings make, "
            f"not a {type(source).__name__}"
        )
    return made


def build_frame(source: FrameSource) -> Frame:
    """The message for one picture of a clip."""
    return from_picture(Frame, source)


def from_picture(kind: type[Medium], source: FrameSource) -> Medium:
    """A message for a picture that is a file or an image object; the latter goes as PNG, which loses nothing."""
    made = from_file(kind, source)
    if made is not None:
        return made
    if isinstance(source, SavableImage):
        return kind(data=png_of(source))
    raise TypeError(
        f"an image is a URL, a path, bytes or an object with a save method, not a {type(source).__name__}; pixels in "
        "arrays go through fanlight.patches or fanlight.tiles; for an ordinary picture: PIL.Image.fromarray(array)"
    )


def from_file(kind: type[Medium], source: Any) -> Medium | None:
    """A message for an encoded file; None for what is none. Reads the file of a path."""
    if isinstance(source, Upload):
        return kind(digest=source.digest)
    if isinstance(source, BYTES):
        return kind(data=bytes(source))
    if isinstance(source, str):
        return from_text(kind, source)
    if isinstance(source, os.PathLike):
        return kind(data=Path(source).read_bytes())
    return None


def from_text(kind: type[Medium], text: str) -> Medium:
    """A message for a string: a URL to fetch, the digest of an upload, or else the path of a file, which is read."""
    if FETCHED_URL.match(text):
        return kind(url=text)
    if DIGEST.fullmatch(text):
        return kind(digest=text.lower())
    if OTHER_URL.match(text):
        raise unfit_url(f"{kind.DESCRIPTOR.name.lower()}.url", text)
    return kind(data=Path(text).read_bytes())


def unfit_url(path: str, url: str) -> InvalidRequest:
    """The error for a URL of another scheme, which servers do not fetch."""
    shown = url if len(url) <= SHOWN_CHARACTERS else f"{url[:SHOWN_CHARACTERS]}..."
    return invalid_field(path, f"got {shown!r}; only http:// and https:// URLs; or give a path or bytes")


def png_of(picture: SavableImage) -> bytes:
    """A picture encoded as PNG. Colours that PNG cannot write, such as CMYK, become RGB."""
    mode, convert = getattr(picture, "mode", None), getattr(picture, "convert", None)
    if mode is not None and convert is not None and mode not in PNG_MODES:
        picture = convert("RGBA" if mode in MODES_WITH_ALPHA else "RGB")
    encoded = io.BytesIO()
    picture.save(encoded, format="PNG")
    return encoded.getvalue()


def set_options(message: Image | Video | Frames, path: str, **options: Any) -> None:
    """Sets fields; None leaves one unset. Raises InvalidRequest with the path of a field that is wrong."""
    for name, value in options.items():
        if value is None:
            continue
        if name == "detail" and value not in DETAILS:
            raise invalid_field(f"{path}.detail", f"got {value!r}; one of {', '.join(DETAILS)}")
        set_field(message, name, DETAILS[value] if name == "detail" else value, f"{path}.{name}")
