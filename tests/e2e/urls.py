"""URLs sent to a running server as images: those that would reach where they should not, and those that are allowed.

The server fetches for real, from a local HTTP server under made-up names. Whether an address may be connected to is
judged as in earnest; only for the local server's own address is that suspended, where a case needs to reach it.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from fanlight.errors import FanlightError
from fanlight.v1 import generation_pb2, media_pb2
from fanlight_engine.config import EngineConfig
from fanlight_engine.inputs.media.sources.addresses import is_public
from fanlight_engine.inputs.media.sources.fetch import UrlFetcher
from tests.e2e.asking import Ask, same_words
from tests.e2e.bad_input import asking, refusal_of, text
from tests.e2e.pictures import picture
from tests.e2e.serving import Served, serving
from tests.engine.url_server import (
    LOOPBACK,
    MadeUpNames,
    Reply,
    UrlServer,
    endless,
    file,
    raw,
    redirect,
    serve_urls,
    status,
)

HOST = "pictures.test"
METADATA = "169.254.169.254"
PUBLIC = "93.184.216.34"
UNAVAILABLE = "MEDIA_URL_UNAVAILABLE"

ADDRESSES = {
    "loopback": "127.0.0.1",
    "another loopback": "127.8.9.10",
    "no address": "0.0.0.0",
    "private 10": "10.1.2.3",
    "private 172": "172.16.5.4",
    "private 192": "192.168.1.1",
    "cloud metadata": METADATA,
    "carrier-grade NAT": "100.64.0.1",
    "benchmarks": "198.18.0.1",
    "documentation": "203.0.113.7",
    "multicast": "224.0.0.251",
    "broadcast": "255.255.255.255",
    "IPv6 loopback": "::1",
    "no IPv6 address": "::",
    "IPv6 unique local": "fd00:ec2::254",
    "IPv6 link-local": "fe80::1",
    "IPv6 multicast": "ff02::1",
    "mapped loopback": "::ffff:127.0.0.1",
    "compatible loopback": "::127.0.0.1",
    "6to4 of loopback": "2002:7f00:1::",
    "6to4 of cloud metadata": "2002:a9fe:a9fe::1",
    "NAT64 of loopback": "64:ff9b::7f00:1",
    "NAT64 of cloud metadata": "64:ff9b::a9fe:a9fe",
    "local NAT64": "64:ff9b:1::808:808",
    "Teredo of a private client": "2001:0:4136:e378:8000:63bf:f5fe:fdfc",
    "IPv6 documentation": "2001:db8::1",
}
"""What a name's only address may not be."""
SPELLINGS = {
    "dotted": "127.0.0.1",
    "two parts": "127.1",
    "one number": "2130706433",
    "hexadecimal": "0x7f000001",
    "octal": "0177.0.0.1",
    "full-width digits": "１２７.０.０.１",  # noqa: RUF001 - that is what is tested
    "IPv6": "[::1]",
    "mapped": "[::ffff:127.0.0.1]",
}
"""Ways to write loopback."""
ALLOWED_HOSTS = ("*.test", "127.0.0.1", "127.1", "2130706433", "0x7f000001", "[::1]", "[::ffff:127.0.0.1]")
"""Spellings of loopback among them, so that it is the address that is refused; no list takes the other spellings."""


@dataclass(frozen=True, slots=True)
class UrlCase:
    """A URL, and whether the local server may be reached while it is fetched."""

    name: str
    url: str
    reaches_local_server: bool = False


@dataclass(slots=True)
class Judge:
    """The real judge of addresses, but for those that are trusted at the moment."""

    trusted: set[str] = field(default_factory=set)

    def __call__(self, address: str) -> bool:
        return address in self.trusted or is_public(address)


@dataclass(frozen=True, slots=True)
class Fetching:
    """A server that may fetch URLs, from where it fetches, and who judges."""

    served: Served
    web: UrlServer
    judge: Judge
    closed_port: int


