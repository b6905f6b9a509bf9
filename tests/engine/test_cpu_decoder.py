"""A decoder in one call gives what its modules give; one that is not recognised, or differs, is left as it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.model.adapter import ModelAdapter
from fanlight_engine.model.attention.interface import PagedBatch, Segment
from fanlight_engine.model.cpu.build import CannotBuild
from fanlight_engine.model.cpu.facts import Unrecognised
from fanlight_engine.model.cpu.fused_decoder import FusedDecoder
from fanlight_engine.model.cpu.library import kernels_for
from fanlight_engine.model.cpu.observation import Observation, scratch_step
from fanlight_engine.model.cpu.proof import fused_decoder
from fanlight_engine.model.loading.loader import load_model
from tests.engine.cpu_kernels import torch_threads

CPU = torch.device("cpu")
FUSED = (
    "llama",
    "qwen2_5_vl",
    "fanlight-tiny",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "phi3_longrope",
    "smollm3",
    "granite",
    "olmo2",
    "glm4",
    "cohere2",
)
NOT_FUSED = {"qwen3_moe": "its MLP holds experts", "ministral3": "are turned in a way that is not known"}
CONTEXTS = (3, 300, 17, 64, 1, 30)
SOME_CONTEXTS = (5, 40)


@pytest.fixture(autouse=True)
def _only_where_there_are_kernels() -> None:
    try:
        kernels_for(torch.float32)
    except CannotBuild as reason:
        pytest.skip(f"no kernels on this machine: {reason}")


def loaded(checkpoint: Checkpoint, dtype: torch.dtype) -> ModelAdapter:
    return ModelAdapter(load_model(checkpoint, CPU, dtype), checkpoint)


def fused(adapter: ModelAdapter, one_kind: bool = False) -> FusedDecoder:
    kernels = kernels_for(adapter.dtype, one_kind)
    sizes = adapter.key_value_shape, adapter.position_rows
    return fused_decoder(adapter._decoder, adapter._head, adapter._by_modules, *sizes, kernels)


def scratch(adapter: ModelAdapter, contexts: tuple[int, ...], last_chunk: int = 1) -> Observation:
    return scratch_step(adapter.key_value_shape, adapter.vocab_size, adapter.position_rows, 500, contexts, last_chunk)


def assert_close(ours: torch.Tensor, theirs: torch.Tensor, dtype: torch.dtype) -> None:
    relative = (ours.float() - theirs.float()).norm(dim=-1) / theirs.float().norm(dim=-1)
    assert relative.max().item() < (1e-5 if dtype is torch.float32 else 0.05)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FUSED)
def test_a_step_in_one_call_gives_what_the_modules_give(
    checkpoint_of: Callable[[str], Checkpoint], name: str, dtype: torch.dtype
) -> None:
    """Decode rows beyond every window, and a chunk beside them, on several threads."""
    adapter = loaded(checkpoint_of(name), dtype)
    decoder = fused(adapter)
    with torch_threads(3):
        rows = scratch(adapter, CONTEXTS)
        theirs = adapter._by_modules.logits(rows.decode(adapter._by_modules, rows.batch))
        assert_close(decoder.decode_rows(rows.ids, rows.positions, rows.batch), theirs, dtype)
        chunk = scratch(adapter, CONTEXTS, last_chunk=25)
        embeddings = adapter.embed(chunk.ids)
        states = adapter._by_modules.decode(embeddings, chunk.positions, chunk.batch)
        ours = decoder.decode(embeddings, chunk.positions, chunk.batch)
        assert_close(ours, states, dtype)
        assert_close(decoder.logits(ours), adapter._by_modules.logits(states), dtype)


@torch.inference_mode()
def test_features_of_media_are_added_behind_the_first_layers(checkpoint_of: Callable[[str], Checkpoint]) -> None:
    adapter = loaded(checkpoint_of("qwen3_vl"), torch.float32)
    decoder, step = fused(adapter), scratch(adapter, SOME_CONTEXTS, last_chunk=12)
    embeddings = adapter.embed(step.ids)
    features = [torch.randn(embeddings.shape, generator=torch.Generator().manual_seed(1)) for _ in range(2)]
    theirs = adapter._by_modules.decode(embeddings, step.positions, step.batch, features)
    ours = decoder.decode(embeddings, step.positions, step.batch, features)
    assert_close(ours, theirs, torch.float32)
    assert not torch.allclose(decoder.decode(embeddings, step.positions, step.batch), theirs, atol=1e-2)


@torch.inference_mode()
def test_positions_that_see_each_other_see_each_other(checkpoint_of: Callable[[str], Checkpoint]) -> None:
    adapter = loaded(checkpoint_of("gemma3"), torch.float32)
    decoder, step = fused(adapter), scratch(adapter, SOME_CONTEXTS, last_chunk=30)
    embeddings = adapter.embed(step.ids)
    for bounds in (False, True):
        batch = PagedBatch(
            cache=step.batch.cache,
            backend=step.batch.backend,
            slots=step.batch.slots,
            page_tables=step.batch.page_tables,
            context_lengths=step.batch.context_lengths,
            decode_rows=step.batch.decode_rows,
            prefill_segments=(Segment(step.batch.decode_rows, 30, SOME_CONTEXTS[-1], ((11, 39),)),),
            window_bounds_spans=bounds,
        )
        theirs = adapter._by_modules.decode(embeddings, step.positions, batch)
        assert_close(decoder.decode(embeddings, step.positions, batch), theirs, torch.float32)


@torch.inference_mode()
def test_a_step_is_the_same_on_more_threads_than_there_are_cores(checkpoint_of: Callable[[str], Checkpoint]) -> None:
    """So that threads lose their cores in the middle of it, and come back when the others are phases ahead."""
    adapter = loaded(checkpoint_of("llama"), torch.bfloat16)
    decoder, step = fused(adapter, one_kind=True), scratch(adapter, (9, 40, 300, 5, 33, 12))
    with torch_threads(1):
        expected = decoder.decode_rows(step.ids, step.positions, step.batch)
    with torch_threads(4 * len(os.sched_getaffinity(0)) + 1):
        for _ in range(40):
            assert torch.equal(decoder.decode_rows(step.ids, step.positions, step.batch), expected)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_with_one_kind_a_token_is_the_same_in_any_company_and_in_any_chunk(
    checkpoint_of: Callable[[str], Checkpoint], name: str, dtype: torch.dtype
) -> None:
    adapter = loaded(checkpoint_of(name), dtype)
    decoder, step = fused(adapter, one_kind=True), scratch(adapter, (9, 40, 300, 5, 33, 12))
    with torch_threads(3):
        together = decoder.decode_rows(step.ids, step.positions, step.batch)
    for row in range(len(step.ids)):
        one = slice(row, row + 1)
        alone = PagedBatch(
            cache=step.batch.cache,
            backend=step.batch.backend,
            slots=step.batch.slots[one],
            page_tables=step.batch.page_tables[one],
            context_lengths=step.batch.context_lengths[one],
            decode_rows=1,
        )
        ids, positions = step.ids[one], step.positions[:, one]
        assert torch.equal(decoder.decode_rows(ids, positions, alone)[0], together[row])
        states = decoder.decode(adapter.embed(ids), positions, alone)
        assert torch.equal(decoder.logits(states)[0], together[row])
    chunk = scratch(adapter, (40,), last_chunk=20)
    embeddings = adapter.embed(chunk.ids)
    whole = decoder.decode(embeddings, chunk.positions, chunk.batch)
    for begin, end in ((0, 7), (7, 8), (8, 20)):
        part = PagedBatch(
            cache=chunk.batch.cache,
            backend=chunk.batch.backend,
            slots=chunk.batch.slots[begin:end],
            page_tables=chunk.batch.page_tables,
            context_lengths=torch.tensor([20 + end], dtype=torch.int32),
            decode_rows=0,
            prefill_segments=(Segment(0, end - begin, 20 + end),),
        )
        assert torch.equal(decoder.decode(embeddings[begin:end], chunk.positions[:, begin:end], part), whole[begin:end])


@torch.inference_mode()
@pytest.mark.parametrize("name", NOT_FUSED)
def test_what_is_not_recognised_is_left_as_it_is_and_said(
    checkpoint_of: Callable[[str], Checkpoint], name: str
) -> None:
    adapter = loaded(checkpoint_of(name), torch.bfloat16)
    step = scratch(adapter, SOME_CONTEXTS)
    before = adapter.decode_rows(step.ids, step.positions, step.batch)
    lines: list[str] = []
    adapter.use_cpu_kernels(lines.append)
    assert NOT_FUSED[name] in lines[0]
    assert not adapter.has_cpu_kernels
    assert_close(adapter.decode_rows(step.ids, step.positions, step.batch), before, torch.bfloat16)


class Louder(torch.nn.Module):
    """An activation that is none of the known ones."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return 1.1 * torch.nn.functional.silu(inputs)


