"""A fetcher as tests need it: made-up names, the local server's address trusted, and every refusal in one text."""

from __future__ import annotations

from typing import Any

import pytest

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.processing import MediaError
from fanlight_engine.inputs.media.sources.fetch import UNAVAILABLE, UrlFetcher
from tests.engine.url_server import LOOPBACK, MadeUpNames, UrlServer, trusting

DATA = bytes(range(256)) * 40
HOST = "pictures.test"
METADATA = "169.254.169.254"
PUBLIC = "93.184.216.34"


def config_for(port: int, **settings: Any) -> EngineConfig:
    hosts = f"{HOST}, other.test, *.cdn.test, bücher.test, 127.0.0.1, [::1], inner.test, gone.test, 2130706433, 127.1"
    defaults = {"allow_media_urls": True, "media_url_hosts": hosts, "media_url_ports": str(port)}
    return EngineConfig(**{**defaults, **settings})


def names(**more: Any) -> MadeUpNames:
    known = (HOST, "other.test", "a.cdn.test", "cdn.test", "evil.test", "xn--bcher-kva.test")
    return MadeUpNames({**{name: [LOOPBACK] for name in known}, "inner.test": [METADATA], **more})


def fetcher_for(server: UrlServer, resolver: MadeUpNames | None = None, **settings: Any) -> UrlFetcher:
    return UrlFetcher(config_for(server.port, **settings), resolver or names(), judge=trusting(LOOPBACK))


async def must_refuse(fetcher: UrlFetcher, url: str, max_bytes: int = 1 << 20) -> None:
    """The fetch must fail as every other one does, saying nothing of why."""
    with pytest.raises(MediaError) as caught:
        await fetcher.fetch(url, max_bytes)
    assert (caught.value.reason, caught.value.description) == (Reason.MEDIA_URL_UNAVAILABLE, UNAVAILABLE)
    assert caught.value.__cause__ is None
