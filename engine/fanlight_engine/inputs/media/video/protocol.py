"""What the server and a decoder process say to each other, over one socket.

    process   ready
              facts | refused
    server    indices                          which frames are wanted, ascending
    process   frame, then its bytes            once per wanted frame, in order
              end | ended_early | refused      ended_early: the file has fewer frames than its headers say;
                                               the server may ask again, by the times that were seen

Messages are JSON after their length in 4 bytes: nothing that the process says is ever executed. Knows no PyAV.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any

from fanlight_engine.errors import Reason

RATE_UNLESS_KNOWN = 24.0
"""Frames per second where nothing tells: the rate of cinema, which processors take too."""
MOST_BYTES_OF_FRAMES = 512 << 20
"""Memory that the chosen frames of one clip may take together, decoded."""

_LENGTH = struct.Struct(">I")
_LONGEST_MESSAGE = 64 << 20
"""Bytes; 100,000 frame times are 2 MB."""


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


class Channel:
    """One end of the socket. With a deadline (of time.monotonic), waiting past it raises TimeoutError."""

    def __init__(self, end: socket.socket, deadline: float | None = None) -> None:
        self._end = end
        self._deadline = deadline

    def send(self, kind: str, **content: Any) -> None:
        """A message."""
        body = json.dumps({"kind": kind, **content}).encode()
        self.send_bytes(_LENGTH.pack(len(body)) + body)

    def send_bytes(self, content: bytes | memoryview) -> None:
        """Plain bytes, whose number the other end knows from a message before."""
        self._wait_at_most()
        self._end.sendall(content)

    def receive(self) -> dict[str, Any]:
        """The next message. Raises EOFError where the other end is gone."""
        head = bytearray(_LENGTH.size)
        self.receive_into(memoryview(head))
        (length,) = _LENGTH.unpack(head)
        if length > _LONGEST_MESSAGE:
            raise EOFError
        body = bytearray(length)
        self.receive_into(memoryview(body))
        return json.loads(body)

    def receive_into(self, target: memoryview) -> None:
        """Fill flat bytes. Raises EOFError where the other end is gone."""
        while target:
            self._wait_at_most()
            received = self._end.recv_into(target)
            if not received:
                raise EOFError
            target = target[received:]

    def _wait_at_most(self) -> None:
        if self._deadline is None:
            return
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._end.settimeout(left)
