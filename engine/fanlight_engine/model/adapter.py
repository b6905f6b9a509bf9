"""The seam to transformers: decoder, head, vision tower and positions of any supported checkpoint, as plain functions.

Knows the family table and tensors; knows nothing of batching, pages or requests beyond what a forward needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from fanlight_engine.core.image_mask import MaskMismatchError
from fanlight_engine.core.messages import ImageInput, TensorData
from fanlight_engine.errors import CheckpointError
from fanlight_engine.model.attention.interface import PagedBatch
from fanlight_engine.model.checkpoint import Checkpoint
from fanlight_engine.model.families import Positions
from fanlight_engine.model.kv_cache import KeyValueShape


class ModelAdapter:
    """A loaded model as the runner sees it. T is the number of tokens of a packed step."""

    def __init__(self, model: PreTrainedModel, checkpoint: Checkpoint) -> None:
        decoder, head = model.get_decoder(), model.get_output_embeddings()
        if decoder is None or head is None:
            raise CheckpointError(f"{checkpoint.path.name} has no decoder with a language-model head")
        self._model = model
        self._decoder = decoder
        self._embed = decoder.get_input_embeddings()
        self._head = head
        self._family = checkpoint.family
        self.device = model.device
        self.dtype = model.dtype
        self.hidden_size = checkpoint.hidden_size
        self.vocab_size = int(head.weight.shape[0])
        self.position_rows = 3 if self._family.positions is Positions.MROPE else 1

    @property
    def key_value_shape(self) -> KeyValueShape:
        """Keys and values of one token."""
        config = self._decoder.config
        heads = config.num_attention_heads
        return KeyValueShape(
            layers=config.num_hidden_layers,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=self.dtype,
        )

    @property
    def embedding_row_bytes(self) -> int:
        """Bytes of one image embedding row."""
        return self.hidden_size * self.dtype.itemsize

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids [T] -> embeddings [T, hidden]."""
        return self._embed(ids)

    def decode(self, embeddings: torch.Tensor, positions: torch.Tensor, batch: PagedBatch) -> torch.Tensor:
        """Embeddings [T, hidden] and positions [position_rows, T] -> last hidden states [T, hidden]."""
        position_ids = positions if self.position_rows == 1 else positions.unsqueeze(1)
        output = self._decoder(
            inputs_embeds=embeddings.unsqueeze(0), position_ids=position_ids, use_cache=False, paged_batch=batch
        )
        return output.last_hidden_state[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [N, hidden] -> float32 logits [N, vocab]."""
        return self._head(hidden).float()

    def encode_images(self, images: Sequence[ImageInput]) -> list[torch.Tensor]:
        """Run the vision tower once over all images: one [rows, hidden] tensor each, in order.

        Raises MaskMismatchError when the tower yields another number of rows than an image has positions.
        """
        arguments = {
            name: torch.cat([tensor_of(image.tensors[name]) for image in images]).to(self.device)
            for name in self._family.vision_tensors
        }
        features = self._model.model.get_image_features(**arguments).pooler_output
        if len(features) != len(images):
            raise MaskMismatchError(f"the vision tower gave {len(features)} embeddings for {len(images)} images")
        for image, feature in zip(images, features, strict=True):
            if feature.shape[0] != image.embedding_rows:
                raise MaskMismatchError(
                    f"the vision tower gave {feature.shape[0]} rows for an image with {image.embedding_rows} positions"
                )
        # Cloned: the towers return views of one big tensor, which a single cached image would keep alive.
        return [feature.to(self.dtype).clone() for feature in features]

    def prompt_positions(
        self, prompt_ids: Sequence[int], image_positions: np.ndarray, images: Sequence[ImageInput]
    ) -> tuple[np.ndarray, int]:
        """Positions [position_rows, prompt] int64 of an expanded prompt, and what to add to an index after it.

        `image_positions` [prompt] bool marks the positions that take an embedding. Raises ValueError for prompts whose
        images touch each other, where the family's own rope index cannot tell them apart.
        """
        length = len(prompt_ids)
        if self.position_rows == 1 or not images:
            return np.broadcast_to(np.arange(length), (self.position_rows, length)), 0
        spans = int(image_positions[0]) + int(np.count_nonzero(image_positions[1:] & ~image_positions[:-1]))
        if spans != len(images):
            raise ValueError(f"{len(images)} images stand in {spans} separate places; put a token between two images")
        positions, delta = self._model.model.get_rope_index(
            torch.tensor([list(prompt_ids)]),
            mm_token_type_ids=torch.from_numpy(image_positions.astype(np.int32))[None],
            image_grid_thw=torch.cat([tensor_of(image.tensors["image_grid_thw"]) for image in images]),
        )
        return positions[:, 0].numpy(), int(delta)


def tensor_of(data: TensorData) -> torch.Tensor:
    """The tensor that was sent as bytes; a copy, since messages are immutable."""
    return torch.from_numpy(np.frombuffer(data.data, dtype=data.dtype).reshape(data.shape).copy())
