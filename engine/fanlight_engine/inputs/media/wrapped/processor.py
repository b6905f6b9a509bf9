"""WrappedProcessor: the checkpoint's own image and video processors of transformers, as the checkpoint ships them.

They are called as the checkpoint's whole processor calls them, one medium at a time, and differ from their own defaults
only where a request asks for it. Knows which calls there are; what the tensors are, a form knows (`form`). Knows no
requests, digests or threads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.image_processing_backends import TorchvisionBackend

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.checkpoints.families import PixelForm
from fanlight_engine.config import EngineConfig
from fanlight_engine.errors import CheckpointError, Reason
from fanlight_engine.inputs.expansion import Replacement, replacement_from
from fanlight_engine.inputs.guarded_tokenizer import GuardedTokenizer
from fanlight_engine.inputs.media.pixel_bounds import refuse_too_many_rows
from fanlight_engine.inputs.media.processing import Clip, ClipFacts, MediaDecision, MediaError, ProcessedMedia
from fanlight_engine.inputs.media.wrapped.anyres import AnyresForm
from fanlight_engine.inputs.media.wrapped.form import Form, Grid, Half, Outputs, Shown, mismatch
from fanlight_engine.inputs.media.wrapped.frame_choice import FOREIGN_ERRORS, FrameChoice, metadata_of_clip
from fanlight_engine.inputs.media.wrapped.frames import FramesForm
from fanlight_engine.inputs.media.wrapped.grid import GridForm
from fanlight_engine.inputs.media.wrapped.masked_tiles import MaskedTilesForm
from fanlight_engine.inputs.media.wrapped.media_tokens import media_tokens
from fanlight_engine.inputs.media.wrapped.sized import SizedForm
from fanlight_engine.inputs.media.wrapped.tiles import TilesForm
from fanlight_engine.request import FrameOptions, Modality, Patches, PixelOptions, Tiles
from fanlight_engine.tensor_data import TensorData, tensor_data_of

FORMS: dict[PixelForm, type[Form]] = {
    PixelForm.GRID: GridForm,
    PixelForm.TILES: TilesForm,
    PixelForm.ANYRES: AnyresForm,
    PixelForm.MASKED_TILES: MaskedTilesForm,
    PixelForm.SIZED: SizedForm,
    PixelForm.FRAMES: FramesForm,
}
_ANOTHER = torch.zeros(3, 1, 1, dtype=torch.uint8)
"""A picture beside the one that is meant, so that the processor sees several; as small as can be."""


_PROBE_SIZE = 80, 60
"""Of the picture that shows whether a processor fits the tower."""


class WrappedProcessor:
    """See MediaProcessor. `processor` is what AutoProcessor loads; `guarded` knows its `media_marks`."""

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint, processor: Any, guarded: GuardedTokenizer) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._processor = processor
        self._guarded = guarded
        self._tokens = media_tokens(checkpoint, processor, guarded)
        self._halves = {one: Half(config, checkpoint, processor, one) for one in self._tokens}
        self._forms = {one: self._form_of(half) for one, half in self._halves.items()}
        self._arguments = {one: half.arguments for one, half in self._halves.items()}
        self._rows_stand_alone = {
            one: guarded.stands_alone(tokens.row, in_place_of=tokens.placeholder)
            for one, tokens in self._tokens.items()
        }
        self._settings = {
            f"{half.noun}s": {
                "processor": json.loads(half.pixel_processor.to_json_string()),
                "arguments": json.loads(json.dumps(self._arguments[one], default=str)),
            }
            for one, half in self._halves.items()
        }

    @property
    def settings(self) -> Mapping[str, Any]:
        """The configurations of the checkpoint's processors, and what the whole processor calls them with."""
        return self._settings

    @property
    def modalities(self) -> frozenset[Modality]:
        """Pictures, and clips where family and checkpoint have what they need."""
        return frozenset(self._tokens)

    def placeholder_id(self, modality: Modality) -> int:
        """Of what the template writes for one medium; a pseudo id of the guarded tokenizer where that is no token."""
        return self._tokens[modality].placeholder_id

    def refuse_misfit(self) -> None:
        """Raise CheckpointError unless a picture comes out as the checkpoint's tower takes it, and has rows."""
        try:
            processed = self.process_image(Image.new("RGB", _PROBE_SIZE), PixelOptions())
            misfit = self._forms[Modality.IMAGE].misfit(processed.tensors)
        except MediaError as error:
            misfit = f"cannot take a picture of {_PROBE_SIZE[0]} x {_PROBE_SIZE[1]} pixels ({error.__cause__})"
        if misfit is not None:
            raise CheckpointError(
                f"the processor of {self._checkpoint.name} does not fit its config.json: it {misfit}; take "
                "preprocessor_config.json, processor_config.json and config.json from one checkpoint"
            )

    def process_image(
        self, image: Image.Image, options: PixelOptions, is_one_of_several: bool = False
    ) -> ProcessedMedia:
        """Through the image processor."""
        form = self._forms[Modality.IMAGE]
        arguments = self._size_arguments(form, options, image.size, 1)
        try:
            outputs, text = self._image_outputs(image, arguments, is_one_of_several)
            processed = self._processed(form, outputs, text, form.decision(image.size, outputs))
        except FOREIGN_ERRORS as error:
            raise MediaError(
                Reason.IMAGE_UNREADABLE,
                f"the checkpoint's image processor refuses {image.width} x {image.height} pixels; scale or crop it",
            ) from error
        self._refuse_too_many_rows(processed, options, Modality.IMAGE)
        return processed

    def choose_frames(self, facts: ClipFacts, sampling: FrameOptions) -> tuple[int, ...]:
        """See FrameChoice."""
        return FrameChoice(self._config, self._processor.video_processor).choose(facts, sampling)

    def process_video(self, clip: Clip, options: PixelOptions) -> ProcessedMedia:
        """Through the video processor, which does not sample again."""
        form, (width, height) = self._forms[Modality.VIDEO], clip.size
        arguments = self._size_arguments(form, options, clip.size, len(clip.frames))
        metadata = metadata_of_clip(clip)
        seconds_per_frame = 1 / metadata.sampled_fps
        try:
            outputs, text = self._video_outputs(clip, {"video_metadata": [metadata], **arguments})
            decision = form.decision(clip.size, outputs)
            decision = replace(decision, frames=len(clip.frames), frame_times=clip.times)
            processed = self._processed(form, outputs, text, decision)
        except FOREIGN_ERRORS as error:
            fewest, frames = self._frames_per_step, len(clip.frames)
            shown = f"{frames} frames" if frames > 1 else "a single frame"
            raise MediaError(
                Reason.VIDEO_UNREADABLE,
                f"the checkpoint's video processor refuses {shown} of {width} x {height} pixels; "
                + ("show other frames or scale them" if frames >= fewest else f"show at least {fewest} frames"),
            ) from error
        self._refuse_too_many_rows(processed, options, Modality.VIDEO)
        return replace(processed, seconds_per_grid=self._frames_per_step * seconds_per_frame)

    def process_tensors(self, pixels: Patches | Tiles, modality: Modality) -> ProcessedMedia:
        """Checked against the tower's shapes; nothing is resized."""
        form = self._forms[modality]
        outputs, decision = (
            form.outputs_of_tiles(pixels) if isinstance(pixels, Tiles) else form.outputs_of_patches(pixels)
        )
        return self._processed(form, outputs, self._text_of(outputs, modality), decision)

    def replacement_for_rows(
        self, rows: int, modality: Modality, grid: Grid | None = None, seconds_per_step: float | None = None
    ) -> Replacement:
        """What a medium of so many rows becomes in a prompt. Raises MediaError where there is none."""
        outputs = self._forms[modality].outputs_of_embeddings(Shown(rows, grid, seconds_per_step))
        if outputs is None:
            return self._replacement(self._tokens[modality].row * rows, modality)
        replacement = self._replacement(self._text_of(outputs, modality), modality)
        if replacement.rows != rows:
            raise mismatch(
                f"it has {rows} embeddings, a {self._halves[modality].noun} of this model and this size has "
                f"{replacement.rows}; send all of one"
            )
        return replacement

    @property
    def _frames_per_step(self) -> int:
        return int(getattr(self._processor.video_processor, "temporal_patch_size", 1))

    def _form_of(self, half: Half) -> Form:
        family = self._checkpoint.family
        form = family.pixel_form if half.is_for_pictures else family.video_form
        if form is None:
            raise CheckpointError(f"{family.model_type} checkpoints take no {half.noun}s; take the processor out")
        return FORMS[form](
            half, lambda outputs: self._replacement(self._text_of(outputs, half.modality), half.modality)
        )

    def _image_outputs(self, image: Image.Image, arguments: dict[str, Any], is_one_of_several: bool) -> tuple[Any, str]:
        """Processors that work on tensors get the pixels as they lie in memory, channels last: bit for bit the same
        result as for the picture object, which they would bring into an order that resizes more slowly."""
        arguments = {**self._arguments[Modality.IMAGE], **arguments}
        picture: Any = image
        if isinstance(self._processor.image_processor, TorchvisionBackend):
            picture = torch.from_numpy(np.array(image)).permute(2, 0, 1)
            arguments["input_data_format"] = "channels_first"
        pictures: list[Any] = [picture]
        if is_one_of_several:
            pictures = [[picture, _ANOTHER]]
        outputs, texts = self._processor._process_images(pictures, **arguments)
        return outputs, texts[0]

    def _video_outputs(self, clip: Clip, arguments: dict[str, Any]) -> tuple[Any, str]:
        outputs, texts = self._processor._process_videos(
            [np.stack(clip.frames)],
            **{
                **self._arguments[Modality.VIDEO],
                "input_data_format": "channels_last",
                "do_sample_frames": False,
                "return_metadata": True,
                **_as_shipped(self._processor.video_processor),
                **arguments,
            },
        )
        return outputs, texts[0]

    def _text_of(self, outputs: Outputs, modality: Modality) -> str:
        """What the processor puts into a prompt for the medium with these outputs."""
        if modality is Modality.VIDEO:
            return self._processor.replace_video_token(outputs, 0)
        return self._processor.replace_image_token(outputs, 0)

    def _processed(self, form: Form, outputs: Outputs, text: str, decision: MediaDecision) -> ProcessedMedia:
        tensors = {name: _tensor_data(tensor) for name, tensor in form.tensors(outputs).items()}
        return ProcessedMedia(tensors, self._replacement(text, form.half.modality), decision)

    def _replacement(self, text: str, modality: Modality) -> Replacement:
        """Many families only repeat one token, thousands of times; the tokenizer is asked about the others."""
        tokens = self._tokens[modality]
        rows = len(text) // len(tokens.row)
        if rows and text == tokens.row * rows:
            return Replacement((tokens.row_id,) * rows, ((0, rows),), text, not self._rows_stand_alone[modality])
        merges = not self._guarded.stands_alone(text, in_place_of=tokens.placeholder)
        replacement = replacement_from(self._guarded.encode_trusted(text), tokens.row_id, text, merges)
        if not replacement.rows:
            raise ValueError(f"it puts no {tokens.row!r} into the prompt for a {self._halves[modality].noun}")
        return replacement

    def _size_arguments(self, form: Form, options: PixelOptions, size: tuple[int, int], frames: int) -> dict[str, Any]:
        try:
            return form.size_arguments(options, size, frames)
        except MediaError as error:
            raise _about_options(error, form.half.modality) from error
        except FOREIGN_ERRORS:
            return {}  # the processor refuses such a picture by itself

    def _refuse_too_many_rows(self, processed: ProcessedMedia, options: PixelOptions, modality: Modality) -> None:
        try:
            refuse_too_many_rows(processed.replacement.rows, options)
        except MediaError as error:
            raise _about_options(error, modality) from error


def _about_options(error: MediaError, modality: Modality) -> MediaError:
    """The same of a medium of this kind."""
    reason = Reason.IMAGE_OPTION_INVALID if modality is Modality.IMAGE else Reason.VIDEO_OPTION_INVALID
    return MediaError(reason, error.description, error.below)


def _as_shipped(video_processor: Any) -> dict[str, Any]:
    """What a checkpoint that says nothing of the budget of a whole clip means today: none, whatever a later default."""
    return {"cap_pixels_per_frame": False} if getattr(video_processor, "cap_pixels_per_frame", ...) is None else {}


def _tensor_data(tensor: torch.Tensor) -> TensorData:
    return tensor_data_of(tensor.detach().cpu().contiguous().numpy())
