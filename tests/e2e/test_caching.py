"""An image that returns is encoded once, and pages are shared by prompts that begin alike, never across images."""

from __future__ import annotations

from tests.e2e.caching import page_sharing, same_image_in_requests, same_image_in_turns
from tests.e2e.pictures import large_picture, picture
from tests.e2e.serving import Served


async def test_the_same_image_in_ten_requests_is_encoded_once(served: Served) -> None:
    work = await same_image_in_requests(served, picture(1000), requests=10)
    assert work.images_encoded == 1


async def test_the_same_image_in_ten_turns_is_encoded_once(served: Served) -> None:
    work = await same_image_in_turns(served, picture(1001), turns=10)
    assert work.images_encoded == 1
    assert work.prefix_cached_tokens > 0, "later turns go on from the pages of earlier ones"


async def test_the_same_text_with_another_image_shares_only_the_pages_before_the_image(served: Served) -> None:
    sharing = await page_sharing(served, large_picture(1), large_picture(2), first_id=300)
    assert sharing.pages_of_text_before_image == 32
    assert sharing.first == 0
    assert sharing.other_image == sharing.pages_of_text_before_image
    assert sharing.same_image == (sharing.prompt_tokens - 1) // sharing.page_size * sharing.page_size
