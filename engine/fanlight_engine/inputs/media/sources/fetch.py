"""Files of URLs, fetched so that a stranger who chooses the URL gains nothing that the operator did not offer.

    rules on the text -> one lookup -> every answer judged -> connection to a judged address -> capped bytes
                      ^--------------- a redirect, at most three ---------------------------'

One deadline spans all of it. Whatever goes wrong, the caller gets one and the same text, for a server that told a
closed port from an unknown name would be a port scanner; the operator's log says what it was. Knows nothing of what is
in the file.
"""

from __future__ import annotations

import asyncio
import io
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.processing import MediaError
from fanlight_engine.inputs.media.sources.addresses import is_public
from fanlight_engine.inputs.media.sources.url_rules import Target, UrlRefused, UrlRules

MAX_REDIRECTS = 3
MAX_CONCURRENT_FETCHES = 8
"""More wait, within their own deadlines: each may hold a whole clip in memory."""
MAX_CONNECTION_ATTEMPTS = 4
"""Addresses of one name that are tried, in the resolver's order."""

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host and port -> all addresses that the name has, as text; OSError where it has none."""

_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_HEADERS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "fanlight"}
UNAVAILABLE = (
    "the file cannot be fetched: its URL is not allowed here, or it does not answer with the file within the limits of "
    "time and size; check the URL, or send the bytes, or upload the file and send its digest"
)

_log = logging.getLogger(__name__)


class UrlFetcher:
    """Fetches files of allowed hosts. One per front; raises ConfigError where the lists cannot be read.

    `resolver`, `judge` and `tls` stand in for the system's resolver, the judgement of addresses and the certificates
    that are trusted; no setting reaches them.
    """

    def __init__(
        self,
        config: EngineConfig,
        resolver: Resolver | None = None,
        judge: Callable[[str], bool] = is_public,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.enabled = config.allow_media_urls
        """Whether URLs are fetched at all."""
        self._seconds = config.media_url_seconds
        self._rules = UrlRules(config)
        # Lookups cannot be cancelled: in threads of their own, dead name servers keep nobody else waiting.
        self._threads = ThreadPoolExecutor(MAX_CONCURRENT_FETCHES, "fanlight-lookup")
        self._resolve: Resolver = resolver or self._ask_system
        self._judge = judge
        self._tls = tls
        self._places = asyncio.Semaphore(MAX_CONCURRENT_FETCHES)

    async def fetch(self, url: str, max_bytes: int) -> bytes:
        """The file, at most `max_bytes` long. Raises MediaError with one text for every failure."""
        try:
            if not self.enabled:
                raise UrlRefused("allow_media_urls is off")
            async with self._places, asyncio.timeout(self._seconds):
                return await self._follow(url, max_bytes)
        except Exception as error:  # resolvers, TLS, HTTP and servers fail in every way there is
            reason = str(error) if isinstance(error, UrlRefused) else type(error).__name__
            _log.info("a media URL of host %s was not fetched: %s", _host_of(url), reason)
            raise MediaError(Reason.MEDIA_URL_UNAVAILABLE, UNAVAILABLE) from None

    def close(self) -> None:
        """End the lookup threads, once nothing is fetched any more. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _follow(self, url: str, max_bytes: int) -> bytes:
        target = self._rules.check(url)
        for _ in range(1 + MAX_REDIRECTS):
            answer = await self._ask(target, max_bytes)
            if isinstance(answer, bytes):
                return answer
            target = answer
        raise UrlRefused(f"it redirects more than {MAX_REDIRECTS} times")

    async def _ask(self, target: Target, max_bytes: int) -> bytes | Target:
        """One hop: the file, or where a redirect leads."""
        *first, last = addresses = await self._judged_addresses(target)
        connect_seconds = self._seconds / len(addresses)
        for address in first:
            try:
                return await self._ask_address(target, address, connect_seconds, max_bytes)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._ask_address(target, last, connect_seconds, max_bytes)

    async def _judged_addresses(self, target: Target) -> Sequence[str]:
        """All answers of the one lookup, each judged: one that is private spoils the name. Never empty."""
        addresses = tuple(dict.fromkeys(await self._resolve(target.host, target.port)))
        if not addresses:
            raise UrlRefused("its host has no address")
        if not all(self._judge(address) for address in addresses):
            raise UrlRefused("its host has an address that is not of the public internet")
        return addresses[:MAX_CONNECTION_ATTEMPTS]

    async def _ask_address(
        self, target: Target, address: str, connect_seconds: float, max_bytes: int
    ) -> bytes | Target:
        """One request. A bare transport has no cookies, credentials or redirects, and a log that names no URLs.

        It lives for one request: a kept connection could be taken for another name with the same address.
        """
        request = httpx.Request(
            "GET",
            target.at(address),
            headers={**_HEADERS, "host": target.host_header},
            extensions={
                "sni_hostname": target.host,  # the certificate must be the name's, not the address's
                "timeout": httpx.Timeout(self._seconds, connect=connect_seconds).as_dict(),
            },
        )
        async with httpx.AsyncHTTPTransport(verify=await self._tls_context(), trust_env=False) as transport:
            response = await transport.handle_async_request(request)
            try:
                if response.status_code in _REDIRECTS and "location" in response.headers:
                    return self._rules.redirected(target, response.headers["location"])
                return await _body(response, max_bytes)
            finally:
                await response.aclose()

    async def _tls_context(self) -> ssl.SSLContext:
        """Trusted certificates, read once, in a thread: that takes tens of milliseconds."""
        if self._tls is None:
            self._tls = await asyncio.get_running_loop().run_in_executor(self._threads, httpx.create_ssl_context)
        return self._tls

    async def _ask_system(self, host: str, port: int) -> Sequence[str]:
        def look_up() -> list[str]:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
            return [str(address[0]) for *_, address in found]

        return await asyncio.get_running_loop().run_in_executor(self._threads, look_up)


def _host_of(url: str) -> str:
    """The host that a URL names, for the log; paths and queries may hold secrets."""
    try:
        return ascii((urlsplit(url).hostname or "")[:253])
    except ValueError:
        return "unreadable"


async def _body(response: httpx.Response, max_bytes: int) -> bytes:
    """The body as it was sent, at most so long. Raises UrlRefused."""
    if response.status_code != 200:
        raise UrlRefused(f"it answers {response.status_code}")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise UrlRefused("it answers with compressed content, which was not asked for")
    body = io.BytesIO()  # turns into bytes without a copy
    async for chunk in response.aiter_raw():
        if body.tell() + len(chunk) > max_bytes:
            raise UrlRefused(f"its file is larger than {max_bytes} bytes")
        body.write(chunk)
    return body.getvalue()
