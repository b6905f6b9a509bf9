"""What a file is, from its first bytes: a content type, and the size of a picture as its header says.

Never refuses: what nobody recognises is kept as well, as a file of no known type. Knows nothing of who sent it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fanlight_engine.config import EngineConfig
from fanlight_engine.inputs.media import images
from fanlight_engine.inputs.media.processing import MediaError
from fanlight_engine.inputs.media.sources.bodies import Body
from fanlight_engine.inputs.media.sources.safetensors_file import looks_like_safetensors
from fanlight_engine.inputs.media.video.formats import sniff_clip

SNIFFED_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class FileFacts:
    """`content_type` is empty where it is not known; `image_size` is (width, height) before EXIF orientation."""

    content_type: str = ""
    image_size: tuple[int, int] | None = None


def facts_of(body: Body, size: int, config: EngineConfig) -> FileFacts:
    """Reads the file's beginning, and all of it where it is a picture that requests could name. Blocks; no errors."""
    beginning = body.read(0, min(size, SNIFFED_BYTES))
    try:
        content_type = f"image/{images.sniff(beginning).lower()}"
    except MediaError:
        return FileFacts(_type_of_others(beginning, size))
    if size > config.max_image_bytes:
        return FileFacts(content_type)
    try:
        facts = images.inspect(body.read(0, size), config)
    except MediaError:
        return FileFacts(content_type)
    return FileFacts(content_type, (facts.width, facts.height))


def _type_of_others(beginning: bytes, size: int) -> str:
    if looks_like_safetensors(beginning, size):
        return "application/safetensors"
    try:
        return sniff_clip(beginning)
    except MediaError:
        return ""
