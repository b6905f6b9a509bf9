"""One line per call, with the counts and without the prompt."""

from __future__ import annotations

import io
import json
import logging

import pytest

from fanlight.v1 import server_pb2
from fanlight_engine.errors import InvalidRequestError, Reason
from fanlight_engine.request import FinishReason
from fanlight_server.rpc.access_log import LOGGERS, set_up_logging
from tests.server.conftest import Served
from tests.server.messages import conversation, generate, refusal, rest_of, setup, stream, turn, user
from tests.server.scripted_backend import accepted

PROMPT = "the secret prompt"


@pytest.fixture(autouse=True)
def loggers_as_before():
    """What `set_up_logging` changes is put back."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture
def log_lines(loggers_as_before: None):
    """The log from here on. Reading it takes what has been written since the last time."""
    output = io.StringIO()
    set_up_logging("json", output)

    def read() -> list[dict]:
        lines = [json.loads(line) for line in output.getvalue().splitlines()]
        output.seek(0)
        output.truncate()
        return lines

    return read


async def test_each_call_leaves_one_line(served: Served, log_lines) -> None:
    prompt = conversation(user(PROMPT)).conversation
    await served.inference.Generate(generate("one", conversation=prompt))
    [response async for response in served.inference.GenerateStream(stream("two", conversation=prompt))]
    await served.info.GetServerInfo(server_pb2.GetServerInfoRequest())
    await refusal(served.inference.Generate(generate("three", model="x")))
    lines = log_lines()
    assert [(line["method"].rpartition("/")[2], line["code"]) for line in lines] == [
        ("Generate", "OK"),
        ("GenerateStream", "OK"),
        ("GetServerInfo", "OK"),
        ("Generate", "INVALID_ARGUMENT"),
    ]
    assert [line["request_id"] for line in lines[:2]] == ["one", "two"]
    for line in lines[:2]:
        assert (line["prompt_tokens"], line["image_tokens"], line["completion_tokens"]) == (7, 4, 2)
        assert line["peer"].startswith("ipv4:127.0.0.1")
        assert line["duration_ms"] > 0
    assert [(line.get("reason"), line.get("finish")) for line in lines] == [
        (None, "STOP"),
        (None, "STOP"),
        (None, None),
        ("FIELD_REQUIRED", None),
    ]
    assert "prompt_tokens" not in lines[2]
    assert PROMPT not in json.dumps(lines)


async def test_a_chat_counts_all_its_turns(served: Served, log_lines) -> None:
    call = served.inference.Chat()
    for message in (setup(), turn(PROMPT), turn("more")):
        await call.write(message)
    await call.done_writing()
    await rest_of(call)
    (line,) = log_lines()
    assert (line["prompt_tokens"], line["completion_tokens"]) == (14, 4)


async def test_a_chat_tells_how_its_turns_ended_and_why_some_were_refused(served: Served, log_lines) -> None:
    served.backend.by_hand = True
    call = served.inference.Chat()
    for message in (setup(), turn(PROMPT), turn("more"), turn("again"), turn("broken")):
        await call.write(message)
    await call.done_writing()
    for reason in (FinishReason.LENGTH, FinishReason.STOP, FinishReason.LENGTH):
        run = await served.backend.next_run()
        run.say(accepted())
        run.end(reason)
    (await served.backend.next_run()).fail(InvalidRequestError("prompt", "is no image", Reason.IMAGE_UNREADABLE))
    await rest_of(call)
    (line,) = log_lines()
    assert (line["code"], line["finish"], line["reason"]) == ("OK", "LENGTH,STOP", "IMAGE_UNDECODABLE")


async def test_a_lost_stream_is_logged_as_cancelled(served: Served, log_lines) -> None:
    served.backend.by_hand = True
    call = served.inference.GenerateStream(stream())
    run = await served.backend.next_run()
    run.say(accepted())
    await call.read()
    call.cancel()
    await run.wait_until_freed()
    await served.server.lifecycle.wait_until_idle()
    assert [line["code"] for line in log_lines()] == ["CANCELLED"]


async def test_an_unexpected_exception_is_logged_with_its_traceback_and_id(served: Served, log_lines) -> None:
    served.backend.by_hand = True
    call = served.inference.Generate(generate("boom"))
    (await served.backend.next_run()).fail(ValueError("a bug"))
    await refusal(call)
    error, access = log_lines()
    assert "ValueError: a bug" in error["traceback"]
    assert "boom" in error["message"]
    assert (access["code"], access["request_id"]) == ("INTERNAL", "boom")


async def test_text_lines_cannot_be_forged_by_a_clients_id(served: Served) -> None:
    output = io.StringIO()
    set_up_logging("text", output)
    await served.inference.Generate(generate('x code=INTERNAL "'))
    (line,) = output.getvalue().splitlines()
    assert 'request_id="x code=INTERNAL \\""' in line
    assert " code=OK finish=STOP " in line


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_lines_of_the_engine_are_shown_in_the_same_form(log_format: str) -> None:
    output = io.StringIO()
    set_up_logging(log_format, output)
    logging.getLogger("fanlight_engine.inputs.media.sources.fetch").info(
        "a media URL was not fetched: %s", "no address"
    )
    (line,) = output.getvalue().splitlines()
    assert "fanlight_engine.inputs.media.sources.fetch" in line
    assert "INFO" in line
    assert "a media URL was not fetched: no address" in line
    assert line.startswith("{") == (log_format == "json")
