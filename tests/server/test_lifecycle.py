"""Loading, health, reflection, draining: the server's life as a client sees it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from fanlight.v1 import model_pb2, server_pb2
from fanlight_engine.errors import CheckpointError
from fanlight_server.addresses import is_loopback, why_not_free
from fanlight_server.server import SERVICES, FanlightServer, PortTakenError, ServerSettings
from tests.server.conftest import Served, start_server, stop_server
from tests.server.messages import generate, kinds, refusal, rest_of, setup, stream, turn
from tests.server.scripted_backend import WAIT_SECONDS, ScriptedBackend, accepted, as_any

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@pytest_asyncio.fixture
async def loading() -> AsyncIterator[Served]:
    backend = ScriptedBackend()
    backend.may_start.clear()
    one = await start_server(backend)
    yield one
    await stop_server(one)


async def status(served: Served, service: str) -> int:
    return (await served.health.Check(health_pb2.HealthCheckRequest(service=service))).status


def watch(served: Served, service: str):
    return served.health.Watch(health_pb2.HealthCheckRequest(service=service))


async def test_while_loading_it_is_live_but_not_ready(loading: Served) -> None:
    assert await status(loading, "live") == SERVING
    assert [await status(loading, name) for name in ("", *SERVICES)] == [NOT_SERVING] * (1 + len(SERVICES))
    for call in (loading.inference.Generate(generate()), loading.models.GetModel(model_pb2.GetModelRequest())):
        refused = await refusal(call)
        assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "ENGINE_UNAVAILABLE")
        assert refused.retry_seconds == 1.0
    info = await loading.info.GetServerInfo(server_pb2.GetServerInfoRequest())
    assert list(info.models) == ["scripted"]


async def test_it_is_ready_once_the_engine_answered_a_probe(loading: Served) -> None:
    loading.backend.by_hand = True
    watching = watch(loading, "")
    assert (await watching.read()).status == NOT_SERVING
    load = asyncio.create_task(loading.server.load())
    loading.backend.may_start.set()
    probe = await loading.backend.next_run()
    assert await status(loading, "") == NOT_SERVING
    probe.say(accepted())
    probe.end()
    await load
    assert (await watching.read()).status == SERVING
    watching.cancel()


async def test_it_does_not_become_ready_where_a_probe_of_its_media_fails(loading: Served) -> None:
    loading.backend.misfit = CheckpointError("a picture of 24 x 20 pixels takes 4 positions")
    loading.backend.may_start.set()
    with pytest.raises(CheckpointError, match="24 x 20"):
        await loading.server.load()
    assert await status(loading, "") == NOT_SERVING


async def test_health_says_not_serving_once_the_core_has_died(served: Served) -> None:
    watching = watch(served, "")
    assert (await watching.read()).status == SERVING
    served.backend.core_died.set()
    assert (await watching.read()).status == NOT_SERVING
    watching.cancel()


async def test_watch_tells_every_change_of_every_name(served: Served) -> None:
    ready, live, nobody = (watch(served, name) for name in (SERVICES[0], "live", "nobody"))
    assert [(await one.read()).status for one in (ready, live, nobody)] == [SERVING, SERVING, SERVICE_UNKNOWN]
    served.server.health.set_ready(False)
    assert (await ready.read()).status == NOT_SERVING
    served.server.health.set_ready(True)
    assert (await ready.read()).status == SERVING
    assert await status(served, "live") == SERVING
    for one in (ready, live, nobody):
        one.cancel()


async def test_check_of_an_unknown_service_is_not_found(served: Served) -> None:
    assert (await refusal(status(served, "nobody"))).code is grpc.StatusCode.NOT_FOUND


async def test_reflection_lists_and_describes_the_services(served: Served) -> None:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(as_any(served.channel))
    symbol = "fanlight.v1.InferenceService"
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol),
    ]
    listed, described = [response async for response in stub.ServerReflectionInfo(iter(requests))]
    names = {service.name for service in listed.list_services_response.service}
    assert names >= {*SERVICES, "grpc.health.v1.Health"}
    assert described.file_descriptor_response.file_descriptor_proto


async def test_a_drain_lets_open_streams_finish_and_refuses_new_ones(served: Served) -> None:
    served.backend.by_hand = True
    calls = [served.inference.GenerateStream(stream()) for _ in range(5)]
    runs = [await served.backend.next_run() for _ in calls]
    for run in runs:
        run.say(accepted())
    watching = watch(served, "")
    assert (await watching.read()).status == SERVING
    drain = asyncio.create_task(served.server.drain(hurry=asyncio.Event()))
    assert (await watching.read()).status == NOT_SERVING
    assert await status(served, "live") == SERVING
    refused = await refusal(served.inference.Generate(generate()))
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert refused.retry_seconds == 1.0
    assert not drain.done()
    for run in runs:
        run.end()
    for call in calls:
        assert kinds([response async for response in call]) == ["accepted", "finished", "usage"]
    await asyncio.wait_for(drain, WAIT_SECONDS)
    await asyncio.wait_for(served.server.stop(), WAIT_SECONDS)
    assert (await refusal(watching.read())).code is grpc.StatusCode.UNAVAILABLE, "an open watch holds nothing up"
    assert served.backend.stopped


async def test_a_second_signal_stops_at_once(served: Served) -> None:
    served.backend.by_hand = True
    call = served.inference.GenerateStream(stream())
    run = await served.backend.next_run()
    run.say(accepted())
    await call.read()
    hurry = asyncio.Event()
    hurry.set()
    await asyncio.wait_for(served.server.drain(hurry), 1.0)
    await asyncio.wait_for(served.server.stop(), WAIT_SECONDS)
    refused = await refusal(call.read())
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    await run.wait_until_freed()


async def test_a_drain_is_over_when_its_time_is_up() -> None:
    backend = ScriptedBackend()
    backend.by_hand = True
    served = await start_server(backend, drain_seconds=0.1)
    served.server.lifecycle.mark_serving()
    call = served.inference.GenerateStream(stream())
    run = await backend.next_run()
    told = asyncio.ensure_future(refusal(call.read()))
    await asyncio.wait_for(served.server.drain(hurry=asyncio.Event()), WAIT_SECONDS)
    await served.server.stop()
    await run.wait_until_freed()
    assert (await told).code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    await stop_server(served)


async def test_a_chat_is_told_that_the_server_goes_away(served: Served) -> None:
    served.backend.by_hand = True
    call = served.inference.Chat()
    for message in (setup(), turn("runs", turn_id="a"), turn("waits", turn_id="b"), setup()):
        await call.write(message)
    assert kinds([await call.read()]) == ["ready"]
    assert kinds([await call.read()]) == ["turn_error"], "the second setup is refused, so what came before it was read"
    run = await served.backend.next_run()
    drain = asyncio.create_task(served.server.drain(hurry=asyncio.Event()))
    leaving = await call.read()
    assert kinds([leaving]) == ["going_away"]
    assert 0 < leaving.going_away.time_left.ToTimedelta().total_seconds() <= 5
    await call.write(turn("too late", turn_id="c"))
    late = await call.read()
    assert (late.turn_id, late.turn_error.code) == ("c", 14)
    served.backend.by_hand = False
    run.say(accepted())
    run.end()
    told = [await call.read() for _ in range(8)]
    assert [(response.turn_id, kind) for response, kind in zip(told, kinds(told), strict=True)] == [
        *(("a", kind) for kind in ("accepted", "finished", "usage")),
        *(("b", kind) for kind in ("accepted", "delta", "delta", "finished", "usage")),
    ]
    assert (await refusal(call.read())).code is grpc.StatusCode.UNAVAILABLE
    await asyncio.wait_for(drain, WAIT_SECONDS)


async def test_idle_and_silent_chats_end_at_once_when_the_server_drains(served: Served) -> None:
    idle, silent = served.inference.Chat(), served.inference.Chat()
    await idle.write(setup())
    await idle.read()
    await silent.wait_for_connection()
    await served.info.GetServerInfo(server_pb2.GetServerInfoRequest())  # came later: the silent chat has been seen
    assert served.server.lifecycle.work_count == 2
    await asyncio.wait_for(served.server.drain(hurry=asyncio.Event()), 2.0)
    assert kinds([await idle.read()]) == ["going_away"]
    for call in (idle, silent):
        assert (await refusal(rest_of(call))).code is grpc.StatusCode.UNAVAILABLE


async def test_a_taken_port_fails_before_anything_is_loaded(served: Served) -> None:
    backend = ScriptedBackend()
    second = FanlightServer(backend, ServerSettings(port=served.server.port))
    with pytest.raises(PortTakenError, match=str(served.server.port)):
        second.bind()
    await second.stop()


def test_a_port_is_free_until_somebody_listens_on_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert why_not_free("127.0.0.1", port) == "Address already in use"
    assert why_not_free("127.0.0.1", port) is None
    assert why_not_free("127.0.0.1", 0) is None
    assert why_not_free("192.0.2.1", 0) == "Cannot assign requested address"


def test_only_this_machine_reaches_loopback() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""))
