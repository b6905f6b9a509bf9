"""Which frames of a clip are shown: by the checkpoint's own rule where it has one, within what the request asks for.

Knows the video processors' `sample_frames` and what they need to know of a clip; knows no pixels.
"""

from __future__ import annotations

from typing import Any

from transformers.video_utils import VideoMetadata

from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import Reason
from fanlight_engine.inputs.media.processing import Clip, ClipFacts, MediaError
from fanlight_engine.inputs.media.video.sampling import default_frames, spread_evenly
from fanlight_engine.request import FrameOptions

FOREIGN_ERRORS = (ValueError, TypeError, IndexError, ZeroDivisionError, RuntimeError)
"""What processors raise for pictures and clips that they do not like."""


class FrameChoice:
    """The choice for one checkpoint."""

    def __init__(self, config: EngineConfig, video_processor: Any) -> None:
        self._config = config
        self._video_processor = video_processor

    def choose(self, facts: ClipFacts, sampling: FrameOptions) -> tuple[int, ...]:
        """By the checkpoint's own rule where it has one or the request wants one, else evenly up to the default."""
        count, most = facts.frame_count, self._config.max_video_frames
        if sampling.num_frames is not None:
            return self._number(facts, sampling.num_frames)
        if sampling.fps is not None:
            chosen = self._rate(facts, sampling)
            if len(chosen) > most:
                raise MediaError(
                    Reason.VIDEO_OPTION_INVALID,
                    f"{sampling.fps:g} frames per second are {len(chosen)} frames of this clip, at most {most} are "
                    "shown; lower fps, or set num_frames, start or end",
                    ".fps",
                )
            return chosen
        if self._has_a_rule:
            chosen = self._sampled(facts)
            return chosen if len(chosen) <= most else self._number(facts, most)
        return tuple(spread_evenly(count, min(count, self._config.default_video_frames)))

    @property
    def _has_a_rule(self) -> bool:
        """Whether the checkpoint samples unless asked. Most say so; where it says how many frames and how many for each
        second, which most rules take for a contradiction, its chat template's processor samples by both (SmolVLM)."""
        own = self._video_processor
        says_both = None not in (getattr(own, "num_frames", None), getattr(own, "fps", None))
        return bool(own.do_sample_frames) or says_both

    def _number(self, facts: ClipFacts, wanted: int) -> tuple[int, ...]:
        """By the video processor's own rule, unless that fails for so few frames, or gives more than are wanted."""
        if wanted >= facts.frame_count:
            return tuple(range(facts.frame_count))
        try:
            chosen = self._sampled(facts, num_frames=wanted)
        except MediaError:
            chosen = ()
        return chosen if 1 <= len(chosen) <= wanted else tuple(spread_evenly(facts.frame_count, wanted))

    def _rate(self, facts: ClipFacts, sampling: FrameOptions) -> tuple[int, ...]:
        """By the video processor's own rule, unless its own minimum makes it more than were asked for."""
        chosen = self._sampled(facts, fps=sampling.fps)
        if len(chosen) > self._config.max_video_frames:
            return chosen
        asked = default_frames(facts, sampling, self._config)
        return chosen if len(chosen) <= len(asked) else asked

    def _sampled(self, facts: ClipFacts, **arguments: Any) -> tuple[int, ...]:
        """By the video processor's own rule; what it refuses is the request's fault."""
        try:
            chosen = self._video_processor.sample_frames(metadata_of_facts(facts), **arguments)
        except FOREIGN_ERRORS as error:
            raise MediaError(
                Reason.VIDEO_OPTION_INVALID,
                f"the checkpoint cannot choose frames of this clip of {facts.frame_count} frames at {facts.fps:g} per "
                "second that way; set num_frames to no more than it has",
            ) from error
        indices = sorted({min(int(index), facts.frame_count - 1) for index in chosen})
        return tuple(indices) or (0,)


def metadata_of_facts(facts: ClipFacts) -> VideoMetadata:
    """What video processors know of a clip before frames are chosen."""
    return VideoMetadata(
        total_num_frames=facts.frame_count, fps=facts.fps, duration=facts.frame_count / facts.fps, frames_indices=None
    )


def metadata_of_clip(clip: Clip) -> VideoMetadata:
    """What they know of chosen frames; where nobody knows times, the chosen frames are all that there ever was."""
    width, height = clip.size
    if clip.times_are_known:
        metadata, indices = metadata_of_facts(clip.facts), clip.indices
    else:
        count = len(clip.frames)
        metadata, indices = VideoMetadata(total_num_frames=count, fps=clip.facts.fps), range(count)
    metadata.update({"width": width, "height": height, "frames_indices": list(indices)})
    return metadata
