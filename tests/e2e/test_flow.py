"""Streams go on while somebody else's image is decoded or encoded. Asserts progress, never a time."""

from __future__ import annotations

import asyncio

from tests.e2e.asking import Ask
from tests.e2e.flow import flow_beside
from tests.e2e.pictures import large_picture, photograph_of_20_megapixels
from tests.e2e.serving import Served


async def test_streams_flow_while_a_photograph_of_20_megapixels_is_decoded(served: Served) -> None:
    photograph = await asyncio.to_thread(photograph_of_20_megapixels, 1)
    flow = await flow_beside(served.client, Ask("What is it?", (photograph,)), until_first_token=False, first_picture=0)
    assert flow.least_tokens > 0


async def test_streams_flow_while_sixteen_new_images_are_encoded(served: Served) -> None:
    images = tuple(large_picture(number) for number in range(100, 116))
    before = await served.statistics()
    flow = await flow_beside(served.client, Ask("What is it?", images), until_first_token=True, first_picture=0)
    assert flow.keeps_flowing
    assert (await served.statistics()).images_encoded - before.images_encoded >= len(images)