@asynccontextmanager
async def fetching() -> AsyncIterator[Fetching]:
    """URLs are allowed for made-up hosts and for every spelling of loopback, on the ports of the local server."""
    async with serve_urls({}) as web:
        with socket.socket() as unused:
            unused.bind((LOOPBACK, 0))
            closed_port = unused.getsockname()[1]
            judge, names = Judge(), _names()

            async def resolve(host: str, port: int) -> Sequence[str]:
                if host.endswith(".test"):
                    return await names(host, port)
                found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
                return [str(address[0]) for *_, address in found]

            def fetcher(config: EngineConfig) -> UrlFetcher:
                return UrlFetcher(config, resolver=resolve, judge=judge)

            async with serving(
                fetcher=fetcher,
                allow_media_urls=True,
                media_url_hosts=",".join(ALLOWED_HOSTS),
                media_url_ports=f"{web.port},{closed_port}",
                media_url_seconds=1,
            ) as served:
                yield Fetching(served, web, judge, closed_port)


def _names() -> MadeUpNames:
    local = (HOST, "other.test", "moved.test")
    return MadeUpNames(
        {
            **dict.fromkeys(local, (LOOPBACK,)),
            **{_name_of(address): [address] for address in ADDRESSES.values()},
            "mixed.test": [PUBLIC, METADATA],
            "empty.test": [],
            "rebound.test": [[LOOPBACK], ["10.0.0.1"]],
        }
    )


def _name_of(address: str) -> str:
    return f"at-{address.replace('.', '-').replace(':', '_')}.test"


def cases(web: UrlServer, closed_port: int) -> list[UrlCase]:
    """Every URL that must be refused; the local server's replies are set for them."""
    port = web.port
    rows = [UrlCase(f"a name of {what}", web.url(_name_of(one), "/")) for what, one in ADDRESSES.items()]
    rows += [UrlCase(f"loopback as {what}", f"http://{host}:{port}/") for what, host in SPELLINGS.items()]
    rows.append(UrlCase("a name of a public and a private address", web.url("mixed.test", "/")))
    rows += [
        UrlCase(name, url.format(host=HOST, port=port), reaches_local_server=True) for name, url in _FORBIDDEN_TEXTS
    ]
    for path, (name, reply) in _bad_replies(web).items():
        web.replies[path] = reply
        rows.append(UrlCase(name, web.url(HOST, path), reaches_local_server=True))
    web.replies["/rebound"] = redirect(web.url("rebound.test", "/picture"))
    rows += [
        UrlCase("a name that is rebound between two hops", web.url("rebound.test", "/rebound"), True),
        UrlCase("a name without an address", web.url("empty.test", "/"), True),
        UrlCase("an unknown name", web.url("unknown.test", "/"), True),
        UrlCase("a port that nobody listens on", f"http://{HOST}:{closed_port}/", True),
    ]
    return rows


_FORBIDDEN_TEXTS = (
    ("a file", "file:///etc/passwd"),
    ("FTP", "ftp://{host}:{port}/picture"),
    ("gopher", "gopher://{host}:{port}/picture"),
    ("data", "data:image/png;base64,AAAA"),
    ("no scheme", "{host}:{port}/picture"),
    ("a user", "http://user:secret@{host}:{port}/picture"),
    ("a host that is not allowed", "http://elsewhere.example:{port}/picture"),
    ("an allowed host as user", "http://{host}:{port}@elsewhere.example:{port}/picture"),
    ("an allowed host behind a hash", "http://elsewhere.example:{port}#@{host}:{port}/picture"),
    ("an allowed host behind a backslash", "http://elsewhere.example:{port}\\@{host}:{port}/picture"),
    ("a port that is not allowed", "http://{host}:22/picture"),
    ("a line break", "http://{host}:{port}/picture\r\nX: y"),
)


