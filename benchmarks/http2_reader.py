"""The lightest client of a gRPC server: writes ready requests to one connection and takes bytes off it.

For benchmarks whose client shares the server's cores: a client in Python takes as much of them as the server does, and
would be measured with it. Frames are looked into only as far as the connection needs; messages afterwards. Speaks what
HTTP/2 (RFC 9113) and gRPC over it ask of a client that has enough room for all that it asked for, no more.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW_SIZE = 4
_MUCH = (1 << 31) - 1
_FRAME_HEADER, _MESSAGE_HEADER = 9, 5
_AT_ONCE = 1 << 18


class ReadError(Exception):
    """The server ended a stream or the connection before it had answered."""


@dataclass(slots=True)
class _Connection:
    """What came of each stream so far."""

    transport: socket.socket
    data: dict[int, bytearray] = field(default_factory=dict)
    open_streams: int = 0

    def send(self, *frames: bytes) -> None:
        self.transport.sendall(b"".join(frames))

    def read_all(self) -> None:
        """Until every stream has ended."""
        pending = b""
        while self.open_streams:
            received = self.transport.recv(_AT_ONCE)
            if not received:
                raise ReadError("the server closed the connection")
            pending = self._take_frames(pending + received)

    def _take_frames(self, received: bytes) -> bytes:
        """Take all whole frames; what is left."""
        at = 0
        while len(received) - at >= _FRAME_HEADER:
            high, low, kind, flags, stream = struct.unpack_from(">BHBBI", received, at)
            end = at + _FRAME_HEADER + (high << 16 | low)
            if len(received) < end:
                break
            self._take_frame(kind, flags, stream, received[at + _FRAME_HEADER : end])
            at = end
        return received[at:]

    def _take_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _DATA:
            self.data[stream] += payload
        elif kind in (_SETTINGS, _PING) and not flags & _ACK:
            self.send(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind in (_RST_STREAM, _GOAWAY):
            raise ReadError(f"the server sent a frame of kind {kind}: {payload!r}")
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            self.open_streams -= 1


def read_streams(address: str, path: str, requests: Sequence[bytes]) -> tuple[list[list[bytes]], float]:
    """Send all requests at once to one method; messages of each answer, and seconds until the last byte came.

    Raises ReadError.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as transport:
        transport.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(transport)
        room = struct.pack(">HI", _INITIAL_WINDOW_SIZE, _MUCH)
        connection.send(
            _PREFACE, _frame(_SETTINGS, 0, 0, room), _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _MUCH >> 1))
        )
        begun = time.perf_counter()
        for number, request in enumerate(requests):
            stream = 2 * number + 1
            connection.data[stream] = bytearray()
            connection.open_streams += 1
            connection.send(
                _frame(_HEADERS, _END_HEADERS, stream, _headers(address, path)),
                _frame(_DATA, _END_STREAM, stream, struct.pack(">BI", 0, len(request)) + request),
            )
        connection.read_all()
        seconds = time.perf_counter() - begun
    return [list(_messages(bytes(data))) for data in connection.data.values()], seconds


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">BHBBI", len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def _headers(address: str, path: str) -> bytes:
    """A header block of literals (RFC 7541, 6.2.2), each shorter than 127 bytes."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": address,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(b"\0" + _literal(name) + _literal(value) for name, value in headers.items())


def _literal(text: str) -> bytes:
    return bytes([len(text)]) + text.encode("ascii")


def _messages(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        _, size = struct.unpack_from(">BI", data, at)
        yield data[at + _MESSAGE_HEADER : at + _MESSAGE_HEADER + size]
        at += _MESSAGE_HEADER + size
