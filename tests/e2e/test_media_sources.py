"""Whatever a picture came from, the answer is the same; and what was asked of its size is what it gets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

import fanlight
from fanlight.v1 import media_pb2
from tests.e2e.comparison import differing
from tests.e2e.doors import DOORS
from tests.e2e.made_models import EMBEDDED
from tests.e2e.media_sources import MODELS, Place, Seen, compare_sources, place_for, seen_of, sources_of
from tests.e2e.pictures import large_picture, picture

SOURCES = {EMBEDDED: 10, "llava_next": 9}


@pytest_asyncio.fixture(scope="module")
async def place() -> AsyncIterator[Place]:
    async with place_for(EMBEDDED) as one:
        yield one


@pytest.mark.parametrize("model", MODELS)
async def test_every_source_gives_the_same_answer_through_every_door(model: str) -> None:
    rows = await compare_sources(pictures=1, models=[model])
    assert differing(rows) == []
    assert len(rows) == len(DOORS) * SOURCES[model]


async def test_usage_says_whether_the_encoder_ran(place: Place) -> None:
    data = picture(2200)
    (first,) = await seen_of(place.served, media_pb2.Image(data=data))
    assert first.encoder == "encoded"
    sources = await sources_of(place, data)
    uses = {name: (await seen_of(place.served, image))[0] for name, image in sources.items()}
    assert {seen.embeddings for seen in uses.values()} == {first.embeddings}
    by_use = {
        use: {name for name, seen in uses.items() if seen.encoder == use} for use in ("cached", "provided", "encoded")
    }
    assert by_use == {
        "cached": {"bytes", "upload digest", "URL", "patches of a file"},
        "provided": {"handle", *(name for name in sources if name.startswith("embeddings"))},
        "encoded": {"patches", "patches in rows"},
    }, "patches are not known to be the picture that they were made of, but equal ones are known again"


async def test_a_picture_that_is_shown_twice_is_encoded_for_the_first(place: Place) -> None:
    image = media_pb2.Image(data=picture(2201))
    seen = await seen_of(place.served, image, "and again", image)
    assert [one.encoder for one in seen] == ["encoded", "cached"]


@pytest.mark.parametrize(
    ("options", "fewest", "most"),
    [
        ({}, 90, 100),
        ({"max_tokens": 30}, 16, 30),
        ({"max_pixels": 40 * 256}, 25, 40),
        ({"detail": "low"}, 49, 64),
        ({"detail": "high"}, 90, 100),
        ({"detail": "low", "max_tokens": 20}, 9, 20),
    ],
)
async def test_a_large_picture_takes_as_many_embeddings_as_its_options_leave(
    place: Place, options: dict, fewest: int, most: int
) -> None:
    (seen,) = await seen_of(place.served, fanlight.image(large_picture(2202, side=500), **options))
    assert fewest <= seen.embeddings <= most


async def test_a_small_picture_is_scaled_up_to_the_pixels_asked_for(place: Place) -> None:
    small = large_picture(2203, side=16)
    (own,) = await seen_of(place.served, fanlight.image(small))
    (larger,) = await seen_of(place.served, fanlight.image(small, min_pixels=64 * 256))
    assert own == Seen(9, "encoded")
    assert larger == Seen(64, "encoded"), "another size is another picture to the encoder"


@pytest.mark.parametrize("options", [{"max_pixels": 5000}, {"min_pixels": 5000}, {"max_tokens": 1}])
async def test_what_cannot_be_granted_is_refused_by_the_name_of_the_picture(place: Place, options: dict) -> None:
    sources = await sources_of(place, picture(2204))
    image = sources["patches"]
    image.MergeFrom(media_pb2.Image(**options))
    with pytest.raises(fanlight.InvalidRequest) as refused:
        await seen_of(place.served, image)
    assert refused.value.code == grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.field is not None
    assert refused.value.field.startswith("generation.conversation.messages[0].parts[0].image")
    assert next(iter(options)) in str(refused.value)
