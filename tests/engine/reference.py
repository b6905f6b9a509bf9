"""The reference: transformers' own `generate` in float32, one request at a time, and prompts to ask it.

Prompt ids, pixels, media positions and answers all come from the checkpoint's own processor and `generate`; none of our
own rendering, expansion, decoding or preprocessing takes part.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer
from transformers.video_utils import VideoMetadata

from fanlight_engine.core.messages import MaskRun, MediaInput
from fanlight_engine.model.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.request import Modality
from fanlight_engine.tensor_data import tensor_data_of
from tests.engine.random_prompts import CLIP_KINDS, KINDS, TEXT_KINDS, Film, Medium, RandomPrompt, random_prompt

NEAR_TIE = 1e-4
"""A first difference is allowed only where the reference's two best logits are closer than this."""

PAGE_BORDER = 256
"""Prompts of kind page_border end a few tokens before this position, so that their answers cross it."""


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt with the reference's greedy answer; `margins` are best minus second-best logit per answer token."""

    kind: str
    prompt: RandomPrompt
    prompt_ids: tuple[int, ...]
    media: tuple[MediaInput, ...]
    mask_runs: tuple[MaskRun, ...]
    answer: tuple[int, ...]
    logprobs: tuple[float, ...]
    margins: tuple[float, ...]
    min_new_tokens: int = 0


class Reference:
    """A checkpoint loaded with plain transformers in float32."""

    def __init__(self, path: Path) -> None:
        self.checkpoint: Checkpoint = read_checkpoint(path)
        auto_class = AutoModelForImageTextToText if self.checkpoint.takes_images else AutoModelForCausalLM
        self.model: Any = auto_class.from_pretrained(path, dtype=torch.float32).eval()
        processor_class = AutoProcessor if self.checkpoint.takes_images else AutoTokenizer
        self.processor = processor_class.from_pretrained(path)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of prompts that the checkpoint takes."""
        if not self.checkpoint.takes_images:
            return TEXT_KINDS
        return KINDS + CLIP_KINDS * self.checkpoint.takes_videos

    def cases(self, count: int, new_tokens: int, seed: int = 7) -> list[Case]:
        """`count` cases over all kinds that the checkpoint takes, answered with up to `new_tokens` tokens each.

        Every other round over the kinds holds the end of the answer back until then (min_new_tokens).
        """
        rng, kinds = random.Random(seed), self.kinds
        return [
            self.case(kinds[index % len(kinds)], rng, new_tokens, min_new_tokens=new_tokens * (index // len(kinds) % 2))
            for index in range(count)
        ]

    def case(self, kind: str, rng: random.Random, new_tokens: int, min_new_tokens: int = 0) -> Case:
        """One case of a kind, with random text and media."""
        prompt = random_prompt(kind, rng, self.checkpoint.takes_images)
        inputs = self.inputs(prompt)
        while kind == "page_border" and inputs["input_ids"].shape[1] < PAGE_BORDER - 4:
            prompt.lengthen(rng)
            inputs = self.inputs(prompt)
        answer, logprobs, margins = self._generate(inputs, new_tokens, min_new_tokens)
        prompt_ids = tuple(inputs["input_ids"][0].tolist())
        media = tuple(self.media_input(medium) for medium in prompt.media)
        mask_runs = _mask_runs(self._is_medium(inputs["input_ids"][0]).tolist())
        return Case(kind, prompt, prompt_ids, media, mask_runs, answer, logprobs, margins, min_new_tokens)

    def inputs(self, prompt: RandomPrompt) -> Any:
        """What the checkpoint's own processor makes of a conversation."""
        text = self.processor.apply_chat_template(prompt.messages, tokenize=False, add_generation_prompt=True)
        if not self.checkpoint.takes_images:
            return self.processor(text, return_tensors="pt", add_special_tokens=False)
        tokenizer = self.processor.tokenizer
        add_special_tokens = not (tokenizer.bos_token and text.startswith(tokenizer.bos_token))
        return self._processed(text, prompt.pictures, prompt.films, add_special_tokens)

    def _processed(self, text: str, pictures: list[Image.Image], films: list[Film], add_special_tokens: bool) -> Any:
        sampled = [_sampled(self.processor.video_processor, film) for film in films]
        arguments: dict[str, Any] = {"text_kwargs": {"add_special_tokens": add_special_tokens}}
        if pictures:
            arguments["images"] = pictures
        if films:
            arguments["videos"] = [frames for frames, _ in sampled]
            arguments["videos_kwargs"] = {
                "video_metadata": [metadata for _, metadata in sampled],
                "input_data_format": "channels_last",
                "do_sample_frames": False,
            }
        return self.processor(text=text, return_tensors="pt", **arguments)

    @torch.inference_mode()
    def _generate(
        self, inputs: Any, new_tokens: int, min_new_tokens: int
    ) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
        """Answer, logprobs under the raw logits, and margins of the scores that the choice was made from."""
        output = self.model.generate(
            **inputs,
            max_new_tokens=new_tokens,
            min_new_tokens=min_new_tokens,
            do_sample=False,
            output_logits=True,
            output_scores=True,
            return_dict_in_generate=True,
        )
        answer = output.sequences[0, inputs["input_ids"].shape[1] :]
        logits = torch.stack([step[0].float() for step in output.logits])
        best = torch.stack([step[0].float() for step in output.scores]).topk(2).values
        logprobs = logits.log_softmax(-1).gather(1, answer[:, None])[:, 0]
        return tuple(answer.tolist()), tuple(logprobs.tolist()), tuple((best[:, 0] - best[:, 1]).tolist())

    def media_input(self, medium: Medium) -> MediaInput:
        """The medium as the processor prepares it alone; its rows are the tokens that it puts into a prompt."""
        is_clip = isinstance(medium, Film)
        token = self.processor.video_token if is_clip else self.processor.image_token
        alone = self._processed(token, [] if is_clip else [medium], [medium] if is_clip else [], False)
        family = self.checkpoint.family
        names = family.video_tensors if is_clip else family.vision_tensors
        grid = alone.get("video_grid_thw" if is_clip else "image_grid_thw")
        return MediaInput(
            digest=_digest(medium),
            embedding_rows=int(self._is_medium(alone["input_ids"][0]).sum()),
            tensors={name: tensor_data_of(alone[name].numpy()) for name in names},
            modality=Modality.VIDEO if is_clip else Modality.IMAGE,
            grid=None if grid is None else tuple(grid[0].tolist()),
            seconds_per_grid=float(alone["second_per_grid_ts"][0]) if "second_per_grid_ts" in alone else 1.0,
        )

    def _is_medium(self, ids: torch.Tensor) -> torch.Tensor:
        """[prompt] bool: where the processor put the token of a picture or a clip."""
        tokens = [one for one in (self.checkpoint.image_token_id, self.checkpoint.video_token_id) if one is not None]
        return torch.isin(ids, torch.tensor(tokens))


