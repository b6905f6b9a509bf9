"""Pictures and clips are encoded once, for whoever asks first; asking for nothing but the embeddings is as good."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.core.messages import EMBEDDINGS, Encoded, EncodeRequest, MediaInput, Rejected
from fanlight_engine.errors import Reason
from fanlight_engine.request import Modality
from fanlight_engine.tensor_data import TensorData, array_of
from tests.engine.answers import MakeDriver, answer, assert_rejected, prefill_of
from tests.engine.builders import data, embedded, llava_picture, picture, qwen_clip, qwen_picture, request, words
from tests.engine.driver import Driver


def encoded(driver: Driver, name: str, medium: MediaInput) -> Encoded:
    """The answer to an encode request."""
    driver.encode(EncodeRequest(name, medium))
    driver.run()
    end = driver.answers[name].end
    assert isinstance(end, Encoded), end
    return end


def embeddings_of(driver: Driver, name: str, medium: MediaInput) -> TensorData:
    return encoded(driver, name, medium).tensors[EMBEDDINGS]


def runs_of_the_tower(driver: Driver) -> int:
    return driver.engine.statistics().images_encoded


class TestOnce:
    """The tower runs once for each medium, however many want it, however they ask."""

    def test_for_requests_that_arrive_together_and_turns_that_follow(
        self, make_driver: MakeDriver, llava: Checkpoint
    ) -> None:
        driver = make_driver(llava)
        before = runs_of_the_tower(driver)
        shown = llava_picture("seen by sixteen")
        for number in range(16):
            driver.add(request(str(number), words(3, seed=number), shown, words(3)))
            driver.encode(EncodeRequest(f"encode-{number}", shown))
        driver.run()
        assert runs_of_the_tower(driver) - before == 1
        talk: list[int] = []
        for turn in range(16):
            talk += words(5, seed=turn)
            talk += answer(driver, request(f"turn {turn}", words(2), shown, talk, max_new_tokens=3))
            assert prefill_of(driver, f"turn {turn}").encoded_media == ()
        assert runs_of_the_tower(driver) - before == 1

    def test_for_a_medium_that_one_request_shows_twice(self, make_driver: MakeDriver, qwen: Checkpoint) -> None:
        driver = make_driver(qwen)
        before = runs_of_the_tower(driver)
        clip = qwen_clip("twice")
        answer(driver, request("twice", clip, words(2), qwen_picture("between"), words(2), clip, words(1)))
        assert runs_of_the_tower(driver) - before == 2
        assert prefill_of(driver, "twice").encoded_media == (0, 1)

    def test_for_encode_requests_before_and_after_a_generation(
        self, make_driver: MakeDriver, qwen_vl: Checkpoint
    ) -> None:
        driver = make_driver(qwen_vl)
        before = runs_of_the_tower(driver)
        clip = qwen_clip("first encoded, then shown")
        assert not encoded(driver, "first", clip).was_cached
        answer(driver, request("shown", words(2), clip, words(2)))
        assert prefill_of(driver, "shown").encoded_media == ()
        again = driver.encode(EncodeRequest("again", clip))
        assert isinstance(again, Encoded), "at once, without a step"
        assert again.was_cached
        assert runs_of_the_tower(driver) - before == 1

    def test_and_one_of_several_encode_requests_is_told_so(self, make_driver: MakeDriver, llava: Checkpoint) -> None:
        driver = make_driver(llava)
        for name in ("one", "two", "three"):
            assert driver.encode(EncodeRequest(name, llava_picture("wanted by three"))) is None
        driver.run()
        ends = [driver.answers[name].end for name in ("one", "two", "three")]
        assert [isinstance(end, Encoded) and end.was_cached for end in ends] == [False, True, True]


@pytest.fixture(params=["qwen2_vl", "qwen"])
def qwen_vl(request: pytest.FixtureRequest) -> Checkpoint:
    return request.getfixturevalue(request.param)


class TestEmbeddings:
    """What leaves the core is what a generation would have used."""

    @pytest.mark.parametrize("make", [qwen_picture, qwen_clip], ids=["picture", "clip"])
    def test_sent_back_they_give_the_same_answer_without_the_tower(
        self, make: Any, make_driver: MakeDriver, qwen_vl: Checkpoint
    ) -> None:
        driver = make_driver(qwen_vl)
        medium: MediaInput = make("there and back", height=6, width=8)
        expected = answer(driver, request("pixels", words(4), medium, words(4), max_new_tokens=12))
        tensor = embeddings_of(driver, "encode", medium)
        before = driver.engine.statistics()
        brought = embedded(f"brought {make.__name__}", tensor, medium.grid, medium.modality)
        ids = answer(driver, request("embeddings", words(4), brought, words(4), max_new_tokens=12))
        assert ids == expected
        after = driver.engine.statistics()
        assert after.images_encoded == before.images_encoded
        assert after.encoder_batches == before.encoder_batches
        assert prefill_of(driver, "embeddings").encoded_media == ()

    def test_a_clip_answers_differently_from_a_picture_of_equal_embeddings(
        self, make_driver: MakeDriver, qwen: Checkpoint
    ) -> None:
        driver = make_driver(qwen)
        tensor = embeddings_of(driver, "encode", qwen_clip("moving", 3, 4, 4))
        logprobs = []
        for modality in Modality:
            medium = embedded(f"as {modality}", tensor, (3, 4, 4), modality)
            answer(driver, request(str(modality), words(4), medium, words(4), logprobs=True))
            logprobs.append(driver.answers[str(modality)].logprobs)
        assert logprobs[0] != logprobs[1], "time has a position of its own"

    def test_they_have_the_models_number_type_and_shape(self, make_driver: MakeDriver, llava: Checkpoint) -> None:
        exact = embeddings_of(make_driver(llava), "exact", llava_picture("typed", tiles=2))
        assert (exact.dtype, exact.shape) == ("float32", (32, 64))
        driver = make_driver(llava, dtype="bfloat16")
        short = embeddings_of(driver, "short", llava_picture("typed", tiles=2))
        assert (short.dtype, short.shape) == ("bfloat16", (32, 64))
        np.testing.assert_allclose(array_of(short), array_of(exact), rtol=0.1, atol=0.1)
        assert len(answer(driver, request("brought", words(2), embedded("short", short), words(3)))) == 4

    def test_what_came_as_embeddings_goes_as_it_came(self, make_driver: MakeDriver, llava: Checkpoint) -> None:
        driver = make_driver(llava)
        tensor = data(np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32))
        said = encoded(driver, "echo", embedded("echo", tensor))
        assert said == Encoded("echo", {EMBEDDINGS: tensor}, was_cached=True)


class TestQueue:
    """Encoding without generating has a queue of its own, with the refusals of any other."""

    def test_running_streams_are_not_disturbed(self, make_driver: MakeDriver, llava: Checkpoint) -> None:
        driver = make_driver(llava)
        stream = request("stream", words(7), max_new_tokens=20)
        alone = answer(driver, stream)
        driver.add(stream)
        driver.step()
        for number in range(6):
            driver.encode(EncodeRequest(f"encode-{number}", llava_picture(f"beside {number}")))
        while driver.engine.statistics().waiting_encodes:
            said = len(driver.answers["stream"].ids)
            driver.step()
            assert len(driver.answers["stream"].ids) == said + 1, "a token in every step"
        driver.run()
        assert driver.answers["stream"].ids == alone

    def test_an_aborted_request_is_not_encoded_and_its_id_is_free(
        self, make_driver: MakeDriver, llava: Checkpoint
    ) -> None:
        driver = make_driver(llava)
        before = runs_of_the_tower(driver)
        driver.encode(EncodeRequest("id", llava_picture("never wanted")))
        assert driver.engine.has_work
        driver.engine.abort("id")
        assert not driver.engine.has_work
        assert driver.answers["id"].end is None, "an aborted request is not answered"
        assert not encoded(driver, "id", llava_picture("wanted")).was_cached
        assert runs_of_the_tower(driver) - before == 1

    def test_an_id_that_is_in_use_is_refused_by_both_ways_in(self, make_driver: MakeDriver, llava: Checkpoint) -> None:
        driver = make_driver(llava)
        driver.engine.add(request("generation", words(4)))
        driver.engine.encode(EncodeRequest("encoding", llava_picture("a")))
        refused = [
            driver.engine.encode(EncodeRequest("generation", llava_picture("b"))),
            driver.engine.encode(EncodeRequest("encoding", llava_picture("b"))),
            driver.engine.add(request("encoding", words(4))),
        ]
        for said in refused:
            assert_rejected(said, Reason.REQUEST_ID_IN_USE, "request_id")
        driver.engine.abort("generation")
        driver.engine.abort("encoding")

    def test_more_than_may_wait_are_refused_with_a_hint(self, make_driver: MakeDriver, llava: Checkpoint) -> None:
        driver = make_driver(llava, max_waiting_requests=2)
        said = [driver.encode(EncodeRequest(str(number), llava_picture(f"many {number}"))) for number in range(3)]
        assert said[:2] == [None, None]
        assert assert_rejected(said[2], Reason.OVERLOADED, "").retry_after > 0

    def test_a_medium_larger_than_the_cache_is_refused(self, make_driver: MakeDriver, llava: Checkpoint) -> None:
        driver = make_driver(llava, vision_cache_bytes=16 * 64 * 4)
        said = driver.encode(EncodeRequest("large", picture("large", 17)))
        described = assert_rejected(said, Reason.IMAGE_TOO_LARGE, "media").description
        assert "17 embeddings takes 4352 bytes" in described
        assert "4096" in described

    def test_a_medium_that_fails_takes_nobody_along(self, make_driver: MakeDriver, llava: Checkpoint) -> None:
        driver = make_driver(llava)
        neighbour = request("neighbour", words(2), llava_picture("good"), words(3))
        broken = picture("broken", 16, pixel_values=np.zeros((1, 3, 9, 9), dtype=np.float32))
        short = picture("short", 15, pixel_values=np.zeros((1, 3, 56, 56), dtype=np.float32))
        driver.add(neighbour)
        for name, medium in (("broken", broken), ("short", short), ("good", llava_picture("also good"))):
            driver.encode(EncodeRequest(name, medium))
        driver.run()
        assert_rejected(driver.answers["broken"].end, Reason.ENGINE_FAILURE, "")
        mismatch = assert_rejected(driver.answers["short"].end, Reason.IMAGE_COUNT_MISMATCH, "media")
        assert "(16, 64) for a picture that needs (15, 64)" in mismatch.description
        assert isinstance(driver.answers["good"].end, Encoded)
        assert len(driver.answers["neighbour"].ids) == 4
        assert broken.digest not in driver.engine._vision_cache


def test_a_failing_medium_is_told_to_whoever_shows_it_and_whoever_wants_it(
    make_driver: MakeDriver, llava: Checkpoint
) -> None:
    driver = make_driver(llava)
    short = picture("short for two", 15, pixel_values=np.zeros((1, 3, 56, 56), dtype=np.float32))
    driver.add(request("shows", words(2), short, words(3)))
    driver.encode(EncodeRequest("wants", short))
    driver.run()
    ends = [driver.answers[name].end for name in ("shows", "wants")]
    assert [isinstance(end, Rejected) and end.reason for end in ends] == [Reason.IMAGE_COUNT_MISMATCH] * 2


def test_embeddings_of_another_shape_are_refused_before_they_reach_a_step(
    make_driver: MakeDriver, llava: Checkpoint
) -> None:
    driver = make_driver(llava)
    driver.add(request("wide", words(2), embedded("wide", data(np.zeros((3, 65), dtype=np.float32))), words(2)))
    driver.run()
    assert "the request brought" in assert_rejected(driver.answers["wide"].end, Reason.IMAGE_COUNT_MISMATCH).description


def test_a_clip_as_tiles_is_answered_like_a_picture_of_the_same_tiles(
    make_driver: MakeDriver, llava: Checkpoint
) -> None:
    """Without M-RoPE nothing but the embeddings tells a clip from a picture."""
    driver = make_driver(llava)
    tiles = llava_picture("tiles", tiles=3)
    clip = MediaInput(b"clip" * 8, tiles.embedding_rows, tiles.tensors, Modality.VIDEO)
    ids = [answer(driver, request(one.noun, words(3), one, words(3), max_new_tokens=8)) for one in (tiles, clip)]
    assert ids[0] == ids[1]


def test_the_embeddings_are_on_the_host_and_own_their_bytes(make_driver: MakeDriver, llava: Checkpoint) -> None:
    driver = make_driver(llava)
    tensor = embeddings_of(driver, "bytes", llava_picture("bytes"))
    stored = driver.engine._vision_cache.get(llava_picture("bytes").digest)
    before = array_of(tensor).copy()
    with torch.inference_mode():
        stored.zero_()
    np.testing.assert_array_equal(array_of(tensor), before)
