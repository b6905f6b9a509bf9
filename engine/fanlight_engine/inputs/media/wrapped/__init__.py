"""The checkpoint's own image and video processors of transformers, behind our seam.

processor      WrappedProcessor: how they are called
media_tokens   what stands for a medium in a prompt, and what takes its rows
frame_choice   which frames of a clip they want
form           what a form of pixels must know; one module each: grid, tiles, anyres, masked_tiles, sized, frames
"""

from __future__ import annotations

from fanlight_engine.inputs.media.wrapped.media_tokens import media_marks
from fanlight_engine.inputs.media.wrapped.processor import WrappedProcessor

__all__ = ["WrappedProcessor", "media_marks"]
