"""Runs our own engine on pictures, as the offline interface does: decoding, preprocessing, tower, prompts, texts."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import torch

from benchmarks.peers.workers.pictures import PictureFigures, PictureOrder
from benchmarks.peers.workers.serving import serve
from fanlight_engine.offline.llm import LLM
from fanlight_engine.request import SamplingOptions


class FanlightPictures:
    """An LLM in bfloat16, prefix cache off as everywhere here."""

    def __init__(self, checkpoint: str, threads: int) -> None:
        self._report: list[str] = []
        self._llm = LLM(
            checkpoint, report=self._report.append, dtype="bfloat16", torch_threads=threads, prefix_cache=False
        )

    def facts(self) -> dict[str, Any]:
        """Versions and settings."""
        return {
            **{name: version(name) for name in ("fanlight-server", "torch")},
            "threads": torch.get_num_threads(),
        }

    def run(self, order: dict[str, Any]) -> dict[str, Any]:
        """All requests at once."""
        asked = PictureOrder.of(order)
        sampling = SamplingOptions(max_new_tokens=asked.new_tokens, ignore_eos=True)
        begun = time.perf_counter()
        media = [{"image": picture} for picture in asked.pictures]
        answers = self._llm.generate([asked.question] * len(media), sampling, media)
        seconds = time.perf_counter() - begun
        tokens = sum(one.usage.completion_tokens for one in answers)
        return PictureFigures(seconds, len(answers), tokens).line()


if __name__ == "__main__":
    serve(FanlightPictures)
