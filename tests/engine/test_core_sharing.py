"""What was computed once is not computed again, what differs is never shared, and none of it changes an answer."""

from __future__ import annotations

import pytest

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from tests.engine.answers import MakeDriver, answer, prefill_of
from tests.engine.builders import llava_picture, qwen_picture, request, words


def test_the_same_image_in_ten_requests_is_encoded_once(make_driver: MakeDriver, llava: Checkpoint) -> None:
    driver = make_driver(llava)
    before = driver.engine.statistics()
    for number in range(10):
        driver.add(request(str(number), words(3, seed=number), llava_picture("shared by ten"), words(3)))
    driver.run()
    after = driver.engine.statistics()
    assert after.images_encoded - before.images_encoded == 1
    assert after.encoder_cache_hits - before.encoder_cache_hits == 9
    assert sorted(len(prefill_of(driver, str(number)).encoded_media) for number in range(10)) == [0] * 9 + [1]


def test_the_same_text_with_another_image_shares_no_page_beyond_the_text_before_it(
    make_driver: MakeDriver, llava: Checkpoint
) -> None:
    driver = make_driver(llava)
    text, question = words(35, seed=21), words(40, seed=22)
    first = answer(driver, request("cat", text, llava_picture("cat"), question))
    again = answer(driver, request("cat again", text, llava_picture("cat"), question))
    other = answer(driver, request("dog", text, llava_picture("dog"), question))
    assert again == first
    assert prefill_of(driver, "cat again").cached_tokens == 80
    assert prefill_of(driver, "dog").cached_tokens == 32, "the text's full pages"
    fresh = make_driver(llava, prefix_cache=False)
    assert answer(fresh, request("dog", text, llava_picture("dog"), question)) == other


@pytest.mark.parametrize("length", [32, 33, 47])
def test_a_repeated_prompt_is_cached_and_answered_alike(
    length: int, make_driver: MakeDriver, llama: Checkpoint
) -> None:
    driver = make_driver(llama)
    prompt = words(length, seed=length)
    first = answer(driver, request("first", prompt, max_new_tokens=20))
    second = answer(driver, request("second", prompt, max_new_tokens=20))
    assert second == first
    assert prefill_of(driver, "first").cached_tokens == 0
    assert prefill_of(driver, "second").cached_tokens == (length - 1) // 16 * 16


def test_a_second_turn_finds_the_answer_of_the_first(make_driver: MakeDriver, llama: Checkpoint) -> None:
    driver = make_driver(llama)
    prompt = words(20, seed=77)
    said = answer(driver, request("turn 1", prompt, max_new_tokens=30))
    answer(driver, request("turn 2", prompt, said, words(4)))
    assert prefill_of(driver, "turn 2").cached_tokens == (20 + 29) // 16 * 16


def test_callers_with_different_salts_share_nothing(make_driver: MakeDriver, llama: Checkpoint) -> None:
    driver = make_driver(llama)
    for salt in (b"alice", b"bob"):
        answer(driver, request(salt.decode(), words(40, seed=5), cache_salt=salt))
        assert prefill_of(driver, salt.decode()).cached_tokens == 0


def test_text_requests_do_no_image_work(make_driver: MakeDriver, llava: Checkpoint) -> None:
    driver = make_driver(llava)
    before = driver.engine.statistics()
    driver.add(request("text", words(30, seed=4)))
    driver.add(request("more text", words(3, seed=5)))
    driver.run()
    after = driver.engine.statistics()
    assert (after.image_steps, after.encoder_batches) == (before.image_steps, before.encoder_batches)
    assert after.steps > before.steps
    answer(driver, request("image", llava_picture("new"), words(4), max_new_tokens=8))
    assert driver.engine.statistics().image_steps == after.image_steps + 1, "decodes behind an image do none either"


def test_a_seeded_answer_is_the_same_alone_in_a_crowd_and_after_preemption(
    make_driver: MakeDriver, llama: Checkpoint
) -> None:
    asked = [
        request(str(number), words(12, seed=number), max_new_tokens=20, temperature=1.0, top_p=0.95, seed=number)
        for number in range(4)
    ]
    driver = make_driver(llama)
    alone = [answer(driver, one) for one in asked]
    crowd = make_driver(llama, kv_pages=5, context_length=48, max_step_tokens=32)
    before = crowd.engine.statistics().preemptions
    for one in asked:
        crowd.add(one)
    crowd.run()
    assert crowd.engine.statistics().preemptions > before
    assert [crowd.answers[one.request_id].ids for one in asked] == alone
    assert answer(driver, request("other seed", words(12), max_new_tokens=20, temperature=1.0, seed=99)) != alone[0]


def test_an_answer_about_images_survives_preemption_inside_them(make_driver: MakeDriver, qwen: Checkpoint) -> None:
    asked = [
        request(str(number), words(9, seed=number), qwen_picture(f"p{number}", 8, 8), words(5), max_new_tokens=24)
        for number in range(3)
    ]
    alone = [answer(make_driver(qwen), one) for one in asked]
    pressed = make_driver(qwen, kv_pages=7, context_length=80, max_step_tokens=13, max_running_requests=4)
    for one in asked:
        pressed.add(one)
    pressed.run()
    assert pressed.engine.statistics().preemptions > 0
    assert [pressed.answers[one.request_id].ids for one in asked] == alone
