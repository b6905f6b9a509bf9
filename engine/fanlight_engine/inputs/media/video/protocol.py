"""What the server and a decoder process say to each other, over one socket.

    process   ready
              facts | refused
    server    indices                          which frames are wanted, ascending
    process   frame, then its bytes            once per wanted frame, in order
              end | ended_early | refused      ended_early: the file has fewer frames than its headers say;
                                               the server may ask again, by the times that were seen

They go through a `Channel`. Knows no PyAV.
"""

from __future__ import annotations

from dataclasses import dataclass

from fanlight_engine.errors import Reason

RATE_UNLESS_KNOWN = 24.0
"""Frames per second where nothing tells: the rate of cinema, which processors take too."""
MOST_BYTES_OF_FRAMES = 512 << 20
"""Memory that the chosen frames of one clip may take together, decoded."""


@dataclass(frozen=True, slots=True)
class ClipLimits:
    """What one file may be, and what decoding it may take."""

    frames: int
    """Frames of the file, shown or not."""
    seconds: int
    """Length of the clip."""
    pixels: int
    """Width x height of a frame."""
    side: int
    """Width or height of a frame."""
    decode_seconds: int
    """Time for reading the file, and again for decoding its frames."""


class ClipRefused(Exception):
    """The file was refused; becomes a MediaError where media are known."""

    def __init__(self, reason: Reason, description: str) -> None:
        super().__init__(description)
        self.reason = reason
        self.description = description
