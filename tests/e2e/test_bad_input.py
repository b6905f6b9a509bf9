"""Whatever is sent: the promised status and field, an unchanged neighbour, and an answer to the next request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from fanlight import Answer, DeadlineExceeded
from fanlight.v1 import inference_pb2
from tests.e2e.asking import first_token, long_ask, same_words, whole_answer
from tests.e2e.bad_bytes import BadBytes, bad_bytes, refusal_of_bytes
from tests.e2e.bad_input import FIRST_IMAGE, BadInput, asking, bad_inputs, image, mismatches, refusal_of, text
from tests.e2e.pictures import picture
from tests.e2e.serving import Served, serving
from tests.e2e.special_tokens import special_tokens, type_token
from tests.engine.checkpoints import make_llama

NEIGHBOUR = long_ask(0, picture(1200), 24)


@pytest_asyncio.fixture(scope="module")
async def alone(served: Served) -> Answer:
    """What the neighbour answers when nobody else is there."""
    return await NEIGHBOUR.answer(served.client)


@pytest_asyncio.fixture
async def neighbour(served: Served, alone: Answer) -> AsyncIterator[None]:
    """A stream that runs beside; unchanged at its end, after which the next request is answered."""
    stream = NEIGHBOUR.start(served.client)
    await first_token(stream)
    yield
    assert same_words(await whole_answer(stream), alone)
    assert (await served.client.generate("Hello", max_new_tokens=1)).usage is not None


async def rows(served: Served) -> list[BadInput]:
    model = await served.client.model()
    return bad_inputs(model.special_tokens.image_token_id, model.vocabulary_size, model.context_length)


NAMES = [bad.name for bad in bad_inputs(0, 1, 1)]


@pytest.mark.usefixtures("neighbour")
@pytest.mark.parametrize("name", NAMES)
async def test_bad_input_is_refused_by_name(served: Served, name: str) -> None:
    (bad,) = [row for row in await rows(served) if row.name == name]
    refused = await refusal_of(served.channel, bad.request)
    assert mismatches(bad, refused) == [], refused


@pytest.mark.usefixtures("neighbour")
@pytest.mark.parametrize("bad", bad_bytes(), ids=lambda bad: bad.name)
async def test_bad_bytes_are_refused_before_they_are_a_message(served: Served, bad: BadBytes) -> None:
    refused = await refusal_of_bytes(served.address, bad)
    assert (refused.code, refused.reason) == (bad.code, bad.reason), refused
    assert "google.protobuf" not in refused.message


@pytest.mark.usefixtures("neighbour")
@pytest.mark.parametrize("images", [0, 1, 2])
async def test_typed_special_tokens_are_text(served: Served, images: int) -> None:
    tokens = special_tokens(served)
    assert len(tokens) >= 7
    for token in tokens:
        typed = await type_token(served, token, images)
        assert typed.is_text, typed


async def test_a_request_that_misses_its_deadline_leaves_nothing_behind(served: Served) -> None:
    before = await served.books()
    with pytest.raises(DeadlineExceeded):
        await served.client.generate("Hello", timeout=1e-6)
    assert before.differences(await served.books()) == []


async def test_an_unknown_request_id_cancels_nothing(served: Served) -> None:
    assert await served.client.cancel("../nobody's") == inference_pb2.CANCEL_OUTCOME_UNKNOWN


async def test_a_text_only_checkpoint_refuses_images_by_name(tmp_path: Path) -> None:
    async with serving(make_llama(tmp_path / "llama")) as llama:
        answer = await llama.client.generate("the cat sees", max_new_tokens=4)
        assert answer.usage is not None
        bad = BadInput(
            "an image for a text-only checkpoint",
            asking(text("What is it?"), image(picture(0))),
            grpc.StatusCode.INVALID_ARGUMENT,
            FIRST_IMAGE.replace("parts[0]", "parts[1]"),
            "MODALITY_UNSUPPORTED",
            ("llama", "text only"),
        )
        assert mismatches(bad, await refusal_of(llama.channel, bad.request)) == []
        assert (await llama.client.generate("the cat sees", max_new_tokens=4)).text == answer.text
