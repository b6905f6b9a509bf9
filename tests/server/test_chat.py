"""Chat over a socket: what the state table looks like to a client."""

from __future__ import annotations

import grpc

from fanlight.v1 import chat_pb2, events_pb2, generation_pb2, inference_pb2
from fanlight_engine.errors import CoreFailureError, InvalidRequestError, Reason
from fanlight_engine.events import Delta, Token
from fanlight_engine.request import Message, Role, TextPart
from tests.server.chats import begin, prompt_of, read, reason
from tests.server.conftest import Served
from tests.server.messages import interrupt, kinds, refusal, rest_of, setup, turn
from tests.server.scripted_backend import accepted

ANSWERED = ["accepted", "delta", "delta", "finished", "usage"]


async def test_turns_are_answered_in_order_and_half_closing_ends_ok(served: Served) -> None:
    call = await begin(served, turn("one", turn_id="a"), turn("two", turn_id="b"))
    await call.done_writing()
    responses = await rest_of(call)
    assert kinds(responses) == ANSWERED * 2
    assert [response.turn_id for response in responses] == ["a"] * 5 + ["b"] * 5
    sequence = [response.sequence for response in responses]
    assert sequence == sorted(set(sequence))
    assert await call.code() is grpc.StatusCode.OK
    assert "".join(response.delta.text for response in responses) == "Hello world" * 2
    assert not any(response.delta.tokens for response in responses), "ids are kept, but nobody asked to see them"


async def test_an_answer_comes_back_as_history_with_its_ids(served: Served) -> None:
    call = await begin(served, turn("one"), turn("two"))
    await call.done_writing()
    responses = await rest_of(call)
    assert {response.turn_id for response in responses} == {"turn-1", "turn-2"}
    answer = Message(Role.ASSISTANT, (TextPart("Hello world", (100, 101)),))
    assert prompt_of(served)[1:] == (answer, Message(Role.USER, (TextPart("two"),)))


async def test_history_of_the_setup_comes_first(served: Served) -> None:
    call = served.inference.Chat()
    system = generation_pb2.Message(role=generation_pb2.ROLE_SYSTEM, parts=[generation_pb2.Part(text="Be brief.")])
    await call.write(setup(history=[system]))
    await call.write(turn("hi"))
    await call.done_writing()
    assert kinds(await rest_of(call)) == ["ready", *ANSWERED]
    assert [message.role for message in prompt_of(served)] == [Role.SYSTEM, Role.USER]


async def test_each_turn_has_a_seed_of_its_own(served: Served) -> None:
    call = await begin(served, turn("one"), turn("two"))
    await call.done_writing()
    responses = await rest_of(call)
    told = [response.accepted.seed for response in responses if response.WhichOneof("event") == "accepted"]
    assert told == [generation.sampling.seed for generation in served.backend.generations]
    assert len(set(told)) == 2


async def test_anything_but_setup_first_is_refused(served: Served) -> None:
    for first in (turn("hi"), interrupt(), chat_pb2.ChatRequest()):
        call = served.inference.Chat()
        await call.write(first)
        refused = await refusal(call.read())
        assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "CHAT_NOT_SET_UP")


async def test_silence_instead_of_setup_is_refused(hasty: Served) -> None:
    refused = await refusal(hasty.inference.Chat().read())
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "CHAT_NOT_SET_UP")


async def test_a_setup_that_is_wrong_ends_the_chat(served: Served) -> None:
    for wrong, code, field in (
        (setup(model="other"), grpc.StatusCode.NOT_FOUND, "setup.model"),
        (setup(history=[generation_pb2.Message()]), grpc.StatusCode.INVALID_ARGUMENT, "setup.history[0].role"),
    ):
        call = served.inference.Chat()
        await call.write(wrong)
        refused = await refusal(call.read())
        assert (refused.code, refused.fields) == (code, [field])


async def test_refused_messages_are_turn_errors_and_the_chat_lives_on(served: Served) -> None:
    unknown = turn("x", turn_id="unknown")
    unknown.turn.messages[0].MergeFromString(b"\x98\x06\x01")
    empty = chat_pb2.ChatRequest(turn=chat_pb2.ChatTurn(turn_id="empty"))
    call = await begin(served, setup(), empty, turn("x", turn_id="ghost", parent_turn_id="no"), unknown, turn("hi"))
    await call.write(chat_pb2.ChatRequest())
    await call.done_writing()
    responses = await rest_of(call)
    errors = [response for response in responses if response.WhichOneof("event") == "turn_error"]
    told = [
        (response.turn_id, response.turn_error.reason, [wrong.field for wrong in response.turn_error.field_violations])
        for response in errors
    ]
    assert told == [
        ("", reason("CHAT_ALREADY_SET_UP"), []),
        ("empty", reason("FIELD_REQUIRED"), ["turn.messages"]),
        ("ghost", reason("TURN_NOT_FOUND"), ["turn.parent_turn_id"]),
        ("unknown", reason("UNKNOWN_FIELD"), ["turn.messages[0]"]),
        ("", reason("FIELD_REQUIRED"), ["kind"]),
    ]
    assert [kind for kind in kinds(responses) if kind != "turn_error"] == ANSWERED
    assert await call.code() is grpc.StatusCode.OK


