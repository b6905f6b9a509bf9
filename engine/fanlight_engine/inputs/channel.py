"""Messages between the server and a process of its own, over one socket.

Messages are JSON after their length in 4 bytes: nothing that the other end says is ever executed. Knows no message.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

_LENGTH = struct.Struct(">I")
LONGEST_MESSAGE = 64 << 20
"""Bytes; 100,000 frame times are 2 MB."""


class Channel:
    """One end of the socket. With a deadline (of time.monotonic), waiting past it raises TimeoutError."""

    def __init__(self, end: socket.socket, deadline: float | None = None) -> None:
        self._end = end
        self._deadline = deadline

    def send(self, kind: str, **content: Any) -> None:
        """A message. Raises OverflowError for one that is too long, of which nothing is sent."""
        body = json.dumps({"kind": kind, **content}, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if len(body) > LONGEST_MESSAGE:
            raise OverflowError(f"a message of {len(body)} bytes, at most {LONGEST_MESSAGE} are sent")
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
        if length > LONGEST_MESSAGE:
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
