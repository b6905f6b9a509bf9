"""AdminService: its port is its own, answers from the first moment on, and tells what was decided while loading."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from fanlight.v1 import admin_pb2, admin_pb2_grpc
from fanlight_engine.checkpoints.description import CheckpointDescription
from fanlight_engine.core.memory_use import MemoryUse
from fanlight_engine.settings import Setting
from fanlight_server.admin_server import SERVICE, AdminServer
from fanlight_server.config_report import ConfigReport
from fanlight_server.server import PortTakenError
from tests.server.conftest import Served, start_server, stop_server
from tests.server.messages import refusal
from tests.server.scripted_backend import CONTEXT_LENGTH, ScriptedBackend, as_any

CHECKPOINT = CheckpointDescription(
    name="scripted",
    path="models/scripted",
    kind="vision and text",
    family="scripted_vl",
    decoder="scripted_text",
    tower="scripted_vision",
    modalities=("text", "image"),
    context_length=4096,
    vocabulary_size=1000,
    dtype="bfloat16",
    quantization="",
    fingerprint="sha256:" + "ab" * 32,
    has_chat_template=True,
    tokenizer_class="ScriptedTokenizer",
    unapplied_settings=("max_new_tokens=128",),
)
SETTINGS = (
    Setting("page_size", 32, "flag", (("file", 64), ("default", 16))),
    Setting("prefix_cache", False, "environment", (("default", True),)),
    Setting("context_length", 4096, "checkpoint", (("default", 0),)),
    Setting("media_url_hosts", "", "default"),
    Setting("drain_seconds", 1.5, "file"),
    Setting("dtype", "auto", "default"),
    Setting("kv_cache_bytes", 4000, "file", (("default", 5000),)),
    Setting("attention", "auto", "default"),
)
REPORT = ConfigReport(CHECKPOINT, SETTINGS)


@dataclass
class Administered:
    """A server with AdminService beside it."""

    served: Served
    admin: AdminServer
    channel: grpc.aio.Channel

    async def config(self) -> admin_pb2.GetConfigResponse:
        return await admin_pb2_grpc.AdminServiceStub(self.channel).GetConfig(admin_pb2.GetConfigRequest())


@pytest_asyncio.fixture
async def administered() -> AsyncIterator[Administered]:
    """Bound and accepting connections, but not loaded."""
    served = await start_server(ScriptedBackend())
    admin = AdminServer("127.0.0.1", REPORT, served.backend, served.server.lifecycle)
    admin.bind(0, 0)
    await admin.start()
    async with grpc.aio.insecure_channel(admin.address) as channel:
        yield Administered(served, admin, channel)
    await admin.stop()
    await stop_server(served)


def named(response: admin_pb2.GetConfigResponse, name: str) -> admin_pb2.Setting:
    return next(setting for setting in response.settings if setting.name == name)


async def test_the_checkpoint_is_described(administered: Administered) -> None:
    found = (await administered.config()).checkpoint
    for name in CheckpointDescription.__slots__:
        if name != "modalities":
            told = getattr(found, name)
            assert (tuple(told) if name == "unapplied_settings" else told) == getattr(CHECKPOINT, name)
    assert [admin_pb2.DESCRIPTOR.pool.FindEnumTypeByName("fanlight.v1.Modality").values_by_number[one].name
            for one in found.modalities] == ["MODALITY_TEXT", "MODALITY_IMAGE"]  # fmt: skip


async def test_every_setting_is_told_with_its_source_and_what_it_overrode(administered: Administered) -> None:
    response = await administered.config()
    assert [one.name for one in response.settings] == [one.name for one in SETTINGS]
    size = named(response, "page_size")
    assert (size.value, size.json, size.source) == ("32", "32", admin_pb2.SETTING_SOURCE_FLAG)
    assert [(one.source, one.value, one.json) for one in size.overrode] == [
        (admin_pb2.SETTING_SOURCE_FILE, "64", "64"),
        (admin_pb2.SETTING_SOURCE_DEFAULT, "16", "16"),
    ]
    cache, hosts = named(response, "prefix_cache"), named(response, "media_url_hosts")
    assert (cache.value, cache.json, cache.source) == ("false", "false", admin_pb2.SETTING_SOURCE_ENVIRONMENT)
    assert (hosts.value, hosts.json) == ("", '""')
    assert [json.loads(one.json) for one in response.settings] == [one.value for one in SETTINGS]


async def test_what_was_decided_while_loading_is_told_from_then_on(administered: Administered) -> None:
    before = await administered.config()
    assert not before.is_loaded
    assert named(before, "context_length").source == admin_pb2.SETTING_SOURCE_CHECKPOINT
    await administered.served.server.load()
    after = await administered.config()
    assert after.is_loaded
    context = named(after, "context_length")
    assert (context.json, context.source) == (str(CONTEXT_LENGTH), admin_pb2.SETTING_SOURCE_MEMORY)
    assert [(one.source, one.json) for one in context.overrode] == [
        (admin_pb2.SETTING_SOURCE_CHECKPOINT, "4096"),
        (admin_pb2.SETTING_SOURCE_DEFAULT, "0"),
    ]
    number_type = named(after, "dtype")
    assert (number_type.value, number_type.source) == ("bfloat16", admin_pb2.SETTING_SOURCE_CHECKPOINT)
    administered.served.server.lifecycle.mark_draining(1.0)
    assert (await administered.config()).is_loaded, "also while draining"


@pytest.mark.parametrize(
    ("dtype", "source"), [("bfloat16", "checkpoint"), ("float32", "device"), ("", "default")], ids=repr
)
def test_the_number_type_is_the_checkpoints_or_follows_from_the_device(dtype: str, source: str) -> None:
    facts = replace(ScriptedBackend().client.facts, dtype=dtype)
    (found,) = [one for one in REPORT.once_loaded(facts).settings if one.name == "dtype"]
    assert (found.value, found.source) == (dtype or "auto", source)


@pytest.mark.parametrize(("attention", "source"), [("triton", "device"), ("", "default")], ids=repr)
def test_the_attention_backend_that_was_chosen_is_told(attention: str, source: str) -> None:
    facts = replace(ScriptedBackend().client.facts, attention=attention)
    (found,) = [one for one in REPORT.once_loaded(facts).settings if one.name == "attention"]
    assert (found.value, found.source) == (attention or "auto", source)


def test_the_bytes_that_the_kv_cache_took_are_told() -> None:
    facts = replace(ScriptedBackend().client.facts, memory=MemoryUse(key_value_bytes=1234))
    (found,) = [one for one in REPORT.once_loaded(facts).settings if one.name == "kv_cache_bytes"]
    assert found == Setting("kv_cache_bytes", 1234, "memory", (("file", 4000), ("default", 5000)))


async def test_memory_is_told_by_part_once_it_is_known(administered: Administered) -> None:
    client = administered.served.backend.client
    client.facts = replace(client.facts, memory=MemoryUse(decoder_bytes=1000, key_value_bytes=20))
    assert not (await administered.config()).memory
    await administered.served.server.load()
    assert {one.part: one.bytes for one in (await administered.config()).memory} == {"decoder": 1000, "KV cache": 20}


async def test_nothing_of_it_is_on_the_public_port(administered: Administered) -> None:
    stub = admin_pb2_grpc.AdminServiceStub(administered.served.channel)
    assert (await refusal(stub.GetConfig(admin_pb2.GetConfigRequest()))).code is grpc.StatusCode.UNIMPLEMENTED
    assert SERVICE not in await services_at(administered.served.channel)


async def test_reflection_tells_of_it_alone(administered: Administered) -> None:
    assert await services_at(administered.channel) == {SERVICE, "grpc.reflection.v1alpha.ServerReflection"}


async def test_a_field_that_it_does_not_know_is_refused_as_everywhere(administered: Administered) -> None:
    call = administered.channel.unary_unary(f"/{SERVICE}/GetConfig")
    assert (await refusal(call(b"\x08\x01"))).reason == "UNKNOWN_FIELD"


async def services_at(channel: grpc.aio.Channel) -> set[str]:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(as_any(channel))
    requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    (listed,) = [response async for response in stub.ServerReflectionInfo(requests)]
    return {service.name for service in listed.list_services_response.service}


async def bound(port: int, public_port: int) -> int:
    """The port that it takes; free again afterwards."""
    served = await start_server(ScriptedBackend())
    admin = AdminServer("127.0.0.1", REPORT, served.backend, served.server.lifecycle)
    try:
        taken = admin.bind(port, public_port)
        await admin.start()
        return taken
    finally:
        await admin.stop()
        await stop_server(served)


def two_free_ports() -> int:
    """A port that is free now, as the one after it is."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = first.getsockname()[1]
            try:
                with socket.create_server(("127.0.0.1", port + 1)):
                    return port
            except (OSError, OverflowError):
                continue


async def test_by_default_it_is_on_the_next_port_or_on_any_where_that_is_taken() -> None:
    public = two_free_ports()
    assert await bound(0, public) == public + 1
    with socket.create_server(("127.0.0.1", public + 1)):
        assert await bound(0, public) not in (0, public, public + 1)
    assert await bound(0, 65_535) not in (0, 65_535)


async def test_a_port_that_was_asked_for_and_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTakenError, match=f"{port}: it is in use.*another --admin-port, or --no-admin"):
            await bound(port, 0)
