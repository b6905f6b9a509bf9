"""What encoding media of one form is given, and what it gives back; and what all forms need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from fanlight_engine.checkpoints.families import Family
from fanlight_engine.core.image_mask import MaskMismatchError
from fanlight_engine.core.messages import MediaInput
from fanlight_engine.model.tensors import tensor_of
from fanlight_engine.request import Modality


@dataclass(frozen=True, slots=True)
class TowerBatch:
    """Media of one modality and one form. `names` are their tensors that the tower takes, the pixels first."""

    model: Any
    """The loaded model of transformers."""
    config: Any
    """The checkpoint's configuration."""
    family: Family
    names: tuple[str, ...]
    modality: Modality
    media: Sequence[MediaInput]

    def tensors(self, name: str) -> list[torch.Tensor]:
        """A tensor of every medium, on the host."""
        return [tensor_of(medium.tensors[name]) for medium in self.media]

    def on_device(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensors, joined on the first axis, where the model is."""
        return torch.cat(list(tensors)).to(self.model.device)


class FormEncoder(Protocol):
    """Runs the tower once over the batch."""

    def __call__(self, batch: TowerBatch) -> Sequence[torch.Tensor]:
        """[rows, embedding width] of each medium, in order. Raises MaskMismatchError for pixels that do not fit."""
        ...


def refuse_other_count(medium: MediaInput, things: str, brought: int, needed: int, why: str) -> None:
    """Raise MaskMismatchError unless the medium has as many patches or tiles as something else of it says."""
    if brought != needed:
        raise MaskMismatchError(
            f"a {medium.noun} has {brought} {things} where {why} needs {needed}; send them together"
        )
