"""A chat of several turns about one image, over one bidirectional call: context, branches, interruption."""

from __future__ import annotations

import pytest

from fanlight import ROOT, AsyncTurn, Delta, FinishReason, InvalidRequest, Usage
from tests.e2e.pictures import picture
from tests.e2e.serving import Served

OPTIONS = {"temperature": 0.0, "max_new_tokens": 12}


async def answered(turn: AsyncTurn) -> Usage:
    async for _ in turn:
        pass
    assert turn.usage is not None
    return turn.usage


async def test_turns_go_on_from_one_another_and_the_image_is_encoded_once(served: Served) -> None:
    before = await served.statistics()
    async with served.client.chat(system="Answer briefly.", **OPTIONS) as chat:
        usages = [await answered(chat.send("What is it?", images=picture(1100)))]
        for question in ("What colour is it?", "Where is it?", "Are you sure?"):
            usages.append(await answered(chat.send(question)))
    assert (await served.statistics()).images_encoded - before.images_encoded == 1
    assert [usage.images for usage in usages] == [1, 1, 1, 1]
    assert [usage.encoder_cache_hits for usage in usages] == [0, 1, 1, 1]
    lengths = [usage.prompt_tokens for usage in usages]
    assert lengths == sorted(set(lengths)), "every turn's prompt is longer than the one before"
    assert all(usage.cached_tokens > 0 for usage in usages[1:]), "what was said before is not computed again"


async def test_a_branch_and_a_regenerated_turn_start_where_they_say(served: Served) -> None:
    async with served.client.chat(**OPTIONS) as chat:
        first = chat.send("What is it?", images=picture(1101))
        await answered(first)
        second = chat.send("What colour is it?")
        second_usage = await answered(second)
        branch = chat.send("What colour is it?", parent=first)
        branch_usage = await answered(branch)
        regenerated = chat.send("What is it?", images=picture(1101), parent=ROOT)
        await answered(regenerated)
    assert branch.text == second.text
    assert branch_usage.prompt_tokens == second_usage.prompt_tokens
    assert regenerated.text == first.text


async def test_an_interrupted_answer_stays_in_the_conversation(served: Served) -> None:
    async with served.client.chat(**OPTIONS) as chat:
        long = chat.send(
            "What is it?", images=picture(1102), ignore_eos=True, max_new_tokens=2000, token_ids=True, temperature=0.0
        )
        async for event in long.events():
            if isinstance(event, Delta):
                long.interrupt()
                break
        said = await answered(long)
        assert long.finish_reason is FinishReason.INTERRUPTED
        assert 0 < said.completion_tokens < 2000
        following = await answered(chat.send("And now?"))
    assert following.prompt_tokens > said.prompt_tokens + said.completion_tokens


async def test_a_bad_turn_is_told_and_the_chat_goes_on(served: Served) -> None:
    async with served.client.chat(**OPTIONS) as chat:
        await answered(chat.send("What is it?", images=picture(1103)))
        bad = chat.send("And this?", images=b"no image")
        with pytest.raises(InvalidRequest) as refused:
            await answered(bad)
        assert refused.value.field == "turn.messages[0].parts[0].image"
        assert (await answered(chat.send("What colour is it?"))).images == 1
