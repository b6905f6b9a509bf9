"""The check at load that our way through a model gives what the model's own forward gives. Knows no requests.

What a family does beyond its row of the table (a head with a scale of its own, embeddings that its forward changes,
attention of another kind) would be served with wrong answers and no error; it shows on a dozen tokens of text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.core.image_mask import ImageMask
from fanlight_engine.errors import CheckpointError
from fanlight_engine.model.adapter import ModelAdapter
from fanlight_engine.model.attention.interface import AttentionBackend, PagedBatch, Segment
from fanlight_engine.model.kv_cache import PagedKeyValueCache

_TOKENS = 12
_OWN_ATTENTION = "eager"
"""The one implementation that every decoder has."""


@torch.inference_mode()
def check_agreement(
    model: PreTrainedModel, adapter: ModelAdapter, backend: AttentionBackend, checkpoint: Checkpoint, page_size: int
) -> None:
    """Raise CheckpointError unless embeddings, decoder and head agree with the model's own forward on a short text.

    `page_size` is that of the cache which will be served from: backends have kernels of their own for each.
    """
    ids = _text_ids(checkpoint, adapter)
    try:
        own_hidden, own_logits = _own_forward(model, ids)
        hidden = _hidden_states(adapter, backend, ids, page_size)
        logits = adapter.logits(own_hidden)
    except Exception as error:  # foreign model code, asked for what it may not have
        raise _refusal(checkpoint, f"running it on {_TOKENS} tokens fails: {error}") from error
    epsilon = torch.finfo(adapter.dtype).eps
    of_head = ((logits - own_logits).abs().max() / own_logits.abs().max()).item()
    if not of_head <= max(1e-4, 4 * epsilon):
        raise _refusal(checkpoint, f"its own logits differ from those of its head by {of_head:.2g} of the largest one")
    # The median, because in half precision a near tie may send some token to other experts.
    of_decoder = ((hidden - own_hidden).float().norm(dim=-1) / own_hidden.float().norm(dim=-1)).median().item()
    if not of_decoder <= max(1e-3, 16 * epsilon):
        raise _refusal(checkpoint, f"its own hidden states differ from those of its decoder by {of_decoder:.2g}")


def _refusal(checkpoint: Checkpoint, why: str) -> CheckpointError:
    family = checkpoint.family.model_type
    return CheckpointError(f"{checkpoint.path.name} ({family}) needs more than the family table says: {why}")


def _text_ids(checkpoint: Checkpoint, adapter: ModelAdapter) -> torch.Tensor:
    """[_TOKENS] ids that have no meaning of their own: none that the configuration names, for pictures or else."""
    configs = (checkpoint.config.to_dict(), checkpoint.config.get_text_config().to_dict())
    named = {value for one in configs for name, value in one.items() if "token_i" in name and isinstance(value, int)}
    drawn = np.random.default_rng(0).permutation(min(checkpoint.vocab_size, adapter.vocab_size))[: _TOKENS + len(named)]
    return torch.tensor([one for one in drawn.tolist() if one not in named][:_TOKENS], device=adapter.device)


def _own_forward(model: PreTrainedModel, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's own last hidden states [n, hidden] and float32 logits [n, vocab]."""
    seen: list[torch.Tensor] = []
    decoder: Any = model.get_decoder()
    hook = decoder.register_forward_hook(lambda module, given, output: seen.append(output.last_hidden_state[0]))
    try:
        with _with_own_attention(model):
            logits = model(input_ids=ids[None], use_cache=False).logits[0]
    finally:
        hook.remove()
    return seen[0], logits.float()


@contextmanager
def _with_own_attention(model: PreTrainedModel) -> Iterator[None]:
    """transformers' own attention in the decoder, and masks to match; the tower keeps what it has."""
    config, of_decoder = model.config, model.get_decoder().config
    before = config._attn_implementation, of_decoder._attn_implementation
    try:
        _set_attention(config, of_decoder, (_OWN_ATTENTION, _OWN_ATTENTION))
        yield
    finally:
        _set_attention(config, of_decoder, before)


def _set_attention(config: Any, of_decoder: Any, names: tuple[Any, Any]) -> None:
    config._attn_implementation = {"": names[0]}  # of this configuration alone, none below it
    of_decoder._attn_implementation = names[1]


def _hidden_states(adapter: ModelAdapter, backend: AttentionBackend, ids: torch.Tensor, page_size: int) -> torch.Tensor:
    """Last hidden states [n, hidden] by our way: one sequence, on the pages behind the dummy."""
    count, device = len(ids), ids.device
    pages = -(-count // page_size)
    positions = adapter.prompt_positions(ids.tolist(), ImageMask((), (), count), ())
    batch = PagedBatch(
        cache=PagedKeyValueCache(adapter.key_value_shape, 1 + pages, page_size, device),
        backend=backend,
        slots=torch.arange(page_size, page_size + count, device=device),
        page_tables=torch.arange(1, 1 + pages, dtype=torch.int32, device=device)[None],
        context_lengths=torch.tensor([count], dtype=torch.int32, device=device),
        decode_rows=0,
        prefill_segments=(Segment(0, count, count),),
    )
    return adapter.decode(adapter.embed(ids), torch.from_numpy(positions.copy()).to(device), batch)
