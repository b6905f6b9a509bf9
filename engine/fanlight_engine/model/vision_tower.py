"""Pictures and clips to embeddings: the checkpoint's own tower and projector, run on batches of one kind.

Knows which media go which way; what a way does with their tensors is in `pixel_forms`. Knows nothing of caches, budgets
or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.checkpoints.families import PixelForm
from fanlight_engine.core.image_mask import MaskMismatchError
from fanlight_engine.core.messages import EMBEDDINGS, MediaInput
from fanlight_engine.model.pixel_forms import FORM_ENCODERS
from fanlight_engine.model.pixel_forms.interface import TowerBatch
from fanlight_engine.model.tensors import tensor_of
from fanlight_engine.request import Modality

_OWN_WAY_OF_CLIPS = (PixelForm.GRID, PixelForm.FRAMES)


class _Way(Enum):
    """How a medium becomes embeddings."""

    PROVIDED = "provided"
    AS_IMAGES = "as_images"
    AS_VIDEOS = "as_videos"


class VisionTower:
    """The tower of one loaded model."""

    def __init__(self, model: PreTrainedModel, checkpoint: Checkpoint) -> None:
        self._model: Any = model
        self._config = checkpoint.config
        self._family = checkpoint.family
        self._width = checkpoint.embedding_width

    def modules(self) -> list[nn.Module]:
        """Those that make embeddings: all of the model's without children, but for the decoder's and the head's."""
        elsewhere = {id(one) for root in self._language_parts() for one in root.modules()}
        return [one for one in self._model.modules() if id(one) not in elsewhere and not any(one.children())]

    def _language_parts(self) -> list[nn.Module]:
        return [part for part in (self._model.get_decoder(), self._model.get_output_embeddings()) if part is not None]

    def encode(self, media: Sequence[MediaInput]) -> list[torch.Tensor]:
        """One [rows, embedding width] tensor per medium, in order, on the model's device and of its number type.

        The tower runs once over all pictures and once over all clips; media that came as embeddings need no run.
        Raises MaskMismatchError where a medium does not have the rows that its positions need.
        """
        embeddings: dict[int, torch.Tensor] = {}
        for way in _Way:
            numbers = [number for number, medium in enumerate(media) if self._way_of(medium) is way]
            if not numbers:
                continue
            features = self._encode_one_way(way, [media[number] for number in numbers])
            if len(features) != len(numbers):
                raise MaskMismatchError(f"the vision tower gave {len(features)} embeddings for {len(numbers)} media")
            embeddings.update(zip(numbers, features, strict=True))
        return [self._checked(medium, embeddings[number]) for number, medium in enumerate(media)]

    def _way_of(self, medium: MediaInput) -> _Way:
        """By the tensors that a medium has: frames of a clip may well have been prepared as pictures are."""
        if medium.is_embedded:
            return _Way.PROVIDED
        has_tensors_for_clips = (
            self._family.video_form in _OWN_WAY_OF_CLIPS and self._family.video_tensors[0] in medium.tensors
        )
        return _Way.AS_VIDEOS if has_tensors_for_clips else _Way.AS_IMAGES

    def _encode_one_way(self, way: _Way, media: Sequence[MediaInput]) -> Sequence[torch.Tensor]:
        if way is _Way.PROVIDED:
            return [tensor_of(medium.tensors[EMBEDDINGS]).to(self._model.device) for medium in media]
        family = self._family
        if way is _Way.AS_VIDEOS:
            form, names, modality = family.video_form, family.video_tensors, Modality.VIDEO
        else:
            form, names, modality = family.pixel_form, family.vision_tensors, Modality.IMAGE
        assert form is not None, "text checkpoints have no media"
        return FORM_ENCODERS[form](TowerBatch(self._model, self._config, family, names, modality, media))

    def _checked(self, medium: MediaInput, embedding: torch.Tensor) -> torch.Tensor:
        if embedding.shape != (medium.embedding_rows, self._width):
            source = "the request brought" if medium.is_embedded else "the vision tower gave"
            raise MaskMismatchError(
                f"{source} an embedding of shape {tuple(embedding.shape)} for a {medium.noun} that needs "
                f"({medium.embedding_rows}, {self._width})"
            )
        # Cloned: the towers return views of one big tensor, which a single cached medium would keep alive.
        return embedding.to(self._model.dtype).clone()
