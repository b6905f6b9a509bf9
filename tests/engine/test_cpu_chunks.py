"""Chunks of prompts whose attention is computed by tiles, 16 queries at once, give what the modules give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from fanlight_engine.checkpoints.checkpoint import read_checkpoint
from fanlight_engine.model.adapter import ModelAdapter
from fanlight_engine.model.attention.interface import PagedBatch, Segment
from fanlight_engine.model.cpu.library import Kind, kernels_for
from fanlight_engine.model.cpu.observation import Observation, scratch_step
from fanlight_engine.model.cpu.proof import fused_decoder
from fanlight_engine.model.loading.loader import load_model
from tests.engine.cpu_kernels import kernels_of

SHAPE: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
MODELS: dict[str, tuple[type[PreTrainedModel], Any]] = {
    "heads of 64": (LlamaForCausalLM, LlamaConfig(**SHAPE, num_attention_heads=6, head_dim=64)),
    "heads of 96": (LlamaForCausalLM, LlamaConfig(**SHAPE, num_attention_heads=2, head_dim=96)),
    "heads of 256": (LlamaForCausalLM, LlamaConfig(**SHAPE, num_attention_heads=4, head_dim=256)),
    "window of 100, soft cap": (
        Gemma2ForCausalLM,
        Gemma2Config(**SHAPE, num_attention_heads=4, head_dim=64, sliding_window=100, query_pre_attn_scalar=64),
    ),
}
CHUNKS = (((40,), 40), ((7, 300, 1, 330), 70), ((5, 700), 25), ((600,), 300), ((3, 9, 520), 17))
"""Contexts, the last of which ends in a chunk of so many tokens."""


@pytest.fixture
def adapter(request: pytest.FixtureRequest, tmp_path: Path) -> ModelAdapter:
    kernels_of("AMX", torch.bfloat16, Kind.TILE)  # skips where there are none
    torch.manual_seed(0)
    model_class, config = MODELS[request.param]
    model: Any = model_class(config)
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    return ModelAdapter(load_model(checkpoint, torch.device("cpu"), torch.bfloat16), checkpoint)


def spans_in(step: Observation, chunk: int, context: int) -> PagedBatch:
    """The chunk as two, and positions in the second that see each other."""
    batch, half = step.batch, chunk // 2
    span = (context - half + 2, context - 3)
    return PagedBatch(
        cache=batch.cache,
        backend=batch.backend,
        slots=batch.slots,
        page_tables=torch.cat((batch.page_tables, batch.page_tables[-1:])),
        context_lengths=torch.cat((batch.context_lengths[:-1], torch.tensor([context - half, context]))).to(
            torch.int32
        ),
        decode_rows=batch.decode_rows,
        prefill_segments=(
            Segment(batch.decode_rows, chunk - half, context - half),
            Segment(batch.decode_rows + chunk - half, half, context, (span,)),
        ),
    )


@torch.inference_mode()
@pytest.mark.parametrize("adapter", MODELS, indirect=True)
def test_chunks_by_tiles_equal_the_modules(adapter: ModelAdapter) -> None:
    """Beyond a part of the keys, beside decode rows, with windows, and with positions that see each other."""
    kernels = kernels_for(torch.bfloat16)
    sizes = adapter.key_value_shape, adapter.position_rows
    decoder = fused_decoder(adapter._decoder, adapter._head, adapter._by_modules, *sizes, kernels)
    for contexts, chunk in CHUNKS:
        step = scratch_step(adapter.key_value_shape, adapter.vocab_size, 1, 500, contexts, chunk)
        embeddings = adapter.embed(step.ids)
        for batch in (step.batch, spans_in(step, chunk, contexts[-1])):
            assert decoder.pays(batch)
            theirs = adapter._by_modules.decode(embeddings, step.positions, batch).float()
            ours = decoder.decode(embeddings, step.positions, batch).float()
            differences = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)
            assert differences.max().item() < 0.03, (contexts, chunk)
