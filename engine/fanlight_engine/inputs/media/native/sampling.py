"""Which frames of a clip are shown: evenly spread, first and last included, whole temporal patches where possible.

Knows counts only.
"""

from __future__ import annotations

import numpy as np


def frame_indices(num_frames: int, total: int, temporal_patch_size: int = 1) -> tuple[int, ...]:
    """Ascending indices of at most `num_frames` of `total` frames.

    As many as fill whole temporal patches; a clip or a wish too small for one gets what there is, and whoever packs
    the frames repeats the last. Raises ValueError for counts below 1.
    """
    if min(num_frames, total, temporal_patch_size) < 1:
        raise ValueError(f"{num_frames} of {total} frames in patches of {temporal_patch_size}: all must be at least 1")
    count = min(num_frames, total)
    whole_patches = count // temporal_patch_size * temporal_patch_size
    return tuple(int(index) for index in np.rint(np.linspace(0, total - 1, whole_patches or count)))
