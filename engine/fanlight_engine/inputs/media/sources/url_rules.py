"""Which URLs may be fetched at all: scheme, host and port, judged on the text before any name is looked up.

A URL is parsed once, by the parser whose result is later sent, so that no two readers can disagree about its host.
Knows the operator's lists; knows no addresses and opens nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address

import httpx

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import ConfigError

MAX_URL_CHARACTERS = 8192

_DEFAULT_PORTS = {"http": 80, "https": 443}
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f\\]")
"""Where parsers disagree; a URL that needs one of these has it percent-encoded."""
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_WILDCARD = "*."


class UrlRefused(Exception):
    """For the operator's log; callers are told nothing of the reason."""


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that the rules allow. `host` is in its one normal spelling: ASCII, lower case, no final dot."""

    url: httpx.URL
    host: str
    port: int

    @property
    def is_encrypted(self) -> bool:
        """Whether it is fetched over TLS."""
        return self.url.scheme == "https"

    @property
    def host_header(self) -> str:
        """What the server is told about whom it is asked as."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.url.scheme] else f"{host}:{self.port}"

    def at(self, address: str) -> httpx.URL:
        """The URL with the name replaced by the address it stands for: nothing is looked up a second time."""
        return self.url.copy_with(host=address, fragment=None)


class UrlRules:
    """media_url_hosts and media_url_ports. Raises ConfigError where they cannot be read."""

    def __init__(self, config: EngineConfig) -> None:
        names = _items(config.media_url_hosts)
        self._hosts = frozenset(_configured_host(name) for name in names if not name.startswith(_WILDCARD))
        self._parents = tuple(
            "." + _configured_host(name.removeprefix(_WILDCARD)) for name in names if name.startswith(_WILDCARD)
        )
        self._ports = frozenset(_configured_port(port) for port in _items(config.media_url_ports))

    def check(self, text: str) -> Target:
        """The URL as a target. Raises UrlRefused."""
        if len(text) > MAX_URL_CHARACTERS or _FORBIDDEN.search(text):
            raise UrlRefused("it is too long, or holds spaces, control characters or backslashes")
        if "@" in _authority(text):  # the parser drops an empty one, which has no honest use either
            raise UrlRefused("it holds user information")
        try:
            return self._check_parsed(httpx.URL(text))
        except (httpx.InvalidURL, ValueError) as error:  # a ValueError is one of idna's, which the parser lets through
            raise UrlRefused("it is no URL") from error

    def redirected(self, target: Target, location: str) -> Target:
        """Where a redirect leads, judged like the first URL. Raises UrlRefused."""
        try:
            joined = str(target.url.join(location))
        except (httpx.InvalidURL, ValueError) as error:
            raise UrlRefused("it redirects to no URL") from error
        following = self.check(joined)
        if target.is_encrypted and not following.is_encrypted:
            raise UrlRefused("it redirects from https to http")
        return following

    def _check_parsed(self, url: httpx.URL) -> Target:
        if url.scheme not in _DEFAULT_PORTS:
            raise UrlRefused("its scheme is neither http nor https")
        host = _normal_host(url)
        port = _DEFAULT_PORTS[url.scheme] if url.port is None else url.port
        if port not in self._ports:
            raise UrlRefused(f"port {port} is not in media_url_ports")
        if host not in self._hosts and not host.endswith(self._parents):
            raise UrlRefused("its host is not in media_url_hosts")
        return Target(url, host, port)


def _authority(text: str) -> str:
    """What stands between the scheme and the path, query or fragment."""
    return re.split(r"[/?#]", text.partition("://")[2], maxsplit=1)[0]


def _normal_host(url: httpx.URL) -> str:
    """The host in its one spelling. Raises UrlRefused for percent-encoded ones, IPv6 zones, and what is no name."""
    host = url.raw_host.decode("ascii").lower().removesuffix(".")
    if ":" in host and "%" not in host:
        return str(ip_address(host))
    if not _NAME.fullmatch(host):
        raise UrlRefused("its host is neither a name nor an address")
    return host


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _configured_host(text: str) -> str:
    try:
        bracketed = f"[{text}]" if ":" in text and not text.startswith("[") else text
        url = httpx.URL(f"https://{bracketed}/")
        if url.port is None and url.raw_path == b"/" and not url.userinfo:
            return _normal_host(url)
    except (httpx.InvalidURL, ValueError, UrlRefused):
        pass
    raise ConfigError(
        f"media_url_hosts names {text!r}, which is no host; write names like cdn.example.com, or *.example.com for "
        "every host below example.com, separated by commas"
    )


def _configured_port(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 5 and 1 <= int(text) <= 65_535:
        return int(text)
    raise ConfigError(f"media_url_ports names {text!r}, which is no port; write numbers from 1 to 65535, like 80,443")
