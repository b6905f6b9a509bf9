"""A `fanlight serve` in a process of its own, and one client that streams answers from it and takes the times.

Knows the contract; knows nothing of what is measured.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio

from benchmarks.http2_reader import read_streams
from fanlight.v1 import generation_pb2, inference_pb2, inference_pb2_grpc, media_pb2

_STREAM = "/fanlight.v1.InferenceService/GenerateStream"
_SECONDS_TO_STOP = 20.0
_LINES_SHOWN = 12


class ServerError(Exception):
    """The server did not start; the text shows the end of what it said."""


@dataclass(frozen=True, slots=True)
class Answer:
    """When tokens of one answer came, on time.perf_counter(): one time for each token, those of one message equal."""

    sent: float
    times: tuple[float, ...]
    refused: str = ""
    """Name of the status that ended it; empty for an answer that is whole."""

    @property
    def first_token_seconds(self) -> float:
        """From sending the request to the first token."""
        return self.times[0] - self.sent

    @property
    def token_seconds(self) -> float:
        """Mean time between two tokens; 0 where there is one."""
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1) if len(self.times) > 1 else 0.0


@contextmanager
def running_server(*arguments: str) -> Iterator[str]:
    """A server on a free port; gives its address and stops it at the end. Raises ServerError."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
        process = subprocess.Popen(
            [sys.executable, "-m", "fanlight", "serve", *arguments, "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=printed,
            text=True,
        )
        try:
            yield _address_of(process, printed)
        finally:
            process.terminate()
            try:
                process.communicate(timeout=_SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def _address_of(process: subprocess.Popen[str], printed: Any) -> str:
    assert process.stdout is not None, "a pipe"
    for line in process.stdout:
        if line.startswith("listening on "):
            return line.split()[2].rstrip(";")
    printed.seek(0)
    last = "\n".join(printed.read().splitlines()[-_LINES_SHOWN:])
    raise ServerError(f"the server ended with {process.wait()} before it listened:\n{last}")


def generation_of(
    new_tokens: int, prompt_ids: Sequence[int] = (), question: str = "", picture: bytes = b""
) -> generation_pb2.Generation:
    """Greedy and to the last of `new_tokens`; the prompt is ids, or a question that may be about a picture's file."""
    made = generation_pb2.Generation()
    if prompt_ids:
        made.tokens.ids.extend(prompt_ids)
    else:
        message = made.conversation.messages.add(role=generation_pb2.ROLE_USER)
        if picture:
            message.parts.add(image=media_pb2.Image(data=picture))
        message.parts.add(text=question)
    sampling = made.config.sampling
    sampling.max_new_tokens, sampling.temperature, sampling.ignore_eos = new_tokens, 0.0, True
    made.config.output.text = made.config.output.token_ids = True
    return made


async def stream_answer(stub: inference_pb2_grpc.InferenceServiceStub, wanted: generation_pb2.Generation) -> Answer:
    """Send a request and read its answer to the end; a refusal is part of what is measured."""
    sent = time.perf_counter()
    times: list[float] = []
    call: Any = stub.GenerateStream(inference_pb2.GenerateStreamRequest(generation=wanted))
    try:
        async for response in call:
            if response.HasField("delta"):
                times.extend([time.perf_counter()] * len(response.delta.tokens))
    except grpc.aio.AioRpcError as error:
        return Answer(sent, tuple(times), error.code().name)
    return Answer(sent, tuple(times))


def tokens_and_seconds(address: str, wanted: Sequence[generation_pb2.Generation]) -> tuple[int, float]:
    """Send all requests at once over one connection; tokens of all answers, and seconds until the last byte came.

    Read by the lightest client there is, so that it takes little from the server's cores. Raises ReadError.
    """
    answers, seconds = read_streams(address, _STREAM, _requests(wanted))
    return sum(map(_tokens_of, answers)), seconds


async def tokens_and_seconds_of_grpc(address: str, wanted: Sequence[generation_pb2.Generation]) -> tuple[int, float]:
    """The same with grpc.aio as the client, which costs about as much per message as the server does.

    Messages are looked into afterwards. Raises grpc.aio.AioRpcError where the server refuses one.
    """
    async with grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        open_stream: Any = channel.unary_stream(_STREAM, request_serializer=None, response_deserializer=None)
        begun = time.perf_counter()
        streams = await asyncio.gather(*(_read(open_stream(one)) for one in _requests(wanted)))
        seconds = time.perf_counter() - begun
    return sum(map(_tokens_of, streams)), seconds


def _requests(wanted: Sequence[generation_pb2.Generation]) -> list[bytes]:
    return [inference_pb2.GenerateStreamRequest(generation=one).SerializeToString() for one in wanted]


async def _read(call: Any) -> list[bytes]:
    return [message async for message in call]


def _tokens_of(stream: list[bytes]) -> int:
    return sum(len(inference_pb2.GenerateStreamResponse.FromString(one).delta.tokens) for one in stream)
