"""A picture is decoded once and encoded once, however many requests and turns bring it, also at the same time."""

from __future__ import annotations

from tests.e2e.encode_once import encode_once
from tests.e2e.pictures import picture
from tests.e2e.serving import Served


async def test_a_new_picture_in_8_requests_and_4_turns_is_encoded_once(served: Served) -> None:
    once = await encode_once(served, picture(1400), requests=8, turns=4)
    assert once.after_requests - once.before == 1
    assert once.after_turns - once.before == 1
    assert once.decoders == 1
    assert once.unchanged == 8
