"""Runs transformers' generate on pictures: one request after another, or all in a padded batch."""

from __future__ import annotations

import io
import time
from importlib.metadata import version
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from benchmarks.peers.workers.pictures import PictureFigures, PictureOrder
from benchmarks.peers.workers.serving import serve


class TransformersPictures:
    """A model in bfloat16 with its processor."""

    def __init__(self, checkpoint: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._model: Any = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.bfloat16)
        self._processor = AutoProcessor.from_pretrained(checkpoint)
        self._processor.tokenizer.padding_side = "left"

    def facts(self) -> dict[str, Any]:
        """Versions and settings."""
        return {
            **{name: version(name) for name in ("transformers", "torch")},
            "attention": self._model.config._attn_implementation,
            "threads": torch.get_num_threads(),
        }

    def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """In calls of as many requests as go into one."""
        asked = PictureOrder.of(order)
        text = self._processor.apply_chat_template(_conversation(asked.question), add_generation_prompt=True)
        begun = time.perf_counter()
        tokens = 0
        for start in range(0, len(asked.pictures), asked.at_once):
            pictures = asked.pictures[start : start + asked.at_once]
            tokens += self._generate(pictures, text, asked.new_tokens)
        seconds = time.perf_counter() - begun
        return PictureFigures(seconds, len(asked.pictures), tokens).line()

    def _generate(self, pictures: tuple[bytes, ...], text: str, new_tokens: int) -> int:
        """Tokens of the answers."""
        images = [Image.open(io.BytesIO(one)).convert("RGB") for one in pictures]
        inputs = self._processor(images=images, text=[text] * len(images), padding=True, return_tensors="pt")
        length = inputs["input_ids"].shape[1]
        inputs = inputs.to(torch.bfloat16)
        ids = self._model.generate(**inputs, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False)
        self._processor.batch_decode(ids[:, length:], skip_special_tokens=True)
        return ids[:, length:].numel()


def _conversation(question: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]


if __name__ == "__main__":
    serve(TransformersPictures)