def hook(decoder: Any) -> None:
    decoder.layers[1].mlp.register_forward_hook(lambda module, given, output: output)


def activate_otherwise(decoder: Any) -> None:
    decoder.layers[1].mlp.act_fn = Louder()


def keep_something_besides(decoder: Any) -> None:
    decoder.layers[1].self_attn.sinks = torch.nn.Parameter(torch.zeros(4))


def hold_another_module(decoder: Any) -> None:
    decoder.layers[0].gate = torch.nn.Linear(2, 2)


def normalise_otherwise(decoder: Any) -> None:
    decoder.norm = torch.nn.Softmax(-1)


def add_otherwise(decoder: Any) -> None:
    """No module says it: only what comes out."""
    layer, forward = decoder.layers[1], decoder.layers[1].forward
    layer.forward = lambda hidden, **others: forward(hidden, **others) + 0.3 * hidden


def look_far_back_otherwise(decoder: Any) -> None:
    """Only positions far from the beginning show it."""
    rotary, forward = decoder.rotary_emb, decoder.rotary_emb.forward
    attention = decoder.layers[0].self_attn
    project = attention.o_proj.forward
    far: list[torch.Tensor] = []

    def watch(hidden: torch.Tensor, position_ids: torch.Tensor) -> Any:
        far[:] = [(position_ids[0, :, None] > 100).to(hidden.dtype)]
        return forward(hidden, position_ids)

    rotary.forward = watch
    attention.o_proj.forward = lambda heads: project(heads) * (1 + far[0])


