"""Features of pictures and clips reach the first decoder layers: where the medium stands, nowhere else, and without a
look at the host."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.core.messages import EMBEDDINGS, Encoded, EncodeRequest
from fanlight_engine.core.scheduler import Chunk
from fanlight_engine.errors import CheckpointError
from fanlight_engine.model.injection import ImageInjector
from fanlight_engine.model.layer_features import add_without_mask
from fanlight_engine.model.loading.loader import load_model
from fanlight_engine.model.tensors import data_of, tensor_of
from fanlight_engine.model.vision_cache import VisionCache
from fanlight_engine.model.vision_tower import VisionTower
from tests.engine.answers import MakeDriver, answer
from tests.engine.builders import embedded, picture, qwen_clip, qwen_picture, request, sequence, words
from tests.engine.capture_guard import CaptureGuard
from tests.engine.driver import Driver, request_for
from tests.engine.reference import Reference

HIDDEN, LAYERS = 64, 2
"""Of the Qwen3-VL checkpoint."""


def watch_decoder(driver: Driver, run: Any) -> None:
    """Let `run(decode, layer_features)` be what a step calls its decoder by."""
    adapter: Any = driver.engine._runner._adapter
    decode = adapter.decode

    def watched(*arguments: Any, layer_features: Sequence[torch.Tensor] = ()) -> torch.Tensor:
        return run(lambda: decode(*arguments, layer_features=layer_features), layer_features)

    adapter.decode = watched


class TestTower:
    """A row of an embedding is the hidden state, and behind it the features of each layer."""

    def test_rows_are_those_of_transformers_whatever_stands_beside_them(self, qwen3_vl: Checkpoint) -> None:
        model: Any = load_model(qwen3_vl, torch.device("cpu"), torch.float32)
        media = [qwen_picture("wide", 4, 12), qwen_clip("long", 3, 6, 4), qwen_picture("small", 2, 2)]
        with torch.inference_mode():
            encoded = VisionTower(model, qwen3_vl).encode(media)
            for medium, ours in zip(media, encoded, strict=True):
                pixels, grid = (tensor_of(tensor) for tensor in medium.tensors.values())
                theirs = model.model.get_image_features(pixels, grid)
                expected = [theirs.pooler_output[0], *(layer[0] for layer in theirs.deepstack_features)]
                assert ours.shape == (medium.embedding_rows, HIDDEN * (1 + LAYERS))
                torch.testing.assert_close(ours, torch.cat(expected, dim=1), rtol=1e-4, atol=1e-5)

    def test_room_for_embeddings_counts_all_of_a_row(self, make_driver: MakeDriver, qwen3_vl: Checkpoint) -> None:
        assert make_driver(qwen3_vl).engine.facts.embedding_row_bytes == 4 * HIDDEN * (1 + LAYERS)


class TestInjection:
    """Buffers at fixed addresses, zero wherever the step has text."""

    def test_features_stand_at_their_media_and_leave_nothing_behind(self) -> None:
        embedding = torch.arange(1, 37, dtype=torch.float32).reshape(3, 12)
        shown = picture("a", 3)
        cache: VisionCache[torch.Tensor] = VisionCache(1 << 20)
        cache.reserve(shown.digest, 144)
        cache.fill(shown.digest, embedding)
        adapter: Any = SimpleNamespace(
            hidden_size=4, embedding_width=12, dtype=torch.float32, device=torch.device("cpu")
        )
        injector = ImageInjector(adapter, cache, max_step_tokens=8)
        one = sequence("s", words(2), shown, words(2))
        whole, features = injector.inject(torch.full((7, 4), -1.0), [Chunk(one, 0, 7)])
        addresses = [one.data_ptr() for one in features]
        assert whole[:, 0].tolist() == [-1, -1, 1, 13, 25, -1, -1]
        assert [one[:, 0].tolist() for one in features] == [[0, 0, 5, 17, 29, 0, 0], [0, 0, 9, 21, 33, 0, 0]]
        _, features = injector.inject(torch.full((5, 4), -1.0), [Chunk(one, 3, 4)])
        assert [one[:, 3].tolist() for one in features] == [[20, 32, 0, 0, 0], [24, 36, 0, 0, 0]]
        assert [one.data_ptr() for one in features] == addresses


class TestSteps:
    """What of a step's work they are."""

    def test_nothing_is_read_on_the_host_to_add_them(self, make_driver: MakeDriver, qwen3_vl: Checkpoint) -> None:
        driver = make_driver(qwen3_vl, max_step_tokens=48, cpu_kernels=False)
        guarded: list[int] = []

        def run(decode: Any, layer_features: Sequence[torch.Tensor]) -> torch.Tensor:
            if not layer_features:
                return decode()
            guarded.append(len(layer_features))
            with CaptureGuard():
                return decode()

        watch_decoder(driver, run)
        answer(driver, request("r", words(20), qwen_picture("a", 8, 20), words(20)))
        assert guarded == [LAYERS, LAYERS]

    def test_steps_without_media_do_nothing_of_it(self, qwen3_vl_path: Any, make_driver: MakeDriver) -> None:
        reference = Reference(qwen3_vl_path)
        driver = make_driver(reference.checkpoint, max_step_tokens=32, cpu_kernels=False)  # they call no decoder
        given: list[int] = []

        def run(decode: Any, layer_features: Sequence[torch.Tensor]) -> torch.Tensor:
            given.append(len(layer_features))
            return decode()

        watch_decoder(driver, run)
        before = driver.engine.statistics()
        for kind in ("text", "three_images", "two_clips"):
            driver.add(request_for(reference.case(kind, random.Random(2), 1), 0, reference.checkpoint, new_tokens=4))
            driver.run()
        after = driver.engine.statistics()
        assert given.count(LAYERS) == after.image_steps - before.image_steps > 0
        assert given.count(0) == len(given) - given.count(LAYERS) > after.decode_steps - before.decode_steps > 0

    def test_embeddings_sent_back_give_the_same_answer_and_their_features_count(
        self, make_driver: MakeDriver, qwen3_vl: Checkpoint
    ) -> None:
        driver = make_driver(qwen3_vl)
        shown = qwen_picture("there and back", 6, 8)
        expected = answer(driver, request("pixels", words(4), shown, words(4), max_new_tokens=8, logprobs=True))
        driver.encode(EncodeRequest("encode", shown))
        driver.run()
        end = driver.answers["encode"].end
        assert isinstance(end, Encoded)
        wide = tensor_of(end.tensors[EMBEDDINGS])
        brought = embedded("whole", data_of(wide), shown.grid)
        assert answer(driver, request("back", words(4), brought, words(4), max_new_tokens=8, logprobs=True)) == expected
        wide[:, HIDDEN:] = 0
        flat = embedded("flat", data_of(wide), shown.grid)
        answer(driver, request("flat", words(4), flat, words(4), max_new_tokens=8, logprobs=True))
        logprobs = {name: driver.answers[name].logprobs[0] for name in ("pixels", "back", "flat")}
        assert logprobs["back"] == pytest.approx(logprobs["pixels"], abs=1e-6)
        assert abs(logprobs["flat"] - logprobs["pixels"]) > 1e-3


