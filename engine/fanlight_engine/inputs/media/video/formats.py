"""Which files are clips, told by their first bytes: an allow-list of containers, each with its demuxer.

Knows no PyAV: whoever only wants the type of an upload pays nothing for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.processing import MediaError

ALLOWED_CONTAINERS = "MP4, MOV, 3GP, WebM, Matroska and AVI"


@dataclass(frozen=True, slots=True)
class ClipFormat:
    """A kind of file: its content type, what people call it, and the demuxer that reads it."""

    content_type: str
    name: str
    demuxer: str


_MP4 = ClipFormat("video/mp4", "MP4", "mov")
_MOV = ClipFormat("video/quicktime", "MOV", "mov")
_3GP = ClipFormat("video/3gpp", "3GP", "mov")
_3G2 = ClipFormat("video/3gpp2", "3GP", "mov")
_WEBM = ClipFormat("video/webm", "WebM", "matroska")
_MATROSKA = ClipFormat("video/x-matroska", "Matroska", "matroska")
_AVI = ClipFormat("video/x-msvideo", "AVI", "avi")

CLIP_SIGNATURES = {
    "video/mp4": "....ftyp",
    "video/quicktime": "....ftypqt  , or ....moov, mdat, wide, free, skip or pnot",
    "video/3gpp": "....ftyp3gp",
    "video/3gpp2": "....ftyp3g2",
    "video/webm": "1A 45 DF A3, with the document type webm",
    "video/x-matroska": "1A 45 DF A3",
    "video/x-msvideo": "RIFF....AVI ",
}
"""The content types that are told apart, and the first bytes they are told by; a dot is any byte."""

_EBML = b"\x1a\x45\xdf\xa3"
_QUICKTIME_BOXES = (b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")
_PICTURE_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1", b"crx ")
_REFUSED_SIGNATURES = (
    (b"#EXTM3U", "an HLS playlist, which only names files"),
    (b"ffconcat", "a list of files"),
    (b"<?xml", "XML, such as a DASH manifest, which only names files"),
    (b"<MPD", "a DASH manifest, which only names files"),
    (b"v=0", "a session description, which only names streams"),
    (b"\0\0\x01\xba", "an MPEG program stream"),
    (b"FLV\x01", "Flash video"),
    (b"OggS", "Ogg"),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "Windows Media"),
    (b"\xff\xd8\xff", "a picture; send it as one"),
    (b"\x89PNG\r\n\x1a\n", "a picture; send it as one"),
    (b"GIF8", "a GIF; send it as a picture"),
    (b"ID3", "sound"),
    (b"fLaC", "sound"),
)


def sniff_clip(data: bytes) -> str:
    """The content type of a clip, such as "video/mp4". Raises MediaError for all other files."""
    return clip_format(data).content_type


def clip_format(data: bytes) -> ClipFormat:
    """The allowed format that the first bytes announce. Raises MediaError."""
    known = _known_format(data[:64])
    if known is not None:
        return known
    raise MediaError(Reason.VIDEO_UNREADABLE, _refusal_of(data[:512]))


def _known_format(head: bytes) -> ClipFormat | None:
    if head[4:8] == b"ftyp":
        return _format_of_brand(head[8:12])
    if head[4:8] in _QUICKTIME_BOXES:
        return _MOV
    if head.startswith(_EBML):
        return _WEBM if b"webm" in head else _MATROSKA
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return _AVI
    return None


def _format_of_brand(brand: bytes) -> ClipFormat | None:
    if brand in _PICTURE_BRANDS:
        return None
    if brand == b"qt  ":
        return _MOV
    if brand.startswith(b"3g2"):
        return _3G2
    return _3GP if brand.startswith(b"3g") else _MP4


def _refusal_of(head: bytes) -> str:
    only = f"only {ALLOWED_CONTAINERS} are allowed"
    if head[4:8] == b"ftyp":
        return f"it is a picture (AVIF or HEIC), {only}; convert it, and send it as a picture"
    if head[:4] == b"RIFF":
        return f"it is a RIFF file without a clip (sound or a picture), {only}"
    if head[:1] == b"\x47" and head[188:189] == b"\x47":
        return f"it is an MPEG transport stream, {only}; convert it"
    for signature, name in _REFUSED_SIGNATURES:
        if head.lstrip().startswith(signature) or head.startswith(signature):
            return f"it is {name}; {only}"
    return f"it is no clip; send the bytes of one file of {ALLOWED_CONTAINERS}"
