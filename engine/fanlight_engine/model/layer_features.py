"""Features of media that are added behind the first decoder layers (DeepStack), as one addition per layer.

transformers picks the rows of media by a boolean mask there, which reads the mask on the host and gives shapes that
depend on it. Features that are zero outside media need no mask. Knows how decoders take such features; knows nothing of
media, pages or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fanlight_engine.errors import CheckpointError

_ADDITION = "_deepstack_process"
"""The method of transformers' decoders that adds a layer's features: (hidden states, mask of media, features)."""


def add_without_mask(decoder: Any) -> None:
    """Make this one decoder add features that come without a mask as they are; those with one it adds as ever.

    Raises CheckpointError where it has no such addition.
    """
    with_mask: Any = getattr(decoder, _ADDITION, None)
    if with_mask is None:
        raise CheckpointError(
            f"the decoder {type(decoder).__name__} of the installed transformers cannot add features of media to its "
            "layers; install a version that this release of Fanlight supports"
        )

    def add(hidden: torch.Tensor, mask: torch.Tensor | None, features: torch.Tensor) -> torch.Tensor:
        """Hidden states [1, T, hidden] and features [T, hidden] of a packed step."""
        return hidden + features if mask is None else with_mask(hidden, mask, features)

    setattr(decoder, _ADDITION, add)


def decoder_arguments(features: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Keyword arguments of a decoder for features of the first layers, each [T, hidden] and zero outside media."""
    return {"deepstack_visual_embeds": list(features)} if features else {}