@torch.inference_mode()
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (hook, "something is hooked into its modules"),
        (activate_otherwise, "its activation Louder is neither"),
        (keep_something_besides, r"it has layers\.1\.self_attn\.sinks"),
        (hold_another_module, "its layers hold gate"),
        (normalise_otherwise, "its Softmax is no norm"),
        (add_otherwise, "computed by the kernels its logits differ"),
        (look_far_back_otherwise, "computed by the kernels its logits differ"),
    ],
)
def test_a_decoder_that_does_something_else_is_never_fused(
    llama: Checkpoint, change: Callable[[Any], None], why: str
) -> None:
    adapter = loaded(llama, torch.float32)
    change(adapter._decoder)
    with pytest.raises(Unrecognised, match=why):
        fused(adapter)


@torch.inference_mode()
def test_an_id_without_an_embedding_is_refused_before_anything_is_computed(llama: Checkpoint) -> None:
    adapter = loaded(llama, torch.float32)
    decoder, step = fused(adapter), scratch(adapter, SOME_CONTEXTS)
    pages = [side.clone() for side in step.batch.cache.sides]
    step.ids[1] = adapter.vocab_size
    with pytest.raises(IndexError, match="row 1 has an id outside"):
        decoder.decode_rows(step.ids, step.positions, step.batch)
    assert all(torch.equal(side, before) for side, before in zip(step.batch.cache.sides, pages, strict=True))


@torch.inference_mode()
def test_logits_are_written_where_they_are_asked(llama: Checkpoint) -> None:
    adapter = loaded(llama, torch.float32)
    adapter.use_cpu_kernels()
    assert adapter.has_cpu_kernels
    step = scratch(adapter, SOME_CONTEXTS)
    place = torch.full((4, adapter.vocab_size), 7.0)
    out = adapter.decode_rows(step.ids, step.positions, step.batch, out=place[1:3])
    assert out.data_ptr() == place[1].data_ptr()
    assert torch.equal(place[1:3], adapter.decode_rows(step.ids, step.positions, step.batch))
    assert bool((place[[0, 3]] == 7.0).all())


@torch.inference_mode()
def test_rows_that_take_adapters_go_through_the_modules(llama: Checkpoint) -> None:
    adapter = loaded(llama, torch.float32)
    adapter.use_cpu_kernels()
    step = scratch(adapter, SOME_CONTEXTS)
    asked: list[int] = []
    decoder: Any = adapter._decoder
    decoder.layers[0].register_forward_hook(lambda module, given, output: asked.append(1))
    adapter.decode_rows(step.ids, step.positions, step.batch)
    assert not asked
    with adapter.taking_loras(torch.tensor([1, 0])):
        adapter.decode_rows(step.ids, step.positions, step.batch)
    assert asked
