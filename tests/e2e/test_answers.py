"""Answers through every door: streamed, whole, from raw text and from token ids, sampled and cut as asked."""

from __future__ import annotations

import itertools

from PIL import Image
from tokenizers import Tokenizer

from fanlight import (
    Accepted,
    Delta,
    Finished,
    FinishReason,
    Progress,
    Usage,
    assistant,
    raw_prompt,
    system,
    tokens_prompt,
    user,
)
from fanlight.v1 import inference_pb2
from tests.e2e.asking import Ask, first_token, long_ask, same_words, whole_answer
from tests.e2e.pictures import encoded, odd_but_fine_pictures, picture, scene
from tests.e2e.serving import Served

QUESTION = "What is in the picture?"
BEFORE, AFTER = "<|im_start|>user\n", f"{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
GREEDY = {"temperature": 0.0, "max_new_tokens": 16, "token_ids": True}


async def test_a_streamed_answer_about_an_image_comes_in_the_promised_order(served: Served) -> None:
    stream = served.client.events(QUESTION, images=picture(1), **GREEDY)
    events = [event async for event in stream]
    kinds = [kind for kind, _ in itertools.groupby(type(event) for event in events)]
    assert [kind for kind in kinds if kind is not Progress] == [Accepted, Delta, Finished, Usage]
    accepted, usage = events[0], events[-1]
    assert isinstance(accepted, Accepted)
    assert isinstance(usage, Usage)
    assert usage.images == 1
    assert 0 < usage.image_tokens < usage.prompt_tokens == accepted.prompt_tokens
    assert usage.completion_tokens >= len(stream.tokens) > 0
    assert usage.timings.decode_media
    assert usage.timings.first_token
    assert usage.timings.total


async def test_a_whole_answer_is_the_streamed_one(served: Served) -> None:
    streamed = await Ask(QUESTION, (picture(1),), {"max_new_tokens": 16}).answer(served.client)
    whole = await served.client.generate(QUESTION, images=picture(1), **GREEDY)
    assert same_words(whole, streamed)


async def test_raw_text_and_token_ids_give_the_answer_of_the_conversation_that_they_spell(served: Served) -> None:
    asked = await served.client.generate(QUESTION, images=picture(1), **GREEDY)
    raw = raw_prompt(BEFORE, picture(1), AFTER, parse_special_tokens=True)
    assert same_words(await served.client.generate(raw, **GREEDY), asked)

    tokenizer = Tokenizer.from_file(str(served.front.checkpoint.path / "tokenizer.json"))
    spelled = f"{BEFORE}<|vision_start|><|image_pad|><|vision_end|>{AFTER}"
    ids = tokenizer.encode(spelled, add_special_tokens=False).ids
    assert same_words(await served.client.generate(tokens_prompt(ids, [picture(1)]), **GREEDY), asked)


async def test_raw_text_is_not_parsed_for_special_tokens_unless_asked(served: Served) -> None:
    parsed = await served.client.generate(raw_prompt(BEFORE, parse_special_tokens=True), max_new_tokens=1)
    typed = await served.client.generate(raw_prompt(BEFORE), max_new_tokens=1)
    assert parsed.usage is not None
    assert typed.usage is not None
    assert typed.usage.prompt_tokens > parsed.usage.prompt_tokens


async def test_several_images_may_stand_anywhere_in_a_conversation(served: Served) -> None:
    messages = [
        system("Answer briefly."),
        user(picture(1), "What is it?", picture(2)),
        assistant("Two pictures."),
        user("And this?", picture(3)),
    ]
    answer = await served.client.generate(messages, **GREEDY)
    assert answer.usage is not None
    assert answer.usage.images == 3
    assert answer.usage.image_tokens >= 3 * 9


async def test_an_equal_seed_gives_an_equal_answer_and_an_unset_one_is_told(served: Served) -> None:
    options = {"temperature": 5.0, "max_new_tokens": 20, "ignore_eos": True, "token_ids": True}
    drawn = await served.client.generate(QUESTION, images=picture(1), **options)
    assert drawn.seed is not None
    repeated = await served.client.generate(QUESTION, images=picture(1), seed=drawn.seed, **options)
    assert same_words(repeated, drawn)
    others = [await served.client.generate(QUESTION, images=picture(1), seed=seed, **options) for seed in (1, 2)]
    assert not same_words(*others)