class TestDecoder:
    """One decoder adds without a mask; others, and whoever brings a mask, notice nothing."""

    def test_with_a_mask_it_adds_as_ever(self, qwen3_vl: Checkpoint) -> None:
        model: Any = load_model(qwen3_vl, torch.device("cpu"), torch.float32)
        decoder = model.get_decoder()
        hidden, features = torch.randn(1, 4, HIDDEN), torch.randn(2, HIDDEN)
        mask = torch.tensor([[False, True, True, False]])
        expected = decoder._deepstack_process(hidden, mask, features)
        of_class = type(decoder)._deepstack_process
        add_without_mask(decoder)
        torch.testing.assert_close(decoder._deepstack_process(hidden, mask, features), expected, rtol=0, atol=0)
        spread = torch.cat([torch.zeros(1, HIDDEN), features, torch.zeros(1, HIDDEN)])
        torch.testing.assert_close(decoder._deepstack_process(hidden, None, spread), expected, rtol=0, atol=0)
        assert type(decoder)._deepstack_process is of_class

    def test_that_cannot_add_features_is_refused(self, llama: Checkpoint) -> None:
        decoder = load_model(llama, torch.device("cpu"), torch.float32).get_decoder()
        with pytest.raises(CheckpointError, match="LlamaModel of the installed transformers cannot add features"):
            add_without_mask(decoder)
