"""Generate and GenerateStream over a socket: what arrives, in which order, and how it ends when it is stopped."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import pytest

from fanlight.v1 import events_pb2, generation_pb2, inference_pb2, media_pb2
from fanlight_engine.errors import CoreFailureError, EngineStoppedError, InvalidRequestError, OverloadedError, Reason
from fanlight_engine.events import Delta, EncoderUse, MediaUsage, Progress, Token, Usage
from fanlight_engine.request import Conversation, ImagePart, Message, Modality, RawPrompt, Role, TextPart, TokenPrompt
from tests.server.conftest import Served
from tests.server.messages import conversation, generate, kinds, refusal, rest_of, stream, user
from tests.server.scripted_backend import accepted, answer_events

CANCELLED = inference_pb2.CANCEL_OUTCOME_CANCELLED
FINISHED = inference_pb2.CANCEL_OUTCOME_FINISHED
UNKNOWN = inference_pb2.CANCEL_OUTCOME_UNKNOWN


async def cancel(served: Served, request_id: str) -> int:
    response = await served.inference.Cancel(inference_pb2.CancelRequest(request_id=request_id))
    return response.outcome


async def test_a_stream_is_accepted_delta_finished_usage_with_rising_sequence(served: Served) -> None:
    call = served.inference.GenerateStream(stream("mine", conversation=conversation().conversation))
    responses = [response async for response in call]
    assert kinds(responses) == ["accepted", "delta", "delta", "finished", "usage"]
    sequence = [response.sequence for response in responses]
    assert sequence == sorted(set(sequence))
    assert responses[0].accepted.request_id == "mine"
    assert responses[0].accepted.prompt_tokens == 7
    assert "".join(response.delta.text for response in responses) == "Hello world"
    assert not any(response.delta.tokens for response in responses), "nobody asked for tokens"
    assert responses[3].finished.reason == events_pb2.FINISH_REASON_STOP
    usage = responses[-1].usage
    assert (usage.image_tokens, usage.cached_tokens, usage.completion_tokens) == (4, 2, 2)
    assert usage.timings.queue.ToTimedelta().total_seconds() == 0.25
    assert not usage.timings.HasField("prefill"), "a stage that did not happen is not set"
    assert dict(await call.trailing_metadata())["fanlight-request-id"] == "mine"


async def test_a_whole_answer_is_the_stream_joined(served: Served) -> None:
    options = generation_pb2.OutputOptions(token_ids=True, logprobs=True)
    request = generate(conversation=conversation().conversation, config=generation_pb2.GenerationConfig(output=options))
    response = await served.inference.Generate(request)
    (answer,) = response.answers
    assert answer.text == "Hello world"
    assert [(token.id, token.logprob) for token in answer.tokens] == [(100, -0.5), (101, -0.5)]
    assert answer.finished.reason == events_pb2.FINISH_REASON_STOP
    assert response.usage.prompt_tokens == 7
    assert len(response.request_id) >= 16, "the server makes an id that cannot be guessed"


async def test_unset_options_stay_unset_and_zero_stays_zero(served: Served) -> None:
    await served.inference.Generate(generate())
    await served.inference.Generate(
        generate(
            conversation=conversation().conversation,
            config=generation_pb2.GenerationConfig(sampling=generation_pb2.Sampling(temperature=0, top_k=0, seed=0)),
        )
    )
    unset, zero = (generation.sampling for generation in served.backend.generations)
    assert (unset.repetition_penalty, unset.presence_penalty, unset.frequency_penalty) == (None, None, None)
    assert (unset.temperature, unset.top_p, unset.top_k, unset.max_new_tokens) == (None, None, None, None)
    assert (zero.temperature, zero.top_k, zero.seed) == (0.0, 0, 0)


async def test_penalties_reach_the_engine(served: Served) -> None:
    sampling = generation_pb2.Sampling(repetition_penalty=1.25, presence_penalty=-0.5, frequency_penalty=0)
    config = generation_pb2.GenerationConfig(sampling=sampling)
    await served.inference.Generate(generate(conversation=conversation().conversation, config=config))
    (asked,) = (generation.sampling for generation in served.backend.generations)
    assert (asked.repetition_penalty, asked.presence_penalty, asked.frequency_penalty) == (1.25, -0.5, 0.0)


async def test_a_drawn_seed_is_reported_and_used(served: Served) -> None:
    call = served.inference.GenerateStream(stream())
    first = await call.read()
    assert first.accepted.seed == served.backend.generations[0].sampling.seed
    await rest_of(call)


async def test_every_kind_of_prompt_reaches_the_engine(served: Served) -> None:
    image = media_pb2.Image(data=b"png")
    parts = [generation_pb2.Part(text="what is"), generation_pb2.Part(image=image)]
    message = generation_pb2.Message(role=generation_pb2.ROLE_USER, parts=parts)
    prompts: list[dict[str, Any]] = [
        {"conversation": generation_pb2.Conversation(messages=[message])},
        {"raw": generation_pb2.RawPrompt(parts=parts, parse_special_tokens=True)},
        {"tokens": generation_pb2.TokensPrompt(ids=[1, 2, 3], images=[image])},
    ]
    for prompt in prompts:
        await served.inference.Generate(generate(**prompt))
    engine_parts = (TextPart("what is"), ImagePart(b"png"))
    assert [generation.prompt for generation in served.backend.generations] == [
        Conversation((Message(Role.USER, engine_parts),)),
        RawPrompt(engine_parts, parse_special_tokens=True),
        TokenPrompt((1, 2, 3), (ImagePart(b"png"),)),
    ]


async def test_text_that_nobody_asked_for_is_not_sent(served: Served) -> None:
    options = generation_pb2.OutputOptions(text=False, token_ids=True)
    config = generation_pb2.GenerationConfig(output=options)
    call = served.inference.GenerateStream(stream(conversation=conversation().conversation, config=config))
    deltas = [response.delta async for response in call if response.WhichOneof("event") == "delta"]
    assert [delta.text for delta in deltas] == ["", ""]
    assert [token.id for delta in deltas for token in delta.tokens] == [100, 101]


async def test_no_message_exceeds_three_mebibytes(served: Served) -> None:
    text = "\N{GRINNING FACE}" * 700_000
    tokens = tuple(Token(900, -1.0) for _ in range(70_000))
    events = answer_events("x")
    served.backend.answer = [events[0], Delta(0, text, tokens), *events[-2:]]
    options = generation_pb2.OutputOptions(token_ids=True)
    config = generation_pb2.GenerationConfig(output=options)
    prompt = conversation().conversation
    responses = [r async for r in served.inference.GenerateStream(stream(conversation=prompt, config=config))]
    assert max(response.ByteSize() for response in responses) <= 3 << 20
    assert "".join(response.delta.text for response in responses) == text
    assert sum(len(response.delta.tokens) for response in responses) == 70_000
    refused = await refusal(served.inference.Generate(generate(conversation=prompt, config=config)))
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE")
    assert "GenerateStream" in refused.text


async def test_usage_tells_what_each_image_and_video_took(served: Served) -> None:
    took = (
        MediaUsage(Modality.IMAGE, 12, 10, EncoderUse.ENCODED),
        MediaUsage(Modality.VIDEO, 8, 8, EncoderUse.CACHED),
        MediaUsage(Modality.IMAGE, 4, 4, EncoderUse.PROVIDED),
    )
    served.backend.answer[-1] = Usage(40, 22, 0, 2, images=3, media=took)
    usage = (await served.inference.Generate(generate())).usage
    assert [(one.modality, one.tokens, one.embeddings, one.encoder) for one in usage.media] == [
        (media_pb2.MODALITY_IMAGE, 12, 10, events_pb2.ENCODER_USE_ENCODED),
        (media_pb2.MODALITY_VIDEO, 8, 8, events_pb2.ENCODER_USE_CACHED),
        (media_pb2.MODALITY_IMAGE, 4, 4, events_pb2.ENCODER_USE_PROVIDED),
    ]


async def test_progress_says_only_what_applies(served: Served) -> None:
    served.backend.answer = [accepted(), Progress(queue_position=3), Progress(0, 1, 2, 16, 64), *answer_events()[1:]]
    responses = [response async for response in served.inference.GenerateStream(stream())]
    waiting, computing = (response.progress for response in responses[1:3])
    assert waiting.queue_position == 3
    assert not waiting.HasField("images_total")
    assert not computing.HasField("queue_position")
    assert (computing.images_encoded, computing.images_total) == (1, 2)
    assert (computing.prefill_tokens_done, computing.prefill_tokens_total) == (16, 64)


async def test_a_silent_stream_shows_signs_of_life(hasty: Served) -> None:
    hasty.backend.by_hand = True
    call = hasty.inference.GenerateStream(stream())
    run = await hasty.backend.next_run()
    run.say(accepted())
    assert kinds([await call.read(), await call.read(), await call.read()]) == ["accepted", "progress", "progress"]
    run.end()
    rest = await rest_of(call)
    assert kinds(rest)[-2:] == ["finished", "usage"]


async def test_nothing_is_sent_before_acceptance(hasty: Served) -> None:
    """Headers would commit the call and disable retries; a heartbeat may not bring them."""
    hasty.backend.by_hand = True
    call = hasty.inference.GenerateStream(stream())
    run = await hasty.backend.next_run()
    headers = asyncio.create_task(call.initial_metadata())
    done, _ = await asyncio.wait([headers], timeout=0.2)
    assert not done
    run.fail(InvalidRequestError("prompt", "is too long", Reason.PROMPT_TOO_LONG))
    refused = await refusal(call.read())
    assert (refused.code, refused.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["generation.prompt"])
    await headers


async def test_a_lost_stream_frees_its_request(served: Served) -> None:
    served.backend.by_hand = True
    call = served.inference.GenerateStream(stream())
    run = await served.backend.next_run()
    run.say(accepted())
    await call.read()
    call.cancel()
    await run.wait_until_freed()


async def test_a_stream_lost_while_its_reader_stands_still_frees_its_request(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.backend.by_hand = True
    call = served.inference.GenerateStream(stream())
    run = await served.backend.next_run()
    run.say(accepted(), *(Delta(0, "x" * 200_000) for _ in range(50)))
    await call.read()
    call.cancel()
    await run.wait_until_freed()
    await served.server.lifecycle.wait_until_idle()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_vanished_unary_caller_frees_its_request(served: Served) -> None:
    served.backend.by_hand = True
    call = served.inference.Generate(generate())
    run = await served.backend.next_run()
    call.cancel()
    await run.wait_until_freed()


async def test_a_passed_deadline_frees_its_request(served: Served) -> None:
    served.backend.by_hand = True
    call = served.inference.Generate(generate(), timeout=0.2)
    run = await served.backend.next_run()
    refused = await refusal(call)
    assert refused.code is grpc.StatusCode.DEADLINE_EXCEEDED
    await run.wait_until_freed()


async def test_cancel_by_id_ends_a_stream_with_finished_and_usage(served: Served) -> None:
    served.backend.by_hand = True
    call = served.inference.GenerateStream(stream("job-1"))
    run = await served.backend.next_run()
    run.say(accepted(), Delta(0, "Hel"))
    assert kinds([await call.read(), await call.read()]) == ["accepted", "delta"]
    assert await cancel(served, "job-1") == CANCELLED
    rest = await rest_of(call)
    assert kinds(rest) == ["finished", "usage"]
    assert rest[0].finished.reason == events_pb2.FINISH_REASON_CANCELLED
    assert await call.code() is grpc.StatusCode.OK
    assert await cancel(served, "job-1") == FINISHED


async def test_a_cancel_that_overtakes_its_request_stops_it_before_any_work(served: Served) -> None:
    assert await cancel(served, "early") == UNKNOWN
    rest = [response async for response in served.inference.GenerateStream(stream("early"))]
    assert kinds(rest) == ["finished", "usage"]
    assert rest[0].finished.reason == events_pb2.FINISH_REASON_CANCELLED
    assert served.backend.generations == []
    again = await served.inference.Generate(generate("early"))
    assert again.answers[0].text == "Hello world", "the wish is used up"


async def test_a_running_id_is_refused(served: Served) -> None:
    served.backend.by_hand = True
    call = served.inference.GenerateStream(stream("same"))
    run = await served.backend.next_run()
    refused = await refusal(served.inference.Generate(generate("same")))
    assert (refused.code, refused.reason) == (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_IN_USE")
    assert refused.fields == ["request_id"]
    run.say(accepted())
    run.end()
    assert kinds([response async for response in call]) == ["accepted", "finished", "usage"]


@pytest.mark.parametrize("request_id", ["", "x" * 129, "tab\t", "gr\u00fc\u00dfe"])
async def test_a_malformed_id_is_refused(served: Served, request_id: str) -> None:
    refused = await refusal(served.inference.Generate(generate(request_id)))
    assert (refused.code, refused.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["request_id"])


async def test_overload_says_when_to_come_back(served: Served) -> None:
    served.backend.by_hand = True
    call = served.inference.Generate(generate())
    (await served.backend.next_run()).fail(OverloadedError("full", retry_after=2.5))
    refused = await refusal(call)
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert refused.retry_seconds == 2.5
    assert refused.trailers["grpc-retry-pushback-ms"] == "2500"


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (EngineStoppedError("at 0xdeadbeef"), grpc.StatusCode.UNAVAILABLE, "ENGINE_UNAVAILABLE"),
        (CoreFailureError("in /secret/place.py"), grpc.StatusCode.INTERNAL, "INTERNAL"),
        (ValueError("secret of a handler"), grpc.StatusCode.INTERNAL, "INTERNAL"),
    ],
)
async def test_the_text_of_an_exception_never_leaves(
    served: Served, error: Exception, code: grpc.StatusCode, reason: str
) -> None:
    served.backend.by_hand = True
    call = served.inference.GenerateStream(stream("who"))
    run = await served.backend.next_run()
    run.say(accepted())
    run.fail(error)
    await call.read()
    refused = await refusal(call.read())
    assert (refused.code, refused.reason, refused.domain) == (code, reason, "fanlight")
    assert refused.request_id == "who" == refused.trailers["fanlight-request-id"]
    assert str(error) not in refused.text + str(refused.trailers)
    assert (await cancel(served, "who")) == FINISHED


async def test_neighbours_do_not_notice_a_bad_request(served: Served) -> None:
    bad = served.inference.Generate(generate(conversation=generation_pb2.Conversation()))
    good = served.inference.Generate(generate(conversation=conversation(user("Hi")).conversation))
    assert (await refusal(bad)).code is grpc.StatusCode.INVALID_ARGUMENT
    assert (await good).answers[0].text == "Hello world"