async def test_an_answer_ends_before_its_stop_string_and_holds_it_only_if_asked(served: Served) -> None:
    options = {"temperature": 5.0, "seed": 7, "ignore_eos": True, "max_new_tokens": 40}
    text = (await served.client.generate(QUESTION, **options)).text
    middle = len(text) // 2
    stop = text[middle : middle + 5]
    cut = await served.client.generate(QUESTION, stop=["never said", stop], **options)
    assert cut.text == text[: text.index(stop)]
    assert (cut.finish_reason, cut.stop_sequence) == (FinishReason.STOP_SEQUENCE, stop)
    assert (await served.client.generate(QUESTION, stop=stop, include_stop=True, **options)).text == cut.text + stop

    stream = served.client.events(QUESTION, stop=stop, **options)
    pieces = [event.text async for event in stream if isinstance(event, Delta)]
    assert "".join(pieces) == cut.text, "no piece of the stop string may leak into a delta"


async def test_stop_token_ids_end_an_answer_but_not_before_its_least_length(served: Served) -> None:
    options = {"temperature": 5.0, "seed": 3, "ignore_eos": True, "token_ids": True, "max_new_tokens": 30}
    free = await served.client.generate(QUESTION, **options)
    stop_id = free.token_ids[10]
    first = free.token_ids.index(stop_id)
    stopped = await served.client.generate(QUESTION, stop_token_ids=[stop_id], **options)
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.usage is not None
    assert stopped.usage.completion_tokens == first + 1
    longer = await served.client.generate(QUESTION, stop_token_ids=[stop_id], min_new_tokens=20, **options)
    assert longer.usage is not None
    assert longer.usage.completion_tokens >= 20


async def test_ignore_eos_goes_on_to_the_length_asked_for(served: Served) -> None:
    answer = await Ask("Hello", (), {"ignore_eos": True, "max_new_tokens": 64}).answer(served.client)
    assert (len(answer.tokens), answer.finish_reason) == (64, FinishReason.LENGTH)


async def test_more_tokens_than_the_context_holds_end_in_a_full_context(served: Served) -> None:
    context = served.front.client.facts.context_length
    prompt = tokens_prompt([5] * (context - 6))
    answer = await served.client.generate(prompt, max_new_tokens=context, ignore_eos=True, token_ids=True)
    assert (len(answer.tokens), answer.finish_reason) == (6, FinishReason.CONTEXT_FULL)


async def test_logprobs_come_with_every_token_and_only_when_asked_for(served: Served) -> None:
    told = await served.client.generate(QUESTION, images=picture(1), logprobs=True, **GREEDY)
    assert told.tokens
    assert all(logprob is not None and logprob <= 0 for logprob in told.logprobs)
    untold = await served.client.generate(QUESTION, images=picture(1), **GREEDY)
    assert untold.token_ids == told.token_ids
    assert set(untold.logprobs) == {None}


async def test_cancel_ends_a_stream_with_what_it_has_said(served: Served) -> None:
    stream = long_ask(0, picture(1), 2000).start(served.client)
    await first_token(stream)
    assert await served.client.cancel(stream.request_id) == inference_pb2.CANCEL_OUTCOME_CANCELLED
    answer = await whole_answer(stream)
    assert answer.finish_reason is FinishReason.CANCELLED
    assert answer.tokens
    assert answer.usage is not None
    assert await served.client.cancel(stream.request_id) == inference_pb2.CANCEL_OUTCOME_FINISHED
    assert await served.client.cancel("never-seen") == inference_pb2.CANCEL_OUTCOME_UNKNOWN


async def test_every_size_mode_and_orientation_of_picture_is_taken(served: Served) -> None:
    for name, data in odd_but_fine_pictures().items():
        answer = await served.client.generate(QUESTION, images=data, max_new_tokens=1, temperature=0.0)
        assert answer.usage is not None, name
        assert answer.usage.image_tokens > 0, name


async def test_pictures_with_equal_raw_bytes_are_different_pictures(served: Served) -> None:
    wide = scene(9).image.resize((100, 60))
    tall = Image.frombytes("RGB", (60, 100), wide.tobytes())
    before = await served.statistics()
    for image in (wide, tall):
        await served.client.generate(QUESTION, images=encoded(image), max_new_tokens=1)
    assert (await served.statistics()).images_encoded - before.images_encoded == 2
