"""One new picture in many places at once, and then in a chat about it: how often it is decoded and encoded."""

from __future__ import annotations

from dataclasses import dataclass

from fanlight import Answer
from tests.e2e.asking import QUESTIONS, Ask, answers_one_by_one, answers_together, changed
from tests.e2e.caching import same_image_in_turns
from tests.e2e.serving import Served


@dataclass(frozen=True, slots=True)
class EncodedOnce:
    """The core's counter of encoded pictures before, after the requests, and after the chat as well.

    `decoders` is how many of the requests decoded the picture themselves, `unchanged` how many were answered as they
    are alone, later.
    """

    before: int
    after_requests: int
    after_turns: int
    requests: int
    turns: int
    decoders: int
    unchanged: int


async def encode_once(served: Served, image: bytes, requests: int = 16, turns: int = 16) -> EncodedOnce:
    """All requests at the same time, with an image that the server has not seen; then the turns, one by one."""
    asks = [Ask(f"{QUESTIONS[number % len(QUESTIONS)]} {number}", (image,)) for number in range(requests)]
    before = (await served.statistics()).images_encoded
    together = await answers_together(served.client, asks)
    after_requests = (await served.statistics()).images_encoded
    await same_image_in_turns(served, image, turns)
    after_turns = (await served.statistics()).images_encoded
    alone = await answers_one_by_one(served.client, asks)
    return EncodedOnce(
        before=before,
        after_requests=after_requests,
        after_turns=after_turns,
        requests=requests,
        turns=turns,
        decoders=sum(map(_decoded, together)),
        unchanged=requests - len(changed(alone, together)),
    )


def _decoded(answer: Answer) -> bool:
    assert answer.usage is not None
    return bool(answer.usage.timings.decode_media)
