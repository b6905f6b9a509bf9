"""What transformers itself answers: the measure of the parity tests. Knows nothing of the engine but its messages.

Prompt ids, pixels and greedy answers all come from the checkpoint's own processor and `generate`; none of our own
rendering, expansion or preprocessing takes part.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

from fanlight_engine.core.messages import ImageInput, MaskRun, TensorData
from fanlight_engine.model.checkpoint import Checkpoint, read_checkpoint
from tests.engine.checkpoints import corpus

NEAR_TIE = 1e-4
"""A first difference is allowed only where the reference's two best logits are closer than this."""

KINDS = ("text", "one_image", "two_images", "three_images", "multi_turn", "page_border")
PAGE_BORDER = 256
"""Prompts of kind page_border end a few tokens before this position, so that their answers cross it."""


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt with the reference's greedy answer; `margins` are best minus second-best logit per answer token."""

    kind: str
    messages: list[dict[str, Any]]
    pictures: list[Image.Image]
    prompt_ids: tuple[int, ...]
    images: tuple[ImageInput, ...]
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

    def cases(self, count: int, new_tokens: int, seed: int = 7) -> list[Case]:
        """`count` cases over all kinds that the checkpoint takes, answered with up to `new_tokens` tokens each.

        Every other round over the kinds holds the end of the answer back until then (min_new_tokens).
        """
        rng = random.Random(seed)
        kinds = KINDS if self.checkpoint.takes_images else ("text", "multi_turn", "page_border")
        return [
            self.case(kinds[index % len(kinds)], rng, new_tokens, min_new_tokens=new_tokens * (index // len(kinds) % 2))
            for index in range(count)
        ]

    def case(self, kind: str, rng: random.Random, new_tokens: int, min_new_tokens: int = 0) -> Case:
        """One case of a kind, with random text and pictures."""
        messages, pictures = random_conversation(kind, rng, self.checkpoint.takes_images)
        inputs = self.inputs(messages, pictures)
        while kind == "page_border" and inputs["input_ids"].shape[1] < PAGE_BORDER - 4:
            _lengthen(messages[-1], rng)
            inputs = self.inputs(messages, pictures)
        answer, logprobs, margins = self._generate(inputs, new_tokens, min_new_tokens)
        prompt_ids = tuple(inputs["input_ids"][0].tolist())
        mask_runs, rows = self._mask_runs(prompt_ids, len(pictures), inputs)
        images = tuple(
            ImageInput(_digest(picture), row_count, self._tensors(picture))
            for picture, row_count in zip(pictures, rows, strict=True)
        )
        return Case(kind, messages, pictures, prompt_ids, images, mask_runs, answer, logprobs, margins, min_new_tokens)

    def inputs(self, messages: list[dict[str, Any]], pictures: list[Image.Image]) -> Any:
        """What the checkpoint's own processor makes of a conversation."""
        text = self.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        if not self.checkpoint.takes_images:
            return self.processor(text, return_tensors="pt", add_special_tokens=False)
        tokenizer = self.processor.tokenizer
        add_special_tokens = not (tokenizer.bos_token and text.startswith(tokenizer.bos_token))
        arguments = {"images": pictures} if pictures else {}
        return self.processor(
            text=text, return_tensors="pt", text_kwargs={"add_special_tokens": add_special_tokens}, **arguments
        )

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

    def _mask_runs(self, ids: tuple[int, ...], images: int, inputs: Any) -> tuple[tuple[MaskRun, ...], list[int]]:
        """Image positions are the image token ids of the processor's own output; rows per image from its own counts."""
        positions = [index for index, token in enumerate(ids) if images and token == self.checkpoint.image_token_id]
        runs: list[MaskRun] = []
        for row, position in enumerate(positions):
            if runs and runs[-1].start + runs[-1].length == position:
                runs[-1] = MaskRun(runs[-1].start, runs[-1].row, runs[-1].length + 1)
            else:
                runs.append(MaskRun(position, row, 1))
        if "image_grid_thw" in inputs:
            merge = self.checkpoint.config.vision_config.spatial_merge_size**2
            return tuple(runs), [int(grid.prod()) // merge for grid in inputs["image_grid_thw"]]
        return tuple(runs), [len(positions) // images] * images if images else []

    def _tensors(self, picture: Image.Image) -> dict[str, TensorData]:
        processed = self.processor.image_processor(images=[picture], return_tensors="pt")
        return {
            name: TensorData(value.numpy().dtype.str, tuple(value.shape), value.numpy().tobytes())
            for name, value in processed.items()
            if name in self.checkpoint.family.vision_tensors
        }


def random_conversation(
    kind: str, rng: random.Random, list_content: bool
) -> tuple[list[dict[str, Any]], list[Image.Image]]:
    """A conversation of a kind in transformers' message format, and its pictures."""
    sentences = corpus()
    pictures = {"one_image": 1, "two_images": 2, "three_images": 3}.get(kind, 0)
    content: list[dict[str, Any]] = [{"type": "text", "text": rng.choice(sentences)}]
    for _ in range(pictures):
        content.insert(rng.randrange(len(content) + 1), {"type": "image"})
        content.append({"type": "text", "text": " " + rng.choice(sentences)})
    drawn = [random_picture(rng) for _ in range(pictures)]
    messages = [{"role": "user", "content": content}]
    if kind == "multi_turn":
        first = [{"type": "image"}] * list_content + [{"type": "text", "text": rng.choice(sentences)}]
        drawn = [random_picture(rng)] if list_content else []
        messages = [
            {"role": "system", "content": [{"type": "text", "text": rng.choice(sentences)}]},
            {"role": "user", "content": first},
            {"role": "assistant", "content": [{"type": "text", "text": rng.choice(sentences)}]},
            {"role": "user", "content": [{"type": "text", "text": " ".join(rng.sample(sentences, 3))}]},
        ]
    if not list_content:
        messages = [
            {"role": one["role"], "content": "".join(part["text"] for part in one["content"])} for one in messages
        ]
    return messages, drawn


def _lengthen(message: dict[str, Any], rng: random.Random) -> None:
    """One more word at the end of a message."""
    word = " " + rng.choice(rng.choice(corpus()).split())
    if isinstance(message["content"], str):
        message["content"] += word
    else:
        message["content"].append({"type": "text", "text": word})


def random_picture(rng: random.Random) -> Image.Image:
    """A picture of random size and aspect ratio with a few coloured boxes."""
    size = rng.randint(40, 160), rng.randint(40, 160)
    picture = Image.new("RGB", size, _random_colour(rng))
    draw = ImageDraw.Draw(picture)
    for _ in range(4):
        left, top = rng.randrange(size[0]), rng.randrange(size[1])
        draw.rectangle((left, top, left + rng.randint(4, 60), top + rng.randint(4, 60)), fill=_random_colour(rng))
    return picture


def _random_colour(rng: random.Random) -> tuple[int, int, int]:
    return rng.randrange(256), rng.randrange(256), rng.randrange(256)


def _digest(picture: Image.Image) -> bytes:
    return hashlib.sha256(repr(picture.size).encode() + picture.tobytes()).digest()
