"""What the core promises its callers about ends, refusals and failures, on real checkpoints stepped by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.core.messages import (
    Admitted,
    Completed,
    FromCore,
    Generated,
    MediaInput,
    Prefilled,
    Progressed,
    Rejected,
)
from fanlight_engine.core.scheduler import Plan
from fanlight_engine.errors import Reason
from fanlight_engine.model.runner import Launched
from fanlight_engine.request import FinishReason
from tests.engine.answers import MakeDriver, answer, assert_rejected, end_of
from tests.engine.builders import llava_picture, picture, qwen_picture, request, words
from tests.engine.driver import Driver


class TestAbort:
    """Aborting frees everything, wherever the request is."""

    @pytest.mark.parametrize("state", ["waiting", "mid_prefill", "mid_image", "decoding", "preempted"])
    def test_frees_everything_and_leaves_the_neighbour_alone(
        self, state: str, make_driver: MakeDriver, llava: Checkpoint
    ) -> None:
        driver = make_driver(llava, kv_pages=7, context_length=96, max_step_tokens=16, max_running_requests=4)
        elder = request(f"elder-{state}", words(20, seed=8), max_new_tokens=44)
        alone = answer(driver, elder)
        driver.add(elder)
        driver.add(request("victim", words(24, seed=3), llava_picture("v"), words(4), max_new_tokens=40))
        victim = driver.engine._sequences["victim"]
        reached: Callable[[], bool] = {
            "waiting": lambda: True,
            "mid_prefill": lambda: 0 < victim.computed < 24,
            "mid_image": lambda: 24 < victim.computed < 24 + 16,
            "decoding": lambda: victim.generated > 2,
            "preempted": lambda: victim.preemptions > 0,
        }[state]
        for _ in range(120):
            if reached():
                break
            driver.step()
        assert reached()
        assert bool(victim.pinned) == (state == "mid_image")
        driver.engine.abort("victim")
        driver.engine.check_integrity()
        assert not victim.pages
        assert not victim.pinned
        driver.run()
        assert driver.answers[elder.request_id].ids == alone
        assert driver.answers["victim"].end is None, "an aborted request is not answered"

    def test_of_an_unknown_or_finished_request_is_ignored(self, make_driver: MakeDriver, llama: Checkpoint) -> None:
        driver = make_driver(llama)
        answer(driver, request("done", words(4)))
        driver.engine.abort("done")
        driver.engine.abort("never heard of")

    def test_lets_the_id_be_used_again_at_once(self, make_driver: MakeDriver, llama: Checkpoint) -> None:
        driver = make_driver(llama)
        driver.add(request("id", words(30), max_new_tokens=50))
        driver.step()
        driver.engine.abort("id")
        assert answer(driver, request("id", words(4))) == answer(driver, request("other", words(4)))


class TestRefusal:
    """What cannot be served is refused by reason, and nothing of it is kept."""

    def test_of_an_id_that_is_in_use(self, make_driver: MakeDriver, llama: Checkpoint) -> None:
        driver = make_driver(llama)
        alone = answer(driver, request("id", words(9), max_new_tokens=6))
        driver.add(request("id", words(9), max_new_tokens=6))
        assert_rejected(driver.engine.add(request("id", words(5))), Reason.REQUEST_ID_IN_USE, "request_id")
        driver.run()
        assert driver.answers["id"].ids == alone

    @pytest.mark.parametrize(("prompt", "new"), [(500, 13), (512, 1), (4000, 1), (1, 512)])
    def test_of_what_does_not_fit_the_context(
        self, prompt: int, new: int, make_driver: MakeDriver, llama: Checkpoint
    ) -> None:
        driver = make_driver(llama)
        said = driver.add(request("long", words(prompt), max_new_tokens=new))
        assert f"{prompt} prompt tokens" in assert_rejected(said, Reason.PROMPT_TOO_LONG).description

    def test_of_an_empty_prompt(self, make_driver: MakeDriver, llama: Checkpoint) -> None:
        assert_rejected(make_driver(llama).add(request("empty")), Reason.EMPTY_PROMPT)

    @pytest.mark.parametrize("rows", [15, 17])
    def test_of_a_mask_that_does_not_match_the_images(
        self, rows: int, make_driver: MakeDriver, llava: Checkpoint
    ) -> None:
        driver = make_driver(llava)
        asked = request("mask", words(3), llava_picture("a"), words(3))
        image = msgspec.structs.replace(asked.media[0], embedding_rows=rows)
        said = driver.add(msgspec.structs.replace(asked, media=(image,)))
        assert "16 image positions" in assert_rejected(said, Reason.IMAGE_COUNT_MISMATCH).description

    def test_of_an_image_larger_than_the_whole_vision_cache(self, make_driver: MakeDriver, llava: Checkpoint) -> None:
        driver = make_driver(llava, vision_cache_bytes=16 * 64 * 4)
        assert answer(driver, request("exact", llava_picture("a"), words(3)))
        said = driver.add(request("large", picture("large", 17), words(3)))
        assert "17 embeddings" in assert_rejected(said, Reason.IMAGE_TOO_LARGE).description

    def test_of_a_token_id_outside_the_vocabulary_before_it_can_spoil_a_step(
        self, make_driver: MakeDriver, llama: Checkpoint
    ) -> None:
        driver = make_driver(llama)
        for wrong in (-1, llama.vocab_size, 2**40):
            said = driver.add(request("outside", [3, wrong, 4]))
            assert str(wrong) in assert_rejected(said, Reason.INVALID_ARGUMENT).description

    def test_of_touching_images_where_positions_could_not_tell_them_apart(
        self, make_driver: MakeDriver, qwen: Checkpoint
    ) -> None:
        said = make_driver(qwen).add(request("touching", [3], qwen_picture("a"), qwen_picture("b"), [4]))
        assert (
            "media 0 and 1 are both a picture and touch" in assert_rejected(said, Reason.INVALID_ARGUMENT).description
        )

    @pytest.mark.parametrize(
        ("grid", "reason", "why"),
        [
            (None, Reason.INVALID_ARGUMENT, "picture 0 comes without its grid"),
            ((1, 3, 4), Reason.INVALID_ARGUMENT, "multiples of 2"),
            ((0, 4, 4), Reason.INVALID_ARGUMENT, "at least 1"),
            ((1, 8, 8), Reason.IMAGE_COUNT_MISMATCH, "make 16 embeddings, and takes 4 positions"),
        ],
    )
    def test_of_a_grid_that_positions_cannot_be_made_from(
        self, grid: tuple[int, int, int] | None, reason: Reason, why: str, make_driver: MakeDriver, qwen: Checkpoint
    ) -> None:
        asked = request("grid", words(3), qwen_picture("a"), words(3))
        medium = msgspec.structs.replace(asked.media[0], grid=grid)
        said = make_driver(qwen).add(msgspec.structs.replace(asked, media=(medium,)))
        assert why in assert_rejected(said, reason).description

    def test_of_more_waiting_requests_than_configured(self, make_driver: MakeDriver, llama: Checkpoint) -> None:
        driver = make_driver(llama, max_running_requests=1, max_waiting_requests=2)
        said = [driver.add(request(str(number), words(3))) for number in range(3)]
        assert [type(one) for one in said] == [Admitted, Admitted, Rejected]
        assert assert_rejected(said[2], Reason.OVERLOADED, "").retry_after > 0
        driver.step()
        assert isinstance(driver.add(request("2", words(3))), Admitted), "there is room once the head runs"

    def test_of_more_ids_to_hold_back_than_a_row_has_room_for(self, make_driver: MakeDriver, llama: Checkpoint) -> None:
        said = make_driver(llama).add(request("many", words(3), min_new_tokens=1, stop_token_ids=tuple(range(65))))
        assert_rejected(said, Reason.SAMPLING_OUT_OF_RANGE, "config.sampling.min_new_tokens")


class TestFailure:
    """What fails takes only those along that it belongs to."""

    def test_a_tower_with_the_wrong_number_of_rows_fails_its_request_alone(
        self, make_driver: MakeDriver, llava: Checkpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver = make_driver(llava)
        neighbours = [request(f"n{number}", llava_picture(f"good {number}"), words(5)) for number in range(2)]
        alone = [answer(driver, one) for one in neighbours]
        victim = request("victim", words(2), llava_picture("bad"), words(2))
        _shorten_embedding_of(driver, victim.media[0].digest, monkeypatch)
        shown = [
            request(f"again {one.request_id}", llava_picture(f"new {one.request_id}"), words(5)) for one in neighbours
        ]
        for one in (neighbours[0], victim, *shown, neighbours[1]):
            driver.add(one)
        driver.run()
        rejected = assert_rejected(driver.answers["victim"].end, Reason.IMAGE_COUNT_MISMATCH)
        assert "shape (15, 64) for a picture that needs (16, 64)" in rejected.description
        assert [driver.answers[one.request_id].ids for one in neighbours] == alone
        assert all(end_of(driver, one.request_id) for one in shown), "also those encoded in the same batch"
        assert victim.media[0].digest not in driver.engine._vision_cache

    def test_a_request_that_breaks_a_step_costs_its_neighbours_nothing(
        self, make_driver: MakeDriver, llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver = make_driver(llama)
        asked = [request(f"neighbour {number}", words(6, seed=number), max_new_tokens=9) for number in range(3)]
        alone = [answer(driver, one) for one in asked]
        launch = driver.engine._runner.launch

        def fail_on_the_victim(plan: Plan, after: Launched | None = None) -> Launched:
            if any(chunk.sequence.id == "victim" and chunk.sequence.generated == 2 for chunk in plan.chunks):
                raise RuntimeError("a kernel failed")
            return launch(plan, after)

        monkeypatch.setattr(driver.engine._runner, "launch", fail_on_the_victim)
        for one in (request("victim", words(6), max_new_tokens=9), *asked):
            driver.add(one)
        driver.run()
        assert_rejected(driver.answers["victim"].end, Reason.ENGINE_FAILURE, "")
        assert [driver.answers[one.request_id].ids for one in asked] == alone

    @pytest.mark.parametrize("error", [RuntimeError, ValueError])
    def test_a_step_that_raises_fails_its_requests_and_the_core_serves_on(
        self, error: type[Exception], make_driver: MakeDriver, llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver = make_driver(llama)
        expected = answer(driver, request("before", words(6)))

        def fail(plan: Plan, after: Launched | None = None) -> None:
            raise error("secret of the device")

        for name in ("one", "two"):
            driver.add(request(name, words(6), max_new_tokens=9))
        driver.step()
        with monkeypatch.context() as broken:
            broken.setattr(driver.engine._runner, "launch", fail)
            driver.step()
        for name in ("one", "two"):
            rejected = assert_rejected(driver.answers[name].end, Reason.ENGINE_FAILURE, "")
            assert "secret" not in rejected.description
        driver.engine.check_integrity()
        assert not driver.engine.has_work
        assert answer(driver, request("after", words(6))) == expected


def _shorten_embedding_of(driver: Driver, digest: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the vision tower yield a row too few whenever that image is among those encoded."""
    model = driver.engine._runner._adapter._model.model
    features, encode = model.get_image_features, driver.engine._runner._adapter.encode

    def watched(media: list[MediaInput]) -> list[torch.Tensor]:
        def shortened(**arguments: torch.Tensor) -> Any:
            output = features(**arguments)
            output.pooler_output = [
                rows[:-1] if medium.digest == digest else rows
                for medium, rows in zip(media, output.pooler_output, strict=True)
            ]
            return output

        with monkeypatch.context() as patched:
            patched.setattr(model, "get_image_features", shortened)
            return encode(media)

    monkeypatch.setattr(driver.engine._runner._adapter, "encode", watched)


