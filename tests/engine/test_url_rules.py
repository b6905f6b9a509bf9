"""Which URLs are not even looked up, and which settings are no lists of hosts and ports."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fanlight_engine.errors import ConfigError
from fanlight_engine.inputs.media.sources.fetch import UrlFetcher
from tests.engine.fetching import DATA, HOST, config_for, fetcher_for, must_refuse, names
from tests.engine.url_server import (
    file,
    serve_urls,
)

# Refused by what the URL says


@pytest.mark.parametrize(
    "url",
    [
        "",
        "pictures.test",
        "/etc/passwd",
        "file:///etc/passwd",
        "ftp://pictures.test:{port}/",
        "gopher://pictures.test:{port}/",
        "data:image/png;base64,AAAA",
        "http:///a",
        "http://:{port}/",
        "http:pictures.test:{port}/",
        "http://pictures.test/",  # port 80 is not allowed here
        "http://pictures.test:22/",
        "http://pictures.test:0/",
        "http://pictures.test:99999/",
        "http://pictures.test:{port}x/",
        "http://user@pictures.test:{port}/",
        "http://user:secret@pictures.test:{port}/",
        "http://@pictures.test:{port}/",
        "http://pictures.test:{port}@evil.test:{port}/",
        "http://evil.test:{port}#@pictures.test:{port}/",
        "http://evil.test:{port}\\@pictures.test:{port}/",
        "http://evil.test:{port}/",
        "http://cdn.test:{port}/",  # *.cdn.test stands for the hosts below it
        "http://xcdn.test:{port}/",
        "http://pictures.test.evil.test:{port}/",
        "http://evil.test%2f.cdn.test:{port}/",
        "http://evilcdn%2etest:{port}/",
        "http://%70ictures.test:{port}/",
        "http://pictures..test:{port}/",
        "http://pictures.test..:{port}/",
        "http://pictures .test:{port}/",
        "http://pictures.test:{port}/a b",
        "http://pictures.test:{port}/\r\nHost: evil.test",
        "http://pictures.test:{port}/\0",
        "http://pictures\t.test:{port}/",
        "http://xn--a:{port}/",
        "http://[::1%25lo]:{port}/",
        "http://[::1%lo]:{port}/",
        "http://[::1:{port}/",
        "http://pictures.test:{port}/" + "a" * 10_000,
    ],
)
async def test_urls_outside_the_rules_are_refused_before_any_lookup(url: str) -> None:
    async with serve_urls({"/": file(DATA)}) as server:
        resolver = names()
        await must_refuse(fetcher_for(server, resolver), url.replace("{port}", str(server.port)))
        assert not resolver.lookups
        assert not server.seen


async def test_nothing_is_fetched_where_urls_are_off() -> None:
    async with serve_urls({"/": file(DATA)}) as server:
        fetcher = fetcher_for(server, allow_media_urls=False)
        assert not fetcher.enabled
        await must_refuse(fetcher, server.url(HOST, "/"))
        assert not server.seen


# Settings


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"media_url_hosts": "https://a.test"}, "media_url_hosts"),
        ({"media_url_hosts": "a.test/path"}, "media_url_hosts"),
        ({"media_url_hosts": "a.test:80"}, "media_url_hosts"),
        ({"media_url_hosts": "*"}, "media_url_hosts"),
        ({"media_url_hosts": "a.*.test"}, "media_url_hosts"),
        ({"media_url_hosts": "user@a.test"}, "media_url_hosts"),
        ({"media_url_hosts": "a b"}, "media_url_hosts"),
        ({"media_url_ports": "http"}, "media_url_ports"),
        ({"media_url_ports": "0"}, "media_url_ports"),
        ({"media_url_ports": "80,65536"}, "media_url_ports"),
        ({"media_url_ports": "-1"}, "media_url_ports"),
    ],
)
def test_lists_that_cannot_be_read_end_the_start(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        UrlFetcher(config_for(80, **settings))


def test_the_log_says_why_without_saying_what_was_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        asyncio.run(must_refuse(UrlFetcher(config_for(80)), "http://evil.test/secret-path"))
    assert "media_url_hosts" in caplog.text
    assert "secret-path" not in caplog.text


def test_the_folder_of_tests_is_the_only_one_that_trusts_the_loopback() -> None:
    """`judge` is an argument of the constructor, reached by no setting: nothing of the product fills it in."""
    root = Path(__file__).parents[2]
    sources = [*(root / "engine").rglob("*.py"), *(root / "server").rglob("*.py")]
    assert [one.name for one in sources if "judge=" in one.read_text(encoding="utf-8")] == []