def _sampled(video_processor: Any, film: Film) -> tuple[Any, VideoMetadata]:
    """Frames to show by the processor's own rule, and the metadata that it then has of them."""
    count, height, width, _ = film.frames.shape
    metadata = VideoMetadata(
        total_num_frames=count,
        fps=film.fps,
        width=width,
        height=height,
        duration=count / film.fps,
        frames_indices=list(range(count)),
    )
    if film.num_frames is not None:
        metadata.frames_indices = video_processor.sample_frames(metadata, num_frames=film.num_frames).tolist()
    return film.frames[metadata.frames_indices], metadata


def _mask_runs(taken: Iterable[bool]) -> tuple[MaskRun, ...]:
    """The positions that take a row, row after row, as runs."""
    runs: list[MaskRun] = []
    for row, position in enumerate(index for index, one in enumerate(taken) if one):
        if runs and runs[-1].start + runs[-1].length == position:
            runs[-1] = MaskRun(runs[-1].start, runs[-1].row, runs[-1].length + 1)
        else:
            runs.append(MaskRun(position, row, 1))
    return tuple(runs)


def _digest(medium: Medium) -> bytes:
    if isinstance(medium, Film):
        content = repr((medium.frames.shape, medium.fps, medium.num_frames)).encode() + medium.frames.tobytes()
        return hashlib.sha256(b"clip" + content).digest()
    return hashlib.sha256(repr(medium.size).encode() + medium.tobytes()).digest()
