"""A checkpoint as plain transformers runs it, in float32: its own processors, its own vision tower, its own `generate`.

Files are read by transformers' own loaders; nothing of Fanlight's decoding, preprocessing, rendering or expansion takes
part. Knows prompts in transformers' form, and nothing of servers.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from transformers import AutoModelForImageTextToText, AutoProcessor
from transformers.video_utils import VideoMetadata, load_video

from fanlight import Answer
from tests.e2e.comparison import Compared
from tests.e2e.made_models import model_path
from tests.engine.reference import NEAR_TIE

LOGPROB_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class PlainClip:
    """The frames of a clip that are shown, [frames, height, width, 3] uint8, and what is known of the whole clip."""

    frames: np.ndarray
    metadata: VideoMetadata


@dataclass(frozen=True, slots=True)
class PlainPrompt:
    """A conversation in transformers' form, and the media that its parts stand for, in order."""

    messages: list[dict[str, Any]]
    pictures: list[Image.Image] = field(default_factory=list)
    clips: list[PlainClip] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """A greedy answer; `margins` are best minus second-best logit for each of its tokens."""

    prompt_tokens: int
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    margins: tuple[float, ...]

    def until(self, end_ids: frozenset[int]) -> PlainAnswer:
        """The answer up to the first id that ends it, which is its last."""
        length = next((index + 1 for index, token in enumerate(self.ids) if token in end_ids), len(self.ids))
        return replace(self, ids=self.ids[:length])


class PlainModel:
    """One checkpoint, loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        torch.set_num_threads(1)
        self.model: Any = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32).eval()
        # Answers go on to the length asked for, as with ignore_eos.
        self.end_ids = _ids(self.model.generation_config.eos_token_id)
        self.model.generation_config.eos_token_id = None

    @cached_property
    def processor(self) -> Any:
        """The checkpoint's own, which it need not have."""
        return AutoProcessor.from_pretrained(self._path)

    @property
    def merge_size(self) -> int:
        """Patches per side that become one embedding, for models that merge."""
        return int(self.model.config.vision_config.spatial_merge_size)

    def pixels(self, picture: Image.Image) -> dict[str, np.ndarray]:
        """What the checkpoint's own image processor gives, by name."""
        outputs = self.processor.image_processor(images=[picture], return_tensors="pt")
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    @torch.inference_mode()
    def features(self, pixels: Mapping[str, np.ndarray]) -> np.ndarray:
        """The embeddings of what an image processor gave for one picture, [rows, hidden], by get_image_features."""
        tensors = {name: torch.from_numpy(array) for name, array in pixels.items()}
        return torch.cat(list(self.model.get_image_features(**tensors).pooler_output)).numpy()

    def clip_from_file(self, file: Path, num_frames: int | None = None, fps: float | None = None) -> PlainClip:
        """The frames that the checkpoint's video processor samples; all of them where nothing says which."""
        video_processor = self.processor.video_processor
        samples = num_frames is not None or fps is not None or video_processor.do_sample_frames
        choose = partial(video_processor.sample_frames, num_frames=num_frames, fps=fps) if samples else None
        return read_clip(file, choose)

    @torch.inference_mode()
    def answer(self, prompt: PlainPrompt, new_tokens: int) -> PlainAnswer:
        """What `generate` says."""
        inputs = self._inputs(prompt)
        output = self.model.generate(
            **inputs,
            max_new_tokens=new_tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        length = inputs["input_ids"].shape[1]
        answer = output.sequences[0, length:]
        logits = torch.stack([step[0].float() for step in output.logits])
        best = logits.topk(2).values
        logprobs = logits.log_softmax(-1).gather(1, answer[:, None])[:, 0]
        margins = best[:, 0] - best[:, 1]
        return PlainAnswer(length, tuple(answer.tolist()), tuple(logprobs.tolist()), tuple(margins.tolist()))

    def _inputs(self, prompt: PlainPrompt) -> Any:
        text = self.processor.apply_chat_template(prompt.messages, tokenize=False, add_generation_prompt=True)
        tokenizer = self.processor.tokenizer
        adds_special_tokens = not (tokenizer.bos_token and text.startswith(tokenizer.bos_token))
        arguments: dict[str, Any] = {"images": prompt.pictures} if prompt.pictures else {}
        if prompt.clips:
            arguments["videos"] = [clip.frames for clip in prompt.clips]
            arguments["videos_kwargs"] = {
                "video_metadata": [clip.metadata for clip in prompt.clips],
                "do_sample_frames": False,
            }
        return self.processor(
            text=[text],
            return_tensors="pt",
            text_kwargs={"add_special_tokens": adds_special_tokens},
            **arguments,
        )


@cache
def plain_model(name: str) -> PlainModel:
    """The checkpoint of a name, loaded once per process."""
    return PlainModel(model_path(name))


def upright(data: bytes) -> Image.Image:
    """The picture of a file as people see it."""
    return ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")


def read_clip(file: Path, choose: Callable[..., Any] | None = None) -> PlainClip:
    """A file's frames, by transformers' own loader; `choose` makes indices of what is known of the file."""
    path: Any = str(file)
    frames, metadata = load_video(path, backend="pyav", sample_indices_fn=choose)
    return PlainClip(np.asarray(frames), metadata)


def clip_of_pictures(files: Sequence[bytes], fps: float | None = None) -> PlainClip:
    """Pictures as a clip that shows all of them."""
    frames = np.stack([np.asarray(upright(data)) for data in files])
    return PlainClip(frames, VideoMetadata(len(files), fps, frames_indices=list(range(len(files)))))


def compared_with_plain(name: str, theirs: PlainAnswer, ours: Answer) -> Compared:
    """Whether the server's answer is transformers' own; it may first differ where transformers was undecided."""
    usage = ours.usage
    if usage is None or usage.prompt_tokens != theirs.prompt_tokens:
        return Compared(
            name, False, f"the prompt has {usage and usage.prompt_tokens}, not {theirs.prompt_tokens} tokens"
        )
    if None in ours.logprobs:
        return Compared(name, False, "a token came without its logprob")
    first = _first_difference(ours.token_ids, theirs.ids)
    pairs = zip(ours.logprobs[:first], theirs.logprobs, strict=False)
    worst = max((abs(mine - other) for mine, other in pairs if mine is not None), default=0.0)
    if worst > LOGPROB_TOLERANCE:
        return Compared(name, False, f"a logprob is {worst:.2g} off")
    if first is None:
        return Compared(name, True, f"{len(theirs.ids)} tokens, logprobs within {worst:.1e}")
    margin = theirs.margins[first] if first < len(theirs.margins) else float("inf")
    seen = f"token {first} differs, where the best two logits are {margin:.6f} apart: {ours.token_ids}, {theirs.ids}"
    return Compared(name, margin < NEAR_TIE, seen, near_tie=margin < NEAR_TIE)


def _ids(one_or_several: int | list[int]) -> frozenset[int]:
    return frozenset([one_or_several] if isinstance(one_or_several, int) else one_or_several)


def _first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    for index, (left, right) in enumerate(zip(ours, theirs, strict=False)):
        if left != right:
            return index
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))
