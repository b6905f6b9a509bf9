"""Files of URLs: allowed ones arrive, and whatever else happens is refused with one text."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import time
from typing import Any

import pytest

from fanlight_engine.inputs.media.sources.fetch import UrlFetcher
from tests.engine.fetching import DATA, HOST, METADATA, PUBLIC, config_for, fetcher_for, must_refuse, names
from tests.engine.url_server import (
    LOOPBACK,
    UrlServer,
    endless,
    file,
    make_certificate,
    raw,
    redirect,
    serve_urls,
    status,
    trusting,
)

# Allowed


@pytest.mark.parametrize("host", [HOST, "PICTURES.test", "pictures.test.", "a.cdn.test", "bücher.test"])
async def test_a_file_of_an_allowed_host_arrives_whole(host: str) -> None:
    async with serve_urls({"/a.png": file(DATA)}) as server:
        assert await fetcher_for(server).fetch(server.url(host, "/a.png?b=c#d"), len(DATA)) == DATA
        assert server.seen[0].path == "/a.png?b=c"


async def test_the_server_is_told_the_name_and_no_secrets_of_the_client() -> None:
    async with serve_urls({"/": file(DATA, "Set-Cookie: a=b; Path=/"), "/again": redirect("/")}) as server:
        fetcher = fetcher_for(server)
        for path in ("/", "/again"):
            await fetcher.fetch(server.url(HOST, path), 1 << 20)
        allowed = {"host", "accept", "accept-encoding", "user-agent"}
        assert [set(request.headers) for request in server.seen] == [allowed] * 3
        assert {request.headers["host"] for request in server.seen} == {f"{HOST}:{server.port}"}
        assert {request.headers["accept-encoding"] for request in server.seen} == {"identity"}


async def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_urls({"/": file(DATA)}) as server, serve_urls({}) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://{LOOPBACK}:{proxy.port}")
        assert await fetcher_for(server).fetch(server.url(HOST, "/"), 1 << 20) == DATA
        assert not proxy.seen


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_up_to_three_redirects_are_followed_across_allowed_hosts(code: int) -> None:
    async with serve_urls({"/end": file(DATA)}) as server:
        server.replies["/1"] = redirect("/2", code)
        server.replies["/2"] = redirect(server.url("other.test", "/3"), code)
        server.replies["/3"] = redirect(f"//a.cdn.test:{server.port}/end", code)
        assert await fetcher_for(server).fetch(server.url(HOST, "/1"), 1 << 20) == DATA
        assert [request.headers["host"].split(":")[0] for request in server.seen] == [
            HOST,
            HOST,
            "other.test",
            "a.cdn.test",
        ]


async def test_a_chunked_body_of_exactly_the_limit_arrives() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serve_urls({"/": raw(head, b"3\r\nabc\r\n", b"2\r\nde\r\n", b"0\r\n\r\n")}) as server:
        assert await fetcher_for(server).fetch(server.url(HOST, "/"), 5) == b"abcde"


async def test_another_address_of_the_name_is_tried_where_the_first_takes_no_connection() -> None:
    async with serve_urls({"/": file(DATA)}) as server:
        resolver = names(**{HOST: ["127.0.0.2", LOOPBACK]})
        fetcher = UrlFetcher(config_for(server.port), resolver, judge=trusting("127.0.0.2", LOOPBACK))
        assert await fetcher.fetch(server.url(HOST, "/"), 1 << 20) == DATA


async def test_the_default_ports_are_those_of_the_schemes() -> None:
    seen: list[int] = []

    async def resolver(host: str, port: int) -> list[str]:
        seen.append(port)
        return []

    fetcher = UrlFetcher(config_for(0, media_url_ports="80, 443"), resolver)
    for url in (f"http://{HOST}/", f"https://{HOST}", f"http://{HOST}:443/"):
        await must_refuse(fetcher, url)
    assert seen == [80, 443, 443]


# Refused by what the name stands for


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0",
        "localhost",
        "[::1]",
        "[::127.0.0.1]",
        "[::ffff:127.0.0.1]",
        "[0:0:0:0:0:ffff:7f00:1]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "\uff11\uff12\uff17.\uff10.\uff10.\uff11",  # full-width digits
        "\u246b7.0.0.1",  # a twelve in a circle
    ],
)
async def test_the_operators_own_machine_is_not_reached_however_it_is_spelt(host: str) -> None:
    """With the system's resolver and the real judge, and although the operator's list names every spelling."""
    async with serve_urls({"/": file(DATA)}) as server:
        spellings = "127.0.0.1,127.1,2130706433,0x7f000001,0,::1,::ffff:127.0.0.1,localhost,::127.0.0.1"
        hosts = f"{spellings},64:ff9b::127.0.0.1,2002:7f00:1::"
        fetcher = UrlFetcher(config_for(server.port, media_url_hosts=hosts))
        await must_refuse(fetcher, server.url(host, "/"))
        assert not server.seen
        fetcher.close()


async def test_the_systems_resolver_is_asked_where_there_is_no_other() -> None:
    async with serve_urls({"/": file(DATA)}) as server:
        fetcher = UrlFetcher(config_for(server.port), judge=trusting(LOOPBACK))
        assert await fetcher.fetch(server.url("2130706433", "/"), 1 << 20) == DATA
        fetcher.close()


@pytest.mark.parametrize(
    "answers",
    [
        [],
        [METADATA],
        ["10.0.0.1"],
        ["::1"],
        ["fe80::1%lo"],
        ["not an address"],
        [LOOPBACK, METADATA],
        [METADATA, LOOPBACK],
        [PUBLIC, LOOPBACK, "::ffff:10.0.0.1"],
        [LOOPBACK] * 5 + ["10.0.0.1"],
    ],
)
async def test_one_private_answer_among_those_of_the_name_is_enough_to_refuse_it(answers: list[str]) -> None:
    async with serve_urls({"/": file(DATA)}) as server:
        await must_refuse(fetcher_for(server, names(**{HOST: answers})), server.url(HOST, "/"))
        assert not server.seen


async def test_unknown_hosts_are_refused_alike() -> None:
    async with serve_urls({}) as server:
        await must_refuse(fetcher_for(server), server.url("gone.test", "/"))


async def test_a_name_is_looked_up_once_and_the_judged_address_is_the_connected_one() -> None:
    """DNS rebinding: the second lookup would answer with the metadata service."""
    async with serve_urls({"/": file(DATA)}) as server:
        resolver = names(**{HOST: [[LOOPBACK], [METADATA]]})
        assert await fetcher_for(server, resolver).fetch(server.url(HOST, "/"), 1 << 20) == DATA
        assert resolver.lookups == [HOST]


async def test_a_name_that_turns_private_between_redirects_is_refused() -> None:
    async with serve_urls({"/": redirect("/next"), "/next": file(DATA)}) as server:
        resolver = names(**{HOST: [[LOOPBACK], [METADATA]]})
        await must_refuse(fetcher_for(server, resolver), server.url(HOST, "/"))
        assert [request.path for request in server.seen] == ["/"]


# Refused by what the server does


@pytest.mark.parametrize(
    "location",
    [
        "http://inner.test:{port}/latest/meta-data/",
        "http://169.254.169.254/latest/meta-data/",
        "http://127.0.0.2:{port}/secret",
        "http://[::1]:{port}/secret",
        "http://evil.test:{port}/secret",
        "http://user@other.test:{port}/secret",
        "http://other.test:22/secret",
        "file:///etc/passwd",
        "gopher://other.test:{port}/",
        "//evil.test:{port}/secret",
        "http://[",
        "http://xn--a:{port}/",
        "\\\\evil.test\\secret",
        "/start",
        "",
    ],
)
async def test_redirects_are_judged_like_the_first_url(location: str) -> None:
    async with serve_urls({"/secret": file(DATA)}) as server:
        server.replies["/start"] = redirect(location.replace("{port}", str(server.port)))
        await must_refuse(fetcher_for(server), server.url(HOST, "/start"))
        assert {request.path for request in server.seen} == {"/start"}


async def test_a_fourth_redirect_is_not_followed() -> None:
    async with serve_urls({f"/{n}": redirect(f"/{n + 1}") for n in range(4)} | {"/4": file(DATA)}) as server:
        await must_refuse(fetcher_for(server), server.url(HOST, "/0"))
        assert [request.path for request in server.seen] == ["/0", "/1", "/2", "/3"]


@pytest.mark.parametrize(
    "reply",
    [
        status(204),
        status(206),
        status(304),
        status(401, "WWW-Authenticate: Basic realm=x"),
        status(403),
        status(404),
        status(500),
        status(302),  # without a location
        file(gzip.compress(DATA), "Content-Encoding: gzip"),
        file(DATA, "Content-Encoding: br"),
        raw(b""),
        raw(b"SSH-2.0-OpenSSH_9.6\r\n"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"),
        raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        endless(b"HTTP/1.1 200 OK\r\n", b"X-Header: and so on\r\n"),
        endless(b"HTTP/1.1 200 OK\r\n\r\n", b"a" * 65_536),
        endless(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"a" * 65_536 + b"\r\n"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n"),
        endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01),
    ],
)
async def test_servers_that_do_not_give_the_file_are_refused_alike(reply: Any) -> None:
    async with serve_urls({"/": reply}) as server:
        fetcher = fetcher_for(server, media_url_seconds=2)
        await must_refuse(fetcher, server.url(HOST, "/"), max_bytes=1 << 20)


async def test_a_port_that_takes_no_connection_is_refused_alike() -> None:
    async with serve_urls({}) as server:
        pass
    await must_refuse(fetcher_for(server), server.url(HOST, "/"))


async def test_one_byte_above_the_limit_is_too_many() -> None:
    async with serve_urls({"/": file(DATA)}) as server:
        await must_refuse(fetcher_for(server), server.url(HOST, "/"), len(DATA) - 1)


@pytest.mark.parametrize(
    "reply",
    [
        endless(b"", b"", 0.05),
        endless(b"HTTP/1.1 200 OK\r\nX: ", b"y", 0.05),
        endless(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"y", 0.05),
        endless(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\ny\r\n", 0.05),
    ],
)
async def test_a_server_that_drips_is_left_at_the_deadline_of_the_whole_fetch(reply: Any) -> None:
    async with serve_urls({"/": redirect("/slow"), "/slow": reply}) as server:
        began = time.monotonic()
        await must_refuse(fetcher_for(server, media_url_seconds=1), server.url(HOST, "/"))
        assert 0.9 < time.monotonic() - began < 5


async def test_a_silent_name_server_is_left_at_the_deadline() -> None:
    async def silent(host: str, port: int) -> list[str]:
        return await asyncio.get_running_loop().create_future()

    fetcher = UrlFetcher(config_for(80, media_url_seconds=1), silent)
    await must_refuse(fetcher, f"http://{HOST}/")


async def test_a_fetch_that_is_given_up_closes_its_connection() -> None:
    closed = asyncio.Event()
    began = asyncio.Event()

    async def wait_for_the_end(writer: asyncio.StreamWriter) -> None:
        began.set()
        try:
            while True:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            closed.set()

    async with serve_urls({"/": wait_for_the_end}) as server:
        fetch = asyncio.create_task(fetcher_for(server).fetch(server.url(HOST, "/"), 1 << 20))
        await began.wait()
        fetch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetch
        await asyncio.wait_for(closed.wait(), 5)


async def test_many_fetches_run_a_few_at_a_time_and_all_end() -> None:
    running = most = 0

    async def counted(writer: asyncio.StreamWriter) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        await file(DATA)(writer)

    async with serve_urls({"/": counted}) as server:
        fetcher = fetcher_for(server)
        files = await asyncio.gather(*(fetcher.fetch(server.url(HOST, "/"), 1 << 20) for _ in range(20)))
        assert files == [DATA] * 20
        assert 1 < most <= 8


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    try:
        return make_certificate(tmp_path_factory.mktemp("certificates"), HOST, "*.cdn.test")
    except FileNotFoundError:
        pytest.skip("certificates are made with the openssl command, which is not installed")


Certificates = tuple[ssl.SSLContext, ssl.SSLContext]


def https_fetcher(server: UrlServer, tls: ssl.SSLContext | None) -> UrlFetcher:
    return UrlFetcher(config_for(server.port), names(), judge=trusting(LOOPBACK), tls=tls)


@pytest.mark.parametrize("host", [HOST, "a.cdn.test"])
async def test_over_tls_the_certificate_is_judged_by_the_name_although_the_address_is_connected(
    host: str, certificates: Certificates
) -> None:
    async with serve_urls({"/": file(DATA)}, certificates[0]) as server:
        assert await https_fetcher(server, certificates[1]).fetch(server.url(host, "/"), 1 << 20) == DATA
        assert server.seen[0].headers["host"] == f"{host}:{server.port}"


async def test_a_certificate_of_another_name_is_refused(certificates: Certificates) -> None:
    async with serve_urls({"/": file(DATA)}, certificates[0]) as server:
        await must_refuse(https_fetcher(server, certificates[1]), server.url("other.test", "/"))
        assert not server.seen


async def test_a_certificate_that_nobody_vouches_for_is_refused(certificates: Certificates) -> None:
    async with serve_urls({"/": file(DATA)}, certificates[0]) as server:
        fetcher = https_fetcher(server, None)
        await must_refuse(fetcher, server.url(HOST, "/"))
        assert not server.seen
        fetcher.close()


async def test_a_redirect_from_https_to_http_is_refused(certificates: Certificates) -> None:
    async with serve_urls({"/": file(DATA)}) as plain, serve_urls({}, certificates[0]) as server:
        server.replies["/"] = redirect(plain.url(HOST, "/"))
        config = config_for(0, media_url_ports=f"{plain.port},{server.port}")
        fetcher = UrlFetcher(config, names(), judge=trusting(LOOPBACK), tls=certificates[1])
        assert await fetcher.fetch(plain.url(HOST, "/"), 1 << 20) == DATA
        await must_refuse(fetcher, server.url(HOST, "/"))
        assert len(plain.seen) == 1
