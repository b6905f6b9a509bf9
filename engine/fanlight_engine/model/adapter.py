"""The seam to transformers: decoder, head, vision tower and positions of any supported checkpoint, as plain functions.

Knows the family table and tensors; knows nothing of batching, pages or requests beyond what a forward needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.checkpoints.families import Positions
from fanlight_engine.core.image_mask import ImageMask
from fanlight_engine.core.messages import MediaInput
from fanlight_engine.errors import CheckpointError
from fanlight_engine.model.attention.interface import PagedBatch
from fanlight_engine.model.cpu.build import CannotBuild
from fanlight_engine.model.cpu.facts import Unrecognised
from fanlight_engine.model.cpu.fused_decoder import FusedDecoder
from fanlight_engine.model.cpu.library import kernels_for
from fanlight_engine.model.cpu.linear import use_kernels_in_linears
from fanlight_engine.model.cpu.proof import fused_decoder
from fanlight_engine.model.head import Head
from fanlight_engine.model.kv_cache import KeyValueShape
from fanlight_engine.model.layer_features import add_without_mask, decoder_arguments
from fanlight_engine.model.lora.rows import LoraRows
from fanlight_engine.model.positions import rope_arguments, rope_positions
from fanlight_engine.model.vision_tower import VisionTower

Report = Callable[[str], None]


class ModelAdapter:
    """A loaded model as the runner sees it. T is the number of tokens of a packed step."""

    def __init__(self, model: PreTrainedModel, checkpoint: Checkpoint, lora_rows: LoraRows | None = None) -> None:
        """`lora_rows` is what the model's adapted modules look into; None where it has none."""
        decoder, projection = model.get_decoder(), model.get_output_embeddings()
        if decoder is None or projection is None:
            raise CheckpointError(f"{checkpoint.path.name} has no decoder with a language-model head")
        self._model = model
        self._decoder = decoder
        self._family = checkpoint.family
        has_scale = not self._family.leaves_out_logit_scale
        self._head = Head(projection, checkpoint.config.get_text_config(), has_scale)
        self._merge_size = _merge_size(checkpoint)
        self._has_loras = lora_rows is not None
        self._lora_rows = lora_rows or LoraRows()
        self._tower = VisionTower(model, checkpoint)
        self._fused: FusedDecoder | None = None
        self._fuses_all = False
        if self._family.adds_features_to_layers:
            add_without_mask(decoder)
        self.device = model.device
        self.dtype = model.dtype
        self.hidden_size = checkpoint.hidden_size
        self.embedding_width = checkpoint.embedding_width
        self.vocab_size = self._head.vocab_size
        self.window_bounds_spans = self._family.window_bounds_spans
        self.position_rows = 3 if self._family.positions is Positions.MROPE else 1
        self._by_modules = _ByModules(decoder, self._head, self.position_rows)

    @property
    def key_value_shape(self) -> KeyValueShape:
        """Keys and values of one token."""
        return KeyValueShape.of(self._decoder.config, self.dtype)

    @property
    def embedding_row_bytes(self) -> int:
        """Bytes of one embedding row of a picture or clip."""
        return self.embedding_width * self.dtype.itemsize

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids [T] -> embeddings [T, hidden]."""
        return self._by_modules.embed(ids)

    def decode(
        self,
        embeddings: torch.Tensor,
        positions: torch.Tensor,
        batch: PagedBatch,
        layer_features: Sequence[torch.Tensor] = (),
    ) -> torch.Tensor:
        """Embeddings [T, hidden] and positions [position_rows, T] -> last hidden states [T, hidden].

        `layer_features` [T, hidden], zero outside media, are added behind the first decoder layers, one behind each.
        """
        fused = self._fused_for(embeddings)
        if fused is not None and (self._fuses_all or fused.pays(batch)):
            return fused.decode(embeddings, positions, batch, layer_features)
        return self._by_modules.decode(embeddings, positions, batch, layer_features)

    def decode_rows(
        self, ids: torch.Tensor, positions: torch.Tensor, batch: PagedBatch, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """One token of each of B sequences: ids [B], positions [position_rows, B] -> float32 logits [B, vocab].

        Device only, and the same as `logits(decode(embed(ids), ...))`; this is where a decoder that computes a whole
        decode step in one call takes over. Written into `out`, where it is given, and returned.
        """
        fused = self._fused_for(ids)
        if fused is not None:
            return fused.decode_rows(ids, positions, batch, out)
        logits = self.logits(self.decode(self.embed(ids), positions, batch))
        return logits if out is None else out.copy_(logits)

    def use_cpu_kernels(self, report: Report = lambda line: None, deterministic: bool = False) -> None:
        """Let the kernels of the CPU compute what they can; `report` says what that is, and else why it is nothing.

        With `deterministic` they compute steps of any size, and each token in one way only, so that within a sequence
        nothing depends on how it was cut or on what is computed beside it. Of a decoder that is left as it is, that
        holds for its linear modules; the rest is for attention and for its own modules to keep.
        """
        try:
            kernels = kernels_for(self.dtype, one_kind=deterministic)
        except CannotBuild as reason:
            report(f"no kernels for this CPU: {reason}")
            return
        self._fuses_all = deterministic
        sizes = self.key_value_shape, self.position_rows
        try:
            self._fused = fused_decoder(self._decoder, self._head, self._by_modules, *sizes, kernels)
            report(f"decode steps are computed in one call, by kernels for {kernels.target}")
        except Unrecognised as reason:
            report(f"decode steps are computed module by module, linear ones by kernels for {kernels.target}: {reason}")
        roots = [self._decoder, self._head.projection] if self._fused is None or self._has_loras else []
        if kernels.has_tiles:  # without them torch is as fast for as many rows as pictures have
            roots += self._tower.modules()
        for root in roots:
            use_kernels_in_linears(root, kernels, always=deterministic)

    @property
    def has_cpu_kernels(self) -> bool:
        """Whether kernels of the CPU compute decode steps."""
        return self._fused is not None

    def _fused_for(self, given: torch.Tensor) -> FusedDecoder | None:
        """The fused decoder, unless rows take adapters, or tensors only pretend to have data."""
        return self._fused if type(given) is torch.Tensor and not self._lora_rows.are_taken else None

    def taking_loras(self, numbers: torch.Tensor | None) -> AbstractContextManager[None]:
        """Within it, row i of what goes into `decode` and `logits` takes the adapter numbers[i], 0 being none.

        Numbers are [T] int64; None where no row takes one, which costs nothing.
        """
        return self._lora_rows.taking(numbers)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [N, hidden] -> float32 logits [N, vocab]."""
        fused = self._fused_for(hidden)
        return self._head.logits(hidden) if fused is None else fused.logits(hidden)

    def encode(self, media: Sequence[MediaInput]) -> list[torch.Tensor]:
        """Embeddings [rows, embedding_width] of pictures and clips, in order; see VisionTower.encode."""
        return self._tower.encode(media)

    def prompt_positions(self, prompt_ids: Sequence[int], mask: ImageMask, media: Sequence[MediaInput]) -> np.ndarray:
        """Positions [position_rows, prompt] int64 of an expanded prompt.

        Raises ValueError for prompts whose media the family's own rope index cannot tell apart or place.
        """
        length = len(prompt_ids)
        if self._family.positions is not Positions.MROPE or not media:
            first = self._family.first_position
            return np.broadcast_to(np.arange(first, first + length), (self.position_rows, length))
        arguments = rope_arguments(prompt_ids, mask, media, self._merge_size, self._family)
        return rope_positions(self._model.model.get_rope_index, arguments)


@dataclass(frozen=True, slots=True)
class _ByModules:
    """The decoder and its head, computed by their own modules."""

    decoder: Any
    head: Head
    position_rows: int

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """See ModelAdapter.embed."""
        return self.decoder.get_input_embeddings()(ids)

    def decode(
        self,
        embeddings: torch.Tensor,
        positions: torch.Tensor,
        batch: PagedBatch,
        layer_features: Sequence[torch.Tensor] = (),
    ) -> torch.Tensor:
        """See ModelAdapter.decode."""
        output = self.decoder(
            inputs_embeds=embeddings.unsqueeze(0),
            position_ids=positions if self.position_rows == 1 else positions.unsqueeze(1),
            use_cache=False,
            paged_batch=batch,
            **decoder_arguments(layer_features),
        )
        return output.last_hidden_state[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See ModelAdapter.logits."""
        return self.head.logits(hidden)


def _merge_size(checkpoint: Checkpoint) -> int:
    """How many patches of a row become one embedding; 1 for towers that merge none."""
    return int(getattr(getattr(checkpoint.config, "vision_config", None), "spatial_merge_size", 1))
