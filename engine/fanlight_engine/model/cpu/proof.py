"""Makes a decoder fused, if its modules are recognised and the kernels give what the modules give: proven at load."""

from __future__ import annotations

from typing import Any

import torch

from fanlight_engine.model.cpu.alignment import align_weights
from fanlight_engine.model.cpu.facts import Unrecognised
from fanlight_engine.model.cpu.fused_decoder import FusedDecoder
from fanlight_engine.model.cpu.library import Kernels
from fanlight_engine.model.cpu.observation import Forward, Observation, observe, scratch_step
from fanlight_engine.model.cpu.recognition import recognise
from fanlight_engine.model.head import Head
from fanlight_engine.model.kv_cache import KeyValueShape

_CHUNK, _CHUNK_CONTEXTS = 9, (7, 30)
"""A chunk that begins inside its context, beside a decode row."""


@torch.inference_mode()
def fused_decoder(
    decoder: Any, head: Head, forward: Forward, shape: KeyValueShape, position_rows: int, kernels: Kernels
) -> FusedDecoder:
    """The decoder computed by the kernels, proven equal to `forward`, which computes it with its own modules.

    Raises Unrecognised, which says why there is none.
    """
    if any(module._forward_hooks or module._forward_pre_hooks for module in decoder.modules()):
        raise Unrecognised("something is hooked into its modules")
    if not hasattr(decoder, "rotary_emb") or not hasattr(decoder, "layers"):
        raise Unrecognised("it has no layers, or no rotary embeddings before them")
    align_weights([*decoder.parameters(), *head.projection.parameters()])
    vocabulary = min(head.vocab_size, decoder.get_input_embeddings().weight.shape[0])
    sizes = (shape, vocabulary, position_rows, decoder.config.max_position_embeddings)
    seen = scratch_step(*sizes)
    before = _copies(seen)
    observe(decoder, forward, seen)
    fused = FusedDecoder(recognise(decoder, head, seen, shape.kv_heads, shape.head_dim), kernels)
    written = _copies(seen, before)
    logits = fused.decode_rows(seen.ids, seen.positions, seen.batch)
    _refuse_differences(seen, {"logits": (logits, seen.logits)}, written)
    _prove_chunks(fused, forward, scratch_step(*sizes, contexts=_CHUNK_CONTEXTS, last_chunk=_CHUNK))
    return fused


def _prove_chunks(fused: FusedDecoder, forward: Forward, seen: Observation) -> None:
    before = _copies(seen)
    states = seen.decode(forward, seen.batch)
    written = _copies(seen, before)
    ours = fused.decode(forward.embed(seen.ids), seen.positions, seen.batch)
    logits = (fused.logits(ours), forward.logits(states))
    _refuse_differences(seen, {"hidden states of a chunk": (ours, states), "logits of a chunk": logits}, written)


def _copies(seen: Observation, back_to: list[torch.Tensor] | None = None) -> list[torch.Tensor]:
    """What stands in the pages; these are set back then, where that is asked."""
    copies = [side.clone() for side in seen.batch.cache.sides]
    for side, before in zip(seen.batch.cache.sides, back_to or copies, strict=True):
        side.copy_(before)
    return copies


def _refuse_differences(
    seen: Observation, results: dict[str, tuple[torch.Tensor, torch.Tensor]], written: list[torch.Tensor]
) -> None:
    """Raise Unrecognised unless ours equal theirs, and the pages what was written, but for rounding."""
    pairs = dict(results)
    pairs |= {name: both for name, *both in zip(("keys", "values"), seen.batch.cache.sides, written, strict=True)}
    for name, (ours, theirs) in pairs.items():
        bound = max(1e-4, 16 * torch.finfo(written[0].dtype).eps)
        difference = ours.float() - theirs.float()
        relative = (difference.norm(dim=-1) / theirs.float().norm(dim=-1).clamp_min(1e-30)).max().item()
        if not relative <= bound:
            raise Unrecognised(f"computed by the kernels its {name} differ by {relative:.2g}, more than {bound:.2g}")
