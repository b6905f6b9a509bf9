"""A local HTTP server that tests script path by path, and name servers that know made-up hosts.

    async with serve_urls({"/cat.png": file(data)}) as server:
        fetcher = UrlFetcher(config, resolver=MadeUpNames({"pictures.test": [LOOPBACK]}), judge=trusting(LOOPBACK))
        await fetcher.fetch(server.url("pictures.test", "/cat.png"), 1 << 20)

Knows the wire of HTTP/1.1 and no more; what a reply says is written by hand, so that it can be wrong.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fanlight_engine.inputs.media.sources.addresses import is_public

LOOPBACK = "127.0.0.1"

Reply = Callable[[asyncio.StreamWriter], Awaitable[None]]
"""Writes one whole answer; the connection is closed after it."""


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """What a client asked."""

    path: str
    headers: dict[str, str]
    """Names in lower case."""


@dataclass(slots=True)
class UrlServer:
    """A running server; replies may be added while it runs."""

    replies: dict[str, Reply]
    port: int = 0
    scheme: str = "http"
    seen: list[SeenRequest] = field(default_factory=list)

    def url(self, host: str, path: str) -> str:
        """A URL of this server under a made-up host."""
        return f"{self.scheme}://{host}:{self.port}{path}"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one answer."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = (line.partition(":") for line in head[1:] if line)
            path = head[0].split(" ")[1]
            self.seen.append(SeenRequest(path, {name.lower(): value.strip() for name, _, value in headers}))
            await self.replies.get(path.partition("?")[0], status(404))(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # clients may go away at any moment; many tests are about that
        finally:
            writer.close()


@asynccontextmanager
async def serve_urls(replies: Mapping[str, Reply], tls: ssl.SSLContext | None = None) -> AsyncIterator[UrlServer]:
    """A server on a free port of the loopback interface; everything it does ends with the block."""
    server = UrlServer(dict(replies), scheme="http" if tls is None else "https")
    running: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            await server.answer(reader, writer)
        finally:
            running.discard(task)

    listener = await asyncio.start_server(answer, LOOPBACK, 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await listener.wait_closed()


def raw(*pieces: bytes) -> Reply:
    """Exactly these bytes."""

    async def reply(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return reply


def file(data: bytes, *headers: str) -> Reply:
    """200 with this body."""
    lines = ("HTTP/1.1 200 OK", f"Content-Length: {len(data)}", *headers, "", "")
    return raw("\r\n".join(lines).encode(), data)


def status(code: int, *headers: str) -> Reply:
    """An answer without a body."""
    return raw("\r\n".join((f"HTTP/1.1 {code} Answer", "Content-Length: 0", *headers, "", "")).encode())


def redirect(location: str, code: int = 302) -> Reply:
    """A redirect."""
    return status(code, f"Location: {location}")


def endless(head: bytes, piece: bytes, pause: float = 0.0) -> Reply:
    """A head, then the same piece again and again until the client goes away."""

    async def reply(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)

    return reply


@dataclass(slots=True)
class MadeUpNames:
    """A resolver. A name's answers are used up one lookup after the other; the last one stays."""

    answers: Mapping[str, Sequence[str] | Sequence[Sequence[str]]]
    lookups: list[str] = field(default_factory=list)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """All addresses of the host; OSError for unknown ones."""
        turn = self.lookups.count(host)
        self.lookups.append(host)
        if host not in self.answers:
            raise OSError("no such host")
        answers = self.answers[host]
        if not answers or isinstance(answers[0], str):
            return answers  # pyright: ignore[reportReturnType]
        return answers[min(turn, len(answers) - 1)]  # pyright: ignore[reportReturnType]


def trusting(*addresses: str) -> Callable[[str], bool]:
    """The real judge of addresses, but for these: the local server's. For tests alone; no setting does this."""
    return lambda address: address in addresses or is_public(address)


def make_certificate(directory: Path, *hosts: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of a server for these hosts, and of a client that trusts it. FileNotFoundError without openssl."""
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    names = ",".join(f"DNS:{host}" for host in hosts)
    command = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    subject = ("-days", "2", "-subj", "/CN=test", "-addext", f"subjectAltName={names}")
    subprocess.run((*command, *subject, "-keyout", key, "-out", certificate), check=True, capture_output=True)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate, key)
    return server, ssl.create_default_context(cafile=str(certificate))
