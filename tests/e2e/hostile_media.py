"""Bad media sent to a server process, one after the other: how each ends, how fast, and what it costs in memory.

Neighbours stream all the while, and after each bad medium an ordinary request is asked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import grpc
import grpc.aio

from fanlight import AsyncClient
from fanlight.channel import channel_options
from fanlight.errors import error_from_call
from fanlight.v1 import media_service_pb2
from fanlight.v1.inference_pb2_grpc import InferenceServiceStub
from fanlight.v1.media_service_pb2_grpc import MediaServiceStub
from tests.e2e.asking import long_ask
from tests.e2e.bad_input import asking, text
from tests.e2e.bad_media import BadMedia
from tests.e2e.memory import MemoryWatch
from tests.e2e.neighbours import Neighbours
from tests.e2e.pictures import picture
from tests.e2e.serving import ServerProcess

MOST_SECONDS = 2.0
MOST_EXTRA_BYTES = 200_000_000

_FIRST_PART = "generation.conversation.messages[0].parts[0]"
_LEAKS = ("object at 0x", "Traceback", "/site-packages", ".py", "Errno")
_PIECE_BYTES = 1 << 20
_MORE_TRIES = 3


@dataclass(frozen=True, slots=True)
class Sent:
    """One bad medium and what came of it. `extra_bytes` is None where the system does not tell."""

    bad: BadMedia
    code: grpc.StatusCode
    reason: str | None
    field: str | None
    message: str
    seconds: float
    extra_bytes: int | None

    @property
    def mismatches(self) -> list[str]:
        """How the answer differs from the one that this medium must get; it must not name our insides either."""
        found = []
        if self.code is not self.bad.code:
            found.append(f"code is {self.code.name}, not {self.bad.code.name}")
        if self.bad.reasons:
            if self.reason not in self.bad.reasons:
                found.append(f"reason is {self.reason}, not {' or '.join(self.bad.reasons)}")
            if not (self.field or "").startswith(_FIRST_PART):
                found.append(f"field is {self.field}, not {_FIRST_PART} or below")
        found += [f"{leak!r} is told" for leak in _LEAKS if leak in self.message]
        return [f"{one} ({self.message})" for one in found]

    @property
    def is_in_time(self) -> bool:
        """Whether the status came soon enough."""
        return self.seconds <= MOST_SECONDS

    @property
    def is_in_memory(self) -> bool:
        """Whether the server stayed small enough."""
        return self.extra_bytes is None or self.extra_bytes <= MOST_EXTRA_BYTES


@dataclass(frozen=True, slots=True)
class HostileOutcome:
    """All that were sent, and what the neighbours noticed."""

    sent: Sequence[Sent]
    neighbours: Neighbours


async def send_bad_media(server: ServerProcess, rows: Sequence[BadMedia]) -> HostileOutcome:
    """Send every row beside a neighbour with a long answer, and an ordinary request after each."""
    neighbours = Neighbours(long_ask(0, picture(1200), 200))
    async with (
        AsyncClient(server.address) as client,
        grpc.aio.insecure_channel(server.address, channel_options()) as channel,
    ):
        await neighbours.learn(client)
        sent = []
        async with neighbours.all_along(client):
            for bad in rows:
                sent.append(await _send_until_in_time(server.pid, channel, bad))
                await neighbours.ask_next(client)
    return HostileOutcome(sent, neighbours)


async def _send_until_in_time(pid: int, channel: grpc.aio.Channel, bad: BadMedia) -> Sent:
    """A late one is sent again: a busy machine is late now and then, a slow reader always. The most memory counts."""
    sent = await _send(pid, channel, bad)
    for _ in range(_MORE_TRIES):
        if sent.is_in_time:
            break
        again = await _send(pid, channel, bad)
        most = max(sent.extra_bytes or 0, again.extra_bytes or 0)
        sent = replace(again, extra_bytes=None if again.extra_bytes is None else most)
    return sent


async def _send(pid: int, channel: grpc.aio.Channel, bad: BadMedia) -> Sent:
    with MemoryWatch(pid) as memory:
        begun = time.monotonic()
        code, reason, field, message = await _status_of(channel, bad)
        seconds = time.monotonic() - begun
    return Sent(bad, code, reason, field, message, seconds, memory.extra_bytes)


async def _status_of(channel: grpc.aio.Channel, bad: BadMedia) -> tuple[grpc.StatusCode, str | None, str | None, str]:
    """Code, reason, field and text of the call; those of the upload where that is refused already."""
    try:
        for data in bad.uploads:
            await MediaServiceStub(channel).UploadMedia(_in_pieces(data))
        request = asking(bad.part, text("What is it?"), max_new_tokens=1, temperature=0.0)
        await InferenceServiceStub(channel).Generate(request)
    except grpc.aio.AioRpcError as error:
        refused = error_from_call(error)
        return refused.code, refused.reason, refused.field, refused.message
    return grpc.StatusCode.OK, None, None, ""


def _in_pieces(data: bytes) -> Iterator[media_service_pb2.UploadMediaRequest]:
    for start in range(0, len(data), _PIECE_BYTES):
        yield media_service_pb2.UploadMediaRequest(data=data[start : start + _PIECE_BYTES])