async def test_broken_bytes_end_the_chat(served: Served) -> None:
    served.backend.by_hand = True
    call = served.channel.stream_stream("/fanlight.v1.InferenceService/Chat")()
    for message in (setup(), turn("hi")):
        await call.write(message.SerializeToString())
    await call.read()
    run = await served.backend.next_run()
    await call.write(b"\xff\xff")
    refused = await refusal(rest_of(call))
    assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_MESSAGE")
    await run.wait_until_freed()


async def test_an_interrupt_keeps_the_partial_answer(served: Served) -> None:
    served.backend.by_hand = True
    call = await begin(served, turn("tell me"))
    run = await served.backend.next_run()
    run.say(accepted(), Delta(0, "Once upon", (Token(7), Token(8))))
    assert kinds(await read(call, 2)) == ["accepted", "delta"]
    await call.write(interrupt())
    ended = await read(call, 2)
    assert kinds(ended) == ["finished", "usage"]
    assert ended[0].finished.reason == events_pb2.FINISH_REASON_INTERRUPTED
    served.backend.by_hand = False
    await call.write(turn("go on"))
    await call.done_writing()
    assert kinds(await rest_of(call)) == ANSWERED
    assert prompt_of(served)[1] == Message(Role.ASSISTANT, (TextPart("Once upon", (7, 8)),))


async def test_an_interrupted_waiting_turn_ends_at_once(served: Served) -> None:
    served.backend.by_hand = True
    call = await begin(served, turn("runs", turn_id="a"), turn("waits", turn_id="b"), interrupt("b"))
    run = await served.backend.next_run()
    ended = await read(call, 2)
    assert kinds(ended) == ["finished", "usage"]
    assert [response.turn_id for response in ended] == ["b", "b"]
    run.say(accepted())
    run.end()
    await call.done_writing()
    assert kinds(await rest_of(call)) == ["accepted", "finished", "usage"]


async def test_an_idle_interrupt_is_ignored(served: Served) -> None:
    call = await begin(served, interrupt(), interrupt("nobody"), turn("hi"))
    await call.done_writing()
    assert kinds(await rest_of(call)) == ANSWERED


async def test_a_failed_turn_is_a_turn_error_and_the_head_is_as_before(served: Served) -> None:
    call = await begin(served, turn("one", turn_id="a"))
    await read(call, len(ANSWERED))
    served.backend.by_hand = True
    await call.write(turn("bad", turn_id="b"))
    (await served.backend.next_run()).fail(InvalidRequestError("prompt", "is too long", Reason.PROMPT_TOO_LONG))
    (failed,) = await read(call, 1)
    assert (failed.turn_id, failed.turn_error.code) == ("b", 3)
    assert failed.turn_error.reason == reason("PROMPT_TOO_LONG")
    assert failed.turn_error.field_violations[0].field == "turn.messages"
    served.backend.by_hand = False
    await call.write(turn("two"))
    await call.done_writing()
    assert kinds(await rest_of(call)) == ANSWERED
    assert [part.text for message in prompt_of(served) for part in message.parts if isinstance(part, TextPart)] == [
        "one",
        "Hello world",
        "two",
    ]


async def test_a_turn_error_tells_no_exception(served: Served) -> None:
    served.backend.by_hand = True
    call = await begin(served, turn("a"), turn("b", parent_turn_id=""))
    for error in (CoreFailureError("in /secret/a.py"), ValueError("secret b")):
        (await served.backend.next_run()).fail(error)
        (failed,) = await read(call, 1)
        assert (failed.turn_error.code, failed.turn_error.reason) == (13, reason("INTERNAL"))
        assert "secret" not in str(failed)
    await call.done_writing()
    assert await rest_of(call) == []


async def test_a_turn_can_be_cancelled_by_its_request_id(served: Served) -> None:
    served.backend.by_hand = True
    call = await begin(served, turn("hi"))
    (await served.backend.next_run()).say(accepted())
    (started,) = await read(call, 1)
    request = inference_pb2.CancelRequest(request_id=started.accepted.request_id)
    assert (await served.inference.Cancel(request)).outcome == inference_pb2.CANCEL_OUTCOME_CANCELLED
    await call.done_writing()
    ended = await rest_of(call)
    assert kinds(ended) == ["finished", "usage"]
    assert ended[0].finished.reason == events_pb2.FINISH_REASON_CANCELLED


async def test_a_lost_chat_frees_its_turn(served: Served) -> None:
    served.backend.by_hand = True
    call = await begin(served, turn("hi"))
    run = await served.backend.next_run()
    run.say(accepted())
    await call.read()
    call.cancel()
    await run.wait_until_freed()


async def test_a_silent_chat_shows_signs_of_life(hasty: Served) -> None:
    call = await begin(hasty)
    assert kinds(await read(call, 2)) == ["progress", "progress"]
    await call.done_writing()
    await rest_of(call)


async def test_options_of_a_turn_decide_what_is_sent(served: Served) -> None:
    output = generation_pb2.OutputOptions(text=False, token_ids=True)
    call = await begin(served, turn("hi", config=generation_pb2.GenerationConfig(output=output)))
    await call.done_writing()
    deltas = [response.delta for response in await rest_of(call) if response.WhichOneof("event") == "delta"]
    assert [(delta.text, [token.id for token in delta.tokens]) for delta in deltas] == [("", [100]), ("", [101])]
