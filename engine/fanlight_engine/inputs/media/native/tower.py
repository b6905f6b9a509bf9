"""What a description, a checkpoint and the engine's settings say together about one vision tower.

Refuses descriptions that do not fit the tower: at start, by the name of the key, since every picture would fail later.
Knows no pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import CheckpointError
from fanlight_engine.inputs.expansion import Replacement
from fanlight_engine.inputs.media.native.image_processing_config import ImageProcessingConfig, ResizeMode
from fanlight_engine.inputs.media.native.pixels import Normalizer
from fanlight_engine.request import Modality

_CLASS_TOKENS = {"clip_vision_model": 1, "siglip_vision_model": 0}
"""Features that are no patch, which a tower puts before those of the patches."""


@dataclass(frozen=True, slots=True)
class Tower:
    """A vision tower and the pictures that it is described to take."""

    config: EngineConfig
    checkpoint: Checkpoint
    processing: ImageProcessingConfig
    normalize: Normalizer

    @property
    def vision(self) -> Any:
        """The tower's own configuration."""
        return self.checkpoint.config.vision_config

    @property
    def image_token(self) -> int:
        """The id that stands for a picture. Raises CheckpointError where there is none."""
        if self.checkpoint.image_token_id is None:
            raise CheckpointError("config.json has a vision tower but no image token; give a complete checkpoint")
        return self.checkpoint.image_token_id

    def refuse_other_modes(self, mode: ResizeMode) -> None:
        """Raise CheckpointError unless pictures are resized in this way, the only one that the family can take."""
        if self.processing.mode is not mode:
            raise CheckpointError(
                f"the image processing configuration sets {self.processing.mode}, {self.checkpoint.family.model_type} "
                f"takes pictures of {mode}; set that instead"
            )

    def refuse_differences(self, pairs: Sequence[tuple[str, Any, str, Any]]) -> None:
        """Raise CheckpointError at the first of (key, value, the tower's key, its value) that differ."""
        for key, value, tower_key, wanted in pairs:
            if value != wanted:
                raise CheckpointError(
                    f"the image processing configuration has {key} {value}, config.json has {tower_key} {wanted}; both "
                    "must be equal: correct the first"
                )

    def features_of_tile(self) -> int:
        """Features that a tower of square pictures gives for one, as the checkpoint selects them."""
        vision, strategy = self.vision, self.checkpoint.config.vision_feature_select_strategy
        if vision.model_type not in _CLASS_TOKENS:
            raise CheckpointError(
                f"config.json has a vision tower of model_type {vision.model_type!r}, whose features native "
                f"preprocessing cannot count; it can for {', '.join(sorted(_CLASS_TOKENS))}"
            )
        dropped = 1 if strategy == "default" else 0
        return (vision.image_size // vision.patch_size) ** 2 + _CLASS_TOKENS[vision.model_type] - dropped


def repeated_placeholder(placeholder: int, rows: int) -> Replacement:
    """The placeholder once for each embedding, and nothing around them."""
    return Replacement((placeholder,) * rows, ((0, rows),))


def placeholders_of(tower: Tower, modalities: Sequence[Modality]) -> dict[Modality, int]:
    """Ids that stand for one medium; clips have the image token where the checkpoint has no other."""
    video_token = tower.checkpoint.video_token_id
    ids = {Modality.IMAGE: tower.image_token, Modality.VIDEO: tower.image_token if video_token is None else video_token}
    return {modality: ids[modality] for modality in modalities}
