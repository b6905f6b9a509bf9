"""Pictures and clips to embeddings: the checkpoint's own tower and projector, run on batches of one kind.

Knows the family's tensors; knows nothing of caches, budgets or requests. What one medium's embeddings are does not
depend on its neighbours in the batch: towers attend within a medium, and each medium must bring exactly the pixels that
it says it has, so that no row of one can end up in another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from itertools import islice
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

from fanlight_engine.core.image_mask import MaskMismatchError
from fanlight_engine.core.messages import EMBEDDINGS, MediaInput
from fanlight_engine.model.checkpoint import Checkpoint
from fanlight_engine.model.families import PixelForm
from fanlight_engine.model.tensors import tensor_of


class _Way(Enum):
    """How a medium becomes embeddings."""

    PROVIDED = "provided"
    AS_IMAGES = "as_images"
    AS_VIDEOS = "as_videos"


class VisionTower:
    """The tower of one loaded model."""

    def __init__(self, model: PreTrainedModel, checkpoint: Checkpoint, hidden_size: int) -> None:
        self._model: Any = model
        self._config = checkpoint.config
        self._family = checkpoint.family
        self._hidden_size = hidden_size

    def encode(self, media: Sequence[MediaInput]) -> list[torch.Tensor]:
        """One [rows, hidden] tensor per medium, in order, on the model's device and of its number type.

        The tower runs once over all pictures and once over all clips; media that came as embeddings need no run.
        Raises MaskMismatchError where a medium does not have the rows that its positions need.
        """
        encoders: dict[_Way, Callable[[list[MediaInput]], Sequence[torch.Tensor]]] = {
            _Way.PROVIDED: self._provided,
            _Way.AS_IMAGES: self._encode_as_images,
            _Way.AS_VIDEOS: self._encode_as_videos,
        }
        embeddings: dict[int, torch.Tensor] = {}
        for way, encode in encoders.items():
            numbers = [number for number, medium in enumerate(media) if self._way_of(medium) is way]
            if not numbers:
                continue
            features = encode([media[number] for number in numbers])
            if len(features) != len(numbers):
                raise MaskMismatchError(f"the vision tower gave {len(features)} embeddings for {len(numbers)} media")
            embeddings.update(zip(numbers, features, strict=True))
        return [self._checked(medium, embeddings[number]) for number, medium in enumerate(media)]

    def _way_of(self, medium: MediaInput) -> _Way:
        if medium.is_embedded:
            return _Way.PROVIDED
        has_tensors_for_clips = self._family.takes_videos and self._family.video_tensors[0] in medium.tensors
        return _Way.AS_VIDEOS if has_tensors_for_clips else _Way.AS_IMAGES

    def _checked(self, medium: MediaInput, embedding: torch.Tensor) -> torch.Tensor:
        if embedding.shape != (medium.embedding_rows, self._hidden_size):
            source = "the request brought" if medium.is_embedded else "the vision tower gave"
            raise MaskMismatchError(
                f"{source} an embedding of shape {tuple(embedding.shape)} for a {medium.noun} that needs "
                f"({medium.embedding_rows}, {self._hidden_size})"
            )
        # Cloned: the towers return views of one big tensor, which a single cached medium would keep alive.
        return embedding.to(self._model.dtype).clone()

    def _provided(self, media: list[MediaInput]) -> list[torch.Tensor]:
        return [tensor_of(medium.tensors[EMBEDDINGS]).to(self._model.device) for medium in media]

    def _encode_as_videos(self, media: list[MediaInput]) -> Sequence[torch.Tensor]:
        arguments = self._joined(media, self._family.video_tensors)
        return self._model.model.get_video_features(**arguments).pooler_output

    def _encode_as_images(self, media: list[MediaInput]) -> Sequence[torch.Tensor]:
        if self._family.pixel_form is PixelForm.ANYRES:
            arguments = self._joined_anyres(media)
        else:
            arguments = self._joined(media, self._family.vision_tensors)
        features = self._model.model.get_image_features(**arguments).pooler_output
        if self._family.pixel_form is not PixelForm.TILES:
            return features
        tiles = iter(features)
        counts = [medium.tensors[self._family.vision_tensors[0]].shape[0] for medium in media]
        return [torch.cat(list(islice(tiles, count))) for count in counts]

    def _joined(self, media: list[MediaInput], names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        """The tower's arguments for all media, joined on the first axis."""
        tensors = [{name: tensor_of(medium.tensors[name]) for name in names} for medium in media]
        if self._family.pixel_form is PixelForm.GRID:
            for medium, one in zip(media, tensors, strict=True):
                pixels, grid = (one[name] for name in names)
                _refuse_other_count(medium, "patches", pixels.shape[0], int(grid.prod()), f"a grid of {grid.tolist()}")
        return {name: torch.cat([one[name] for one in tensors]).to(self._model.device) for name in names}

    def _joined_anyres(self, media: list[MediaInput]) -> dict[str, torch.Tensor]:
        """As `_joined`; pictures of fewer tiles than others are filled up with zeros, which the model skips."""
        pixels_name, sizes_name = self._family.vision_tensors
        pixels = [tensor_of(medium.tensors[pixels_name]) for medium in media]
        sizes = [tensor_of(medium.tensors[sizes_name]) for medium in media]
        for medium, one, size in zip(media, pixels, sizes, strict=True):
            needed = image_size_to_num_patches(
                size[0], self._config.image_grid_pinpoints, self._config.vision_config.image_size
            )
            _refuse_other_count(medium, "tiles", one.shape[1], needed, f"(height, width) {size[0].tolist()}")
        most = max(one.shape[1] for one in pixels)
        filled = [torch.nn.functional.pad(one, (0, 0) * 3 + (0, most - one.shape[1])) for one in pixels]
        joined = {pixels_name: torch.cat(filled), sizes_name: torch.cat(sizes)}
        return {name: tensor.to(self._model.device) for name, tensor in joined.items()}


def _refuse_other_count(medium: MediaInput, things: str, brought: int, needed: int, why: str) -> None:
    if brought != needed:
        raise MaskMismatchError(
            f"a {medium.noun} has {brought} {things} where {why} needs {needed}; send them together"
        )
