"""The reference: transformers' own `generate` in float32, one request at a time, and prompts to ask it.

Prompt ids, pixels, media positions and answers all come from the checkpoint's own processor and `generate`; none of our
own rendering, expansion, decoding or preprocessing takes part.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

from fanlight_engine.checkpoints.checkpoint import Checkpoint, read_checkpoint
from fanlight_engine.checkpoints.families import PixelForm
from fanlight_engine.core.messages import MaskRun, MediaInput
from fanlight_engine.request import Modality
from fanlight_engine.tensor_data import tensor_data_of
from tests.engine.random_prompts import (
    CLIP_KINDS,
    KINDS,
    MEDIA_FIRST_KINDS,
    TEXT_KINDS,
    Film,
    Medium,
    RandomPrompt,
    random_film,
    random_prompt,
)
from tests.engine.reference_media import processed, processed_alone

NEAR_TIE = 1e-4
"""A first difference is allowed only where the reference's two best logits are closer than this."""

PAGE_BORDER = 256
"""Prompts of the kinds that are called so end a few tokens before this position, so that their answers cross it."""


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
        if self.checkpoint.family.text_after_media:
            return MEDIA_FIRST_KINDS
        has_clips = self.checkpoint.family.takes_videos and hasattr(self.processor, "video_processor")
        clip_kinds = CLIP_KINDS * has_clips
        return KINDS + tuple(kind for kind in clip_kinds if kind != "one_frame_clip" or self.takes_single_frames)

    @cached_property
    def takes_single_frames(self) -> bool:
        """Whether the checkpoint's processor takes a clip of one frame."""
        try:
            self.media_input(random_film("one_frame_clip", random.Random(0)))
        except ValueError:
            return False
        return True

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
        if self.checkpoint.family.video_form is PixelForm.FRAMES:
            prompt.cut_films_to_one_length()
        inputs = self.inputs(prompt)
        while kind.endswith("page_border") and inputs["input_ids"].shape[1] < PAGE_BORDER - 4:
            prompt.lengthen(rng)
            inputs = self.inputs(prompt)
        answer, logprobs, margins = self._generate(inputs, new_tokens, min_new_tokens)
        prompt_ids = tuple(inputs["input_ids"][0].tolist())
        media = tuple(self.media_input(medium, len(prompt.pictures)) for medium in self._in_order(prompt))
        mask_runs = _mask_runs(self._is_medium(inputs["input_ids"][0]).tolist())
        return Case(kind, prompt, prompt_ids, media, mask_runs, answer, logprobs, margins, min_new_tokens)

    def inputs(self, prompt: RandomPrompt) -> Any:
        """What the checkpoint's own processor makes of a conversation."""
        if self.checkpoint.family.text_after_media:
            text = self.processor.image_token * len(prompt.pictures) + prompt.text
            return processed(self.processor, self.checkpoint.family, text, prompt.media, add_special_tokens=True)
        text = self.processor.apply_chat_template(prompt.messages, tokenize=False, add_generation_prompt=True)
        if not self.checkpoint.takes_images:
            return self.processor(text, return_tensors="pt", add_special_tokens=False)
        tokenizer = self.processor.tokenizer
        add_special_tokens = not (tokenizer.bos_token and text.startswith(tokenizer.bos_token))
        return processed(self.processor, self.checkpoint.family, text, prompt.media, add_special_tokens)

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

    def _in_order(self, prompt: RandomPrompt) -> list[Medium]:
        """The media in the order of their placeholders, where a template may show all pictures before all clips."""
        if not prompt.pictures or not prompt.films:
            return prompt.media
        text = self.processor.apply_chat_template(prompt.messages, tokenize=False)
        tokens = {self.processor.image_token: iter(prompt.pictures), self.processor.video_token: iter(prompt.films)}
        return [next(tokens[token]) for token in re.findall("|".join(map(re.escape, tokens)), text)]

    def media_input(self, medium: Medium, pictures: int = 1) -> MediaInput:
        """The medium as the processor prepares it alone; its rows are the tokens that it puts into a prompt.

        Where a picture of several is prepared otherwise than a lone one, `pictures` of the prompt decide.
        """
        if self.checkpoint.family.splits_only_a_lone_picture and pictures > 1 and not isinstance(medium, Film):
            return self._whole_picture(medium)
        is_clip = isinstance(medium, Film)
        alone = processed_alone(self.processor, medium)
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

    def _whole_picture(self, picture: Medium) -> MediaInput:
        """One of two equal pictures of a prompt."""
        twice = self.processor.image_token * 2
        both = processed(self.processor, self.checkpoint.family, twice, [picture, picture], False)
        return MediaInput(
            digest=hashlib.sha256(b"whole" + _digest(picture)).digest(),
            embedding_rows=int(self._is_medium(both["input_ids"][0]).sum()) // 2,
            tensors={name: tensor_data_of(both[name][:1].numpy()) for name in self.checkpoint.family.vision_tensors},
        )

    def _is_medium(self, ids: torch.Tensor) -> torch.Tensor:
        """[prompt] bool: where the processor put the token of a picture or a clip."""
        tokens = [one for one in (self.checkpoint.image_token_id, self.checkpoint.video_token_id) if one is not None]
        return torch.isin(ids, torch.tensor(tokens))


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