class TestEnding:
    """Answers end where they should, and say why."""

    def test_at_an_end_or_stop_id_which_is_part_of_the_answer(self, make_driver: MakeDriver, llama: Checkpoint) -> None:
        driver = make_driver(llama)
        free = answer(driver, request("free", words(8), max_new_tokens=10))
        assert end_of(driver, "free").reason is FinishReason.LENGTH
        assert len(free) == 10
        stop = free[4]
        expected = free[: free.index(stop) + 1]
        endings: dict[str, dict[str, Any]] = {"end": {"end_ids": (stop,)}, "stop": {"stop_token_ids": (1, stop)}}
        for name, ending in endings.items():
            assert answer(driver, request(name, words(8), max_new_tokens=10, **ending)) == expected
            assert end_of(driver, name).reason is FinishReason.STOP

    def test_not_before_min_new_tokens(self, make_driver: MakeDriver, llama: Checkpoint) -> None:
        driver = make_driver(llama)
        free = answer(driver, request("free", words(8), max_new_tokens=12))
        for least in (1, 5, 12):
            asked = request("held", words(8), max_new_tokens=12, min_new_tokens=least, end_ids=tuple(set(free)))
            held = answer(driver, asked)
            assert len(held) >= least
            assert not set(held[:least]) & set(free), "end ids are not even drawn before"

    def test_at_the_contexts_end_when_the_length_was_clamped_to_it(
        self, make_driver: MakeDriver, llama: Checkpoint
    ) -> None:
        driver = make_driver(llama)
        ids = answer(driver, request("rest", words(500), max_new_tokens=12, context_limited=True))
        assert end_of(driver, "rest").reason is FinishReason.CONTEXT_FULL
        assert len(ids) == 12

    def test_with_logprobs_only_where_asked(self, make_driver: MakeDriver, llama: Checkpoint) -> None:
        driver = make_driver(llama)
        driver.add(request("asked", words(8), logprobs=True, max_new_tokens=5))
        driver.add(request("silent", words(8, seed=1), max_new_tokens=5))
        driver.run()
        assert len(driver.answers["asked"].logprobs) == 5
        assert all(-20 < one <= 0 for one in driver.answers["asked"].logprobs)
        assert driver.answers["silent"].logprobs == []


def test_a_long_prompt_tells_how_far_it_is_then_once_what_it_took_then_its_tokens(
    make_driver: MakeDriver, llava: Checkpoint
) -> None:
    engine = make_driver(llava, kv_pages=7, context_length=96, max_step_tokens=16, max_running_requests=4).engine
    engine.add(request("long", words(20, seed=31), llava_picture("told"), words(4), max_new_tokens=3))
    said: list[FromCore] = []
    while engine.has_work:
        said.extend(engine.step())
    progress = [(one.prefill_tokens_done, one.media_encoded) for one in said if isinstance(one, Progressed)]
    assert progress == [(16, 0), (32, 1)]
    assert [type(one) for one in said[2:]] == [Prefilled, Generated, Generated, Generated, Completed]