def _bad_replies(web: UrlServer) -> dict[str, tuple[str, Reply]]:
    """Name and reply by path, for answers that are not to be followed or not to be taken."""
    chunk, slow_head = b"x" * 65_536, b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"
    unbounded = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n"
    squeezed = file(gzip.compress(picture(0)), "Content-Encoding: gzip")
    web.replies |= {"/picture": file(picture(0)), **{f"/{hop}": redirect(f"/{hop + 1}") for hop in (2, 3)}}
    web.replies["/4"] = redirect("/picture")
    return {
        "/to-metadata": ("a redirect to cloud metadata", redirect(web.url(_name_of(METADATA), "/"))),
        "/to-private": ("a redirect to a private name", redirect(web.url(_name_of("10.1.2.3"), "/"))),
        "/to-other-host": ("a redirect to a host that is not allowed", redirect(web.url("elsewhere.example", "/"))),
        "/to-file": ("a redirect to a file", redirect("file:///etc/passwd")),
        "/to-port": ("a redirect to a port that is not allowed", redirect(f"http://{HOST}:22/")),
        "/1": ("a chain of four redirects", redirect("/2")),
        "/loop": ("a redirect to itself", redirect("/loop")),
        "/missing": ("404", status(404)),
        "/broken": ("500", status(500)),
        "/forbidden": ("403", status(403)),
        "/partial": ("206", status(206)),
        "/not-http": ("an answer that is no HTTP", raw(b"SSH-2.0-OpenSSH_9.6\r\n")),
        "/cut": ("an answer that is cut short", raw(slow_head, b"short")),
        "/silent": ("an answer that hardly comes", endless(slow_head, b"x", 0.05)),
        "/endless": ("a file without end", endless(unbounded, chunk)),
        "/squeezed": ("a compressed answer", squeezed),
    }


@dataclass(frozen=True, slots=True)
class UrlOutcome:
    """A URL and how its request ended."""

    case: UrlCase
    refused: FanlightError


async def refusals(fetching: Fetching) -> list[UrlOutcome]:
    """Every case, one after the other."""
    outcomes = []
    for case in cases(fetching.web, fetching.closed_port):
        fetching.judge.trusted = {LOOPBACK} if case.reaches_local_server else set()
        outcomes.append(UrlOutcome(case, await refusal_of(fetching.served.channel, asking(_image_at(case.url)))))
    return outcomes


def unlike(outcomes: Sequence[UrlOutcome]) -> list[str]:
    """Those whose status, reason or text is not the one that all must have, with what they got."""
    wanted = (grpc.StatusCode.INVALID_ARGUMENT, UNAVAILABLE, outcomes[0].refused.message)
    return [
        f"{one.case.name}: {one.refused.code.name}, {one.refused.reason}: {one.refused.message}"
        for one in outcomes
        if (one.refused.code, one.refused.reason, one.refused.message) != wanted
    ]


async def allowed_hosts(fetching: Fetching) -> dict[str, bool]:
    """Whether a picture's answer is that of its bytes, for each way to an allowed host."""
    web, client = fetching.web, fetching.served.client
    fetching.judge.trusted = {LOOPBACK}
    data = picture(1301)
    web.replies |= {
        "/picture.png": file(data),
        "/far": redirect(web.url("moved.test", "/near")),
        "/near": redirect("/here", 308),
        "/here": redirect(web.url("other.test", "/picture.png"), 301),
    }
    ways = {
        "an allowed host": web.url(HOST, "/picture.png"),
        "its name in capitals": web.url(HOST.upper(), "/picture.png?size=large#top"),
        "three redirects to allowed hosts": web.url(HOST, "/far"),
    }
    question, options = "What is in the picture?", {"temperature": 0.0, "max_new_tokens": 24, "token_ids": True}
    expected = await Ask(question, (data,)).answer(client)
    return {
        name: same_words(await client.generate(question, images=[url], **options), expected)
        for name, url in ways.items()
    }


async def refusal_where_urls_are_off(served: Served) -> FanlightError:
    """What a server says that fetches nothing."""
    return await refusal_of(served.channel, asking(_image_at(f"http://{HOST}/picture"), text("Hi")))


def _image_at(url: str) -> generation_pb2.Part:
    return generation_pb2.Part(image=media_pb2.Image(url=url))
