"""FRAMES: the frames of a clip, each a square picture of one size; a prompt has nothing but rows for them."""

from __future__ import annotations

from fanlight_engine.inputs.media.processing import MediaDecision
from fanlight_engine.inputs.media.wrapped.form import Form, Outputs


class FramesForm(Form):
    """See the module."""

    described = "the frames of a clip as squares"

    def decision(self, size: tuple[int, int], outputs: Outputs) -> MediaDecision:
        """Every frame at one size."""
        height, width = outputs[self.half.names[0]].shape[-2:]
        return MediaDecision(size, (width, height))
