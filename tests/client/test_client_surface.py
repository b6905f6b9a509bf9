"""The public surface: what can be imported, that both clients agree, that the contract and the client's words agree."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor

import fanlight
from fanlight import requests
from fanlight.channel import channel_options
from fanlight.v1 import chat_pb2, generation_pb2, inference_pb2, inference_pb2_grpc, media_service_pb2, model_pb2

DISTRIBUTION = Path(fanlight.__file__).parent.parent
REQUIRED_SCALARS = {
    "fanlight.v1.CancelRequest.request_id",
    "fanlight.v1.DeleteMediaRequest.digest",
    "fanlight.v1.DownloadMediaRequest.digest",
    "fanlight.v1.Embeddings.model_fingerprint",
    "fanlight.v1.Grid.h",
    "fanlight.v1.Grid.t",
    "fanlight.v1.Grid.w",
    "fanlight.v1.Message.role",
    "fanlight.v1.NamedTensor.name",
    "fanlight.v1.Size.height",
    "fanlight.v1.Size.width",
    "fanlight.v1.Tensor.dtype",
    "fanlight.v1.TensorFile.digest",
    "fanlight.v1.TensorFile.name",
    "fanlight.v1.TokenizeRequest.text",
    "fanlight.v1.UploadMediaRequest.data",
}


def test_everything_in_all_exists_and_nothing_else_is_public() -> None:
    assert len(fanlight.__all__) == len(set(fanlight.__all__))
    modules = {name for name, value in vars(fanlight).items() if inspect.ismodule(value)}
    public = {name for name in vars(fanlight) if not name.startswith("_")} - modules
    assert public == set(fanlight.__all__)


def test_both_clients_have_the_same_methods_with_the_same_arguments() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(each).parameters) for name, each in found if not name.startswith("_")}

    assert methods(fanlight.Client) == methods(fanlight.AsyncClient)
    assert methods(fanlight.Stream) == methods(fanlight.AsyncStream)
    assert methods(fanlight.Chat) == methods(fanlight.AsyncChat)
    assert methods(fanlight.Turn) == methods(fanlight.AsyncTurn)


def test_options_are_those_of_the_contract() -> None:
    assert set(requests.Options.__annotations__) == requests.SAMPLING_OPTIONS | requests.OUTPUT_OPTIONS


def test_every_error_of_the_tree_is_drawn_in_its_docstring() -> None:
    import fanlight.errors as errors

    drawn = re.findall(r"(?:[├└]── |^    )([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE)
    defined = [
        name
        for name, each in vars(errors).items()
        if inspect.isclass(each) and issubclass(each, fanlight.FanlightError)
    ]
    assert sorted(drawn) == sorted(defined)
    assert set(defined) <= set(fanlight.__all__)


def test_an_unset_scalar_of_a_request_can_be_told_from_zero() -> None:
    for field in request_fields():
        scalar = field.message_type is None and field.default_value != []
        assert not scalar or field.has_presence or field.full_name in REQUIRED_SCALARS, field.full_name


def request_fields() -> Iterator[FieldDescriptor]:
    roots = [
        inference_pb2.GenerateRequest,
        inference_pb2.GenerateStreamRequest,
        inference_pb2.CancelRequest,
        chat_pb2.ChatRequest,
        model_pb2.GetModelRequest,
        model_pb2.CountTokensRequest,
        model_pb2.TokenizeRequest,
        model_pb2.DetokenizeRequest,
        media_service_pb2.UploadMediaRequest,
        media_service_pb2.BatchGetMediaRequest,
        media_service_pb2.DeleteMediaRequest,
        media_service_pb2.DownloadMediaRequest,
        media_service_pb2.EncodeImagesRequest,
    ]
    waiting: list[Descriptor] = [root.DESCRIPTOR for root in roots]
    seen: set[str] = set()
    while waiting:
        message = waiting.pop()
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        for field in message.fields:
            yield field
            if field.message_type is not None:
                waiting.append(field.message_type)
    assert generation_pb2.Sampling.DESCRIPTOR.full_name in seen


def test_importing_the_client_imports_no_array_or_image_library() -> None:
    program = "import sys, fanlight.cli; print(sorted({'torch', 'numpy', 'PIL', 'safetensors'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"[]\n"


def test_version_floors_are_the_versions_of_the_generator() -> None:
    generated = Path(generation_pb2.__file__).read_text(encoding="utf-8")
    protobuf = re.search(r"# Protobuf Python Version: ([\d.]+)", generated)
    stubs = Path(inference_pb2_grpc.__file__).read_text(encoding="utf-8")
    grpcio = re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", stubs)
    assert protobuf
    assert grpcio
    settings = tomllib.loads((DISTRIBUTION / "pyproject.toml").read_text(encoding="utf-8"))
    assert {f"grpcio>={grpcio[1]}", f"protobuf>={protobuf[1]}"} <= set(settings["project"]["dependencies"])


def test_grpc_knows_every_channel_option() -> None:
    """grpc ignores misspelt options silently; the names that it knows are in its library."""
    library = next((Path(grpc.__file__).parent / "_cython").glob("cygrpc*")).read_bytes()
    for key, _ in channel_options():
        assert key.encode() in library, key


def test_the_distribution_is_typed_and_brings_the_chat_command() -> None:
    assert (DISTRIBUTION / "fanlight/py.typed").exists()
    assert "chat" in {point.name for point in entry_points(group="fanlight.commands")}
